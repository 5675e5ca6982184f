"""Tests of methods' plans and steps, against the paper's formulas, which this file implements anew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conf.load import load
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import METHODS, ClientSum, make_method, resolve
from gdpfed.methods.gdpfed import GDPFed, keep_largest
from gdpfed.methods.weighting import step_of_noise
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.privacy.release import NoiseAt
from testing.small_runs import TRAINING

FMNIST = ["dataset=fmnist", "privacy.accountant=rdp", f"privacy.delta={paper_delta(6000)}"]


def variances(*overrides):
    return [g.noise_variance_multiplier for g in make_method(load([*FMNIST, *overrides])).plan.groups]


def test_published_noise_of_gdpfed():
    method = make_method(load([*FMNIST, "method=gdpfed"]))
    plan = method.plan
    assert [g.noise_variance_multiplier for g in plan.groups] == pytest.approx([2.25, 0.90, 0.53], rel=0.01)
    assert method.weighting.noise_magnitude(plan) == pytest.approx(2.77, rel=0.01)


def test_published_noise_of_gdpfed_plus_at_the_papers_rates():
    assert variances("method=gdpfed_plus", "privacy.sampling_rates=paper") == pytest.approx(
        [1.42, 0.89, 0.73], rel=0.01
    )
    rates = "privacy.sampling_rates=[0.0069,0.0189,0.0342]"
    assert variances("method=gdpfed_plus", rates) == pytest.approx([1.42, 0.87, 0.70], rel=0.01)


@pytest.mark.parametrize("name", ["fmnist", "svhn", "cifar10", "shakespeare", "digits"])
@pytest.mark.parametrize("method", ["gdpfed_op", "gdpfed_plus"])
def test_optimal_rates_are_the_closed_form(name, method):
    config = load([f"dataset={name}", f"method={method}", "privacy.accountant=rdp"])
    plan = make_method(config).plan
    epsilon = np.array(config.privacy.budgets)
    sizes = np.array([len(group.clients) for group in plan.groups])
    shape = epsilon / np.sqrt(epsilon + 2 * np.log(1 / plan.delta))
    expected = shape * config.privacy.sampling_rate * sizes.sum() / (shape @ sizes)
    np.testing.assert_allclose([g.sampling_rate for g in plan.groups], expected, rtol=1e-4)


def test_dp_fedavg_is_one_group_at_the_strictest_budget():
    method = make_method(load([*FMNIST, "method=dp_fedavg"]))
    (group,) = method.plan.groups
    assert (group.epsilon, len(group.clients), group.sampling_rate) == (0.5, 6000, 0.02)
    assert method.weighting.group_weights == pytest.approx((1 / 120,))


def test_fedavg_promises_nothing_and_adds_nothing():
    method = make_method(load(["method=fedavg"]))
    assert not method.plan.private
    (request,) = method.requests(np.zeros(4, np.float32), 0, [np.arange(5)])
    assert (request.noise_multiplier, request.clipping_norm) == (0.0, np.inf)
    assert request.noise_at is NoiseAt.NOWHERE


def test_fedavg_states_the_delta_that_is_set():
    plan = make_method(load(["method=fedavg", "privacy.delta=1e-7"])).plan
    assert (plan.delta, plan.private) == (1e-7, False)


def test_without_secure_aggregation_nothing_is_promised_against_the_server():
    plan = make_method(load([*FMNIST, "method=gdpfed", "secagg=off"])).plan
    assert all(g.epsilon_against_server == np.inf for g in plan.groups)
    assert plan.to_dict()["groups"][0]["epsilon_against_server"] is None


@pytest.mark.parametrize("name", ["dp_fedavg", "gdpfed", "gdpfed_op", "gdpfed_plus"])
def test_step_is_the_weighted_sum(name):
    rate = 0.7
    config = load([f"method={name}", "privacy.accountant=rdp", f"method.server_learning_rate={rate}"])
    method = make_method(config)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=10).astype(np.float32)
    groups = method.plan.groups
    totals = [rng.normal(size=10) for _ in groups]
    r = np.array([g.sampling_rate * len(g.clients) for g in groups])
    weight = np.ones(len(groups)) if name in ("dp_fedavg", "gdpfed") else r**2 / (r**2).sum()
    expected = theta.astype(np.float64)
    for m, total in enumerate(totals):
        k = [7, 8, 9][m] if name == "gdpfed_plus" else 10
        kept = np.zeros(10)
        largest = sorted(range(10), key=lambda j: (-abs(total[j]), j))[:k]
        kept[largest] = total[largest]
        expected += rate * weight[m] / (0.2 * 360) * kept
    sums = [ClientSum(f"group {m}", total, 5) for m, total in enumerate(totals)]
    np.testing.assert_allclose(method.step(theta, sums), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in TRAINING if METHODS.get(name).unit != "record"])
def test_every_method_has_a_server_learning_rate(name):
    """If the server learning rate doubles, the step of every method doubles."""
    moved = []
    cheap = ["privacy.accountant=rdp", "privacy.renyi_orders=whole"]
    if name == "fedpcs":  # Its cost is one Gaussian, and only this accountant has that.
        cheap = ["privacy.accountant=pld", "method.local=update"]
    for rate in (0.5, 1.0):
        method = make_method(load([f"method={name}", *cheap, f"method.server_learning_rate={rate}"]))
        totals = np.random.default_rng(0).normal(size=(len(method.sum_weights), 10))
        sums = [ClientSum(f"sum {m}", total, 5) for m, total in enumerate(totals)]
        moved.append(method.step(np.zeros(10, dtype=np.float32), sums))
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-6)
    assert np.abs(moved[0]).min() > 0 or name == "gdpfed_plus"


def test_a_missing_sum_leaves_out_its_group_only():
    method = make_method(load(["method=gdpfed", "privacy.accountant=rdp"]))
    theta = np.zeros(4, dtype=np.float32)
    ones = [ClientSum(f"group {m}", np.ones(4), 5) for m in range(3)]
    lost = ClientSum("group 1", None, 0, "too few")
    full, partial = method.step(theta, ones), method.step(theta, [ones[0], lost, ones[2]])
    np.testing.assert_allclose(partial, full * 2 / 3, rtol=1e-6)
    np.testing.assert_array_equal(method.step(theta, [lost, lost, lost]), theta)


def test_a_method_may_ask_for_sums_one_after_the_other():
    """A method may run several sums in a round; here each group trains from the model of the group before."""
    method = make_method(load(["method=gdpfed", "privacy.accountant=rdp"]))
    starts: list[float] = []

    def sum_updates(requests):
        starts.extend(float(request.start[0]) for request in requests)
        return [ClientSum(request.name, np.ones(1), 3) for request in requests]

    class InTurn(GDPFed):
        def round(self, theta, round_index, cohorts, sum_updates):
            sums = []
            for index in range(len(cohorts)):
                request = self.requests(theta, round_index, cohorts)[index]
                sums += sum_updates([request])
                theta = theta + 1
            return theta, sums

    in_turn = InTurn(method.plan, method.weighting, server_learning_rate=1.0)
    theta, sums = in_turn.round(np.zeros(1, dtype=np.float32), 0, [np.arange(3)] * 3, sum_updates)
    assert (starts, float(theta[0]), len(sums)) == ([0.0, 1.0, 2.0], 3.0, 3)


@given(
    arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.5])),
    st.floats(0.01, 1.0),
)
def test_top_k_keeps_exactly_the_first_k_by_size_and_index(vector, keep_fraction):
    k = max(1, round(keep_fraction * len(vector)))
    order = sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:k]
    expected = np.zeros(len(vector))
    expected[order] = vector[order]
    np.testing.assert_array_equal(keep_largest(vector, keep_fraction), expected)


def test_kept_fractions_follow_from_the_number_of_groups():
    rdp = "privacy.accountant=rdp"
    for budgets, kept in (
        ("[2]", (0.8,)),
        ("[1,4]", (0.7, 0.9)),
        ("[1,2,3,4]", (0.7, 0.766667, 0.833333, 0.9)),
    ):
        method = make_method(load([f"privacy.budgets={budgets}", rdp]))
        assert method.weighting.keep_fractions == kept
    # Named in a run's configuration, so that runs of before go on and keep their names.
    assert resolve(load([])).method.keep_fraction == [0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["method=gdpfed", "privacy.sampling_rates=paper"], ConfigError, "does not go with method=gdpfed"),
        (["method=fedavg", "privacy.sampling_rates=[0.1]"], ConfigError, "does not go with method=fedavg"),
        (["privacy.sampling_rates=paper"], ConfigError, "the paper has no rates for digits"),
        (
            ["method.reweighting=uniform", "privacy.against=outsiders"],
            ConfigError,
            "makes the paper's Problem 1 equal for all rates",
        ),
        (["privacy.sampling_rates=[0.1,0.2]"], PrivacyError, "2 entries for 3 groups"),
        (["privacy.sampling_rates=[0.1,0.2,1.2]"], PrivacyError, "would need more than all clients"),
        (
            [
                "dataset.num_clients=30",
                "privacy.budgets=[0.001]",
                "privacy.accountant=rdp",
                "method=dp_fedavg",
            ],
            PrivacyError,
            "delta 1e-05, the default for 30 clients, and there is one with privacy.delta=0.0237, which "
            "protects less: it allows that one of 30 clients is exposed outright with 51 %",
        ),
        (["privacy.clipping_norm=1e300"], ConfigError, "clipping_norm=1e+300 must be from 1e-09 to 1e+09"),
        (
            ["method.server_learning_rate=1e300"],
            ConfigError,
            "learning_rate=1e+300 must be from 1e-09 to 1e+06",
        ),
        (["run.seed=99999999999999999999"], ConfigError, "must be from 0 to 9223372036854775807"),
        (["run.num_rounds=1000000000"], ConfigError, "run.num_rounds=1000000000 must be from 1 to 100000"),
        (["run.num_rounds=6000"], PrivacyError, "run.num_rounds=6000 is above 5000, the most"),
        (["method.keep_fraction=[0.5]"], ConfigError, "method.keep_fraction=[0.5] has 1 entries for 3"),
        (["privacy.budgets=[0,1,2]"], ConfigError, "every budget must be above 0"),
        (["privacy.budgets=[-1,1,2]"], ConfigError, "has -1.0: every budget must be above 0 and finite"),
        (["privacy.delta=0"], ConfigError, "privacy.delta=0.0 must be in (0, 1)"),
        (["privacy.delta=1"], ConfigError, "privacy.delta=1.0 must be in (0, 1)"),
        (["privacy.sampling_rate=1.5"], ConfigError, "privacy.sampling_rate=1.5 must be in [1e-9, 1]"),
        (["privacy.group_shares=[0.5,0.2,0.2]"], PrivacyError, "must sum to one"),
        (["privacy.group_shares=[1,x,2]"], ConfigError, "privacy.group_shares: x is not a number"),
        (["privacy.clipping_norm=0"], ConfigError, "clipping_norm=0.0 must be from"),
        (["privacy.clipping_norm=-2"], ConfigError, "clipping_norm=-2.0 must be from"),
        (["privacy.clipping_norm=nan"], ConfigError, "clipping_norm=nan must be from"),
        (["privacy.accountant=theorem1"], PrivacyError, "theorem1 needs"),
        (["privacy.sampling=fixed_size"], PrivacyError, "pld accountant has no bound for fixed_size"),
        (["privacy.min_sampling_rate=0.5"], PrivacyError, "min_sampling_rate=0.5 in every group"),
        (["dataset.num_clients=2"], PrivacyError, "dataset.num_clients=2 is too few for 3 groups"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(overrides, error, message):
    with pytest.raises(error) as raised:
        make_method(load(overrides))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["dp_fedavg", "gdpfed"])
def test_the_step_of_the_rule_brings_all_rounds_together_the_same_noise(name):
    """The rule for the server's step size gives 30 rounds the same total noise by dp_fedavg and by gdpfed."""
    method = make_method(load([f"method={name}", "privacy.accountant=rdp", "privacy.budgets=[0.5,1.5,3]"]))
    groups, v = method.plan.groups, method.weighting.noise_per_step(method.plan)
    stddevs = [weight * each.noise_stddev for weight, each in zip(method.sum_weights, groups, strict=True)]
    step = step_of_noise(v, 30)
    assert step * np.sqrt(30 * np.sum(np.square(stddevs))) / 2.0 == pytest.approx(0.12, rel=1e-9)
    assert step < 1 == step_of_noise(v / 100, 30) == step_of_noise(0.0, 30)


class OutsidersAlone(GDPFed):
    """A method that claims to support turns (scheduled rounds), but always plans with secret sampling."""

    @classmethod
    def from_config(cls, config):
        plan = cls.make_plan(config)
        return cls(plan, cls.make_weighting(config, plan), server_learning_rate=1.0)


class NoTurnPlan(GDPFed):
    """A method that claims to support turns (scheduled rounds of clients), but has no plan for them."""

    @classmethod
    def make_turn_plan(cls, config):
        return super(GDPFed, cls).make_turn_plan(config)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (OutsidersAlone, "plan holds against outsiders alone: its from_config must take the plan of planned"),
        (NoTurnPlan, "gdpfed has no make_turn_plan: write it, or use privacy.against=outsiders"),
    ],
)
def test_a_plan_against_outsiders_is_not_one_against_everyone(kind, match, monkeypatch):
    monkeypatch.setattr(METHODS, "get", lambda name: kind)
    assert make_method(load(["method=gdpfed", "privacy.against=outsiders"])).plan.against == "outsiders"
    with pytest.raises(ConfigError, match=match):
        make_method(load(["method=gdpfed", "privacy.against=everyone"]))
