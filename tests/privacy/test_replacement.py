"""Tests of epsilon where one data set of a client replaces another, against independent derivations."""

import math
from dataclasses import replace
from functools import partial

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld
from scipy import optimize

from conf.load import load
from gdpfed.errors import PrivacyError
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.replacement import of_two, replaced, replacement_bound
from gdpfed.privacy.validation import require_delta
from gdpfed.report.facts import Fact
from gdpfed.report.plan_lines import common_facts, replacement_dict, replacement_fact
from testing.gaussian_dp import delta_of_mu, mu_of

OUTSIDERS = ("method=gdpfed", "privacy.against=outsiders")
SUBNETS = (
    *("privacy=record_level", "method=h2fdp", "privacy.budgets=[2]", "dataset.model=softmax"),
    *("dataset.num_clients=20", "method.num_subnets=4"),
)


def plan_of(*overrides):
    return make_method(resolve(load(overrides))).plan


def epsilon_of_mu(mu, delta):
    return optimize.brentq(lambda epsilon: delta_of_mu(mu, epsilon) - delta, 0, 100)


@pytest.mark.parametrize(("delta", "shown"), [(1e-5, (2.15, 6.71, 14.0)), (360**-1.1, (2.33, 7.31, 15.4))])
def test_the_demo_has_twice_the_mu(delta, shown):
    plan = plan_of("method=gdpfed_star", f"privacy.delta={delta}")
    found = [replacement_bound(plan, index) for index in range(3)]
    assert [each.proof for each in found] == ["gaussian"] * 3
    twice = [epsilon_of_mu(2 * mu_of(budget, delta), delta) for budget in (1, 3, 6)]
    assert [each.epsilon for each in found] == pytest.approx(twice, rel=1e-3)
    assert [float(f"{each.epsilon:.3g}") for each in found] == list(shown)


def theirs(rate, sigma, count, delta):
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), count)
    return accountant.get_epsilon(delta)


def test_sums_of_a_secret_sample_are_as_another_library_has_them():
    plan = plan_of(*OUTSIDERS)
    found = replacement_bound(plan, 0)
    (charge,) = plan.charges(0)
    event = charge.event
    other = theirs(event.sampling_rate, event.noise_multiplier, charge.count, plan.delta)
    assert found.proof == "accountant"
    assert found.epsilon == pytest.approx(other, rel=5e-3)
    assert plan.groups[0].epsilon < found.epsilon


def test_steps_on_records_are_as_another_library_has_them():
    steps = DPSGDSteps(batch_rate=0.2, noise_multiplier=2.0, num_steps=3)
    (charge,) = replaced([Charge(event=steps, count=10, unit="record")])
    assert (charge.count, charge.unit) == (30, "record")
    found = compose([charge], 1e-5, schedule="fixed").epsilon
    assert found == pytest.approx(theirs(0.2, 2.0, 30, 1e-5), rel=5e-3)
    with pytest.raises(PrivacyError, match="a person at several parties has no bound"):
        replaced([Charge(event=replace(steps, parties=2), count=1, unit="record")])


def test_group_privacy_of_two_is_valid_and_looser_than_what_is_exact():
    for mu in (0.2, 1.0, 1.5):
        bound = of_two(partial(epsilon_of_mu, mu), 1e-5)
        assert epsilon_of_mu(2 * mu, 1e-5) < bound < 1.3 * epsilon_of_mu(2 * mu, 1e-5)
    # delta does not help against a pure promise.
    assert of_two(lambda delta: 1.0, 1e-5) == 2.0
    assert of_two(lambda delta: math.inf, 1e-5) == math.inf


def test_group_privacy_of_two_ends_where_delta_is_too_small_to_account_for():
    asked = []

    def epsilon_at(delta: float) -> float:
        asked.append(require_delta(delta))
        return 500.0

    assert of_two(epsilon_at, 1e-5) == math.inf
    assert of_two(epsilon_at, 1e-100) == math.inf
    assert min(asked) < 1e-60


def test_what_no_accountant_replaces_has_group_privacy():
    plan = plan_of(*SUBNETS)
    found = replacement_bound(plan, 0)
    assert found.proof == "group privacy"
    half = found.epsilon / 2
    (reached,) = [
        share
        for share in (1 / (1 + math.exp(half)),)
        if replace(plan, delta=share * plan.delta).epsilon_after(0, plan.num_rounds) <= half * (1 + 1e-6)
    ]
    assert 0 < reached < 0.5
    assert 2 * plan.groups[0].epsilon * 0.99 < found.epsilon < 2.5 * plan.groups[0].epsilon


def test_a_plan_that_is_of_replace_one_has_its_own_figure_and_one_without_privacy_none():
    plan = plan_of("method=gdpfed_star", "privacy.adjacency=replace_one")
    assert [replacement_bound(plan, index).epsilon for index in range(3)] == [
        plan.epsilon_after(index, plan.num_rounds) for index in range(3)
    ]
    assert replacement_fact(plan) == Fact("between two data sets", "epsilon 1, 3, 6 of one client")
    assert replacement_bound(plan_of("method=fedavg"), 0).epsilon == math.inf


def test_the_plan_prints_both():
    assert replacement_fact(plan_of("method=gdpfed_star")) == Fact(
        "between two data sets",
        "epsilon 2.15, 6.71, 14 of one client; those above are of a client against none",
    )
    proofs = {fact.name: fact.value for fact in common_facts(plan_of("method=gdpfed_star"))}
    assert proofs["replace-one epsilon"] == "exactly, as twice the mu of Gaussians"
    of_subnets = plan_of(*SUBNETS)
    assert replacement_fact(of_subnets).name == "between two values"
    assert replacement_fact(of_subnets).value.startswith("epsilon 4.63 of one record; ")
    assert common_facts(of_subnets)[-1].value.startswith("by group privacy")
    assert [each["group"] for each in replacement_dict(plan_of(*OUTSIDERS))] == ["0", "1", "2"]
