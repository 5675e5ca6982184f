"""Tests of the plans of GDPFed*, at the settings of the paper and of docs/results.md."""

import pytest

from conf.load import load
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import make_method
from gdpfed.privacy.planning.groups import paper_delta

SHAKESPEARE = ("dataset.num_clients=247", "privacy.sampling_rate=0.5", "privacy.budgets=[2,6,12]")
SMALL = (
    "privacy.delta=1e-3",
    "dataset.num_clients=60",
    "privacy.sampling_rate=0.3",
    "privacy.accountant=rdp",
)


def method_of(*overrides):
    return make_method(load(["method=gdpfed_star", "privacy.against=outsiders", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "noise_per_step", "percent"),
    [
        (("dataset=digits",), 0.01793, (8.02, 19.29, 32.69)),
        (("dataset=fmnist",), 0.00658, (0.64, 1.85, 3.52)),
        (("dataset=shakespeare", "run.num_rounds=30", *SHAKESPEARE), 0.01297, (21.87, 49.65, 78.83)),
    ],
)
def test_noise_for_a_step_of_one(overrides, noise_per_step, percent):
    """The plan has the expected noise per step, and sampling rates within 1 % of those of a finer search."""
    clients = load(overrides).dataset.num_clients
    method = method_of(*overrides, f"privacy.delta={paper_delta(clients)}")
    assert method.weighting.noise_per_step(method.plan) == pytest.approx(noise_per_step, abs=6e-6)
    rates = [100 * group.sampling_rate for group in method.plan.groups]
    assert rates == pytest.approx(percent, rel=0.01)


def test_the_cohorts_mean_norm_is_the_configured_one_and_every_budget_is_used_up():
    plan = method_of(*SMALL).plan
    total = sum(group.expected_cohort_size * group.clipping_norm for group in plan.groups)
    assert total == pytest.approx(0.3 * 60 * plan.clipping_norm, rel=1e-9)
    for group in plan.groups:
        assert group.epsilon * (1 - 1e-3) < group.epsilon_accounted <= group.epsilon
        assert group.noise_stddev == pytest.approx(plan.groups[0].noise_stddev, rel=1e-12)


def test_less_noise_for_its_step_than_any_other_method():
    def noise(name):
        method = make_method(load([f"method={name}", *SMALL]))
        return method.weighting.noise_per_step(method.plan)

    others = (
        "dp_fedavg",
        "gdpfed",
        "gdpfed_op",
        "gdpfed_plus",
        "idp_fedavg_sample",
        "idp_fedavg_scale",
        "pfa",
    )
    assert noise("gdpfed_star") < min(map(noise, others))


@pytest.mark.parametrize("rates", ["[0.2,0.3,0.4]", "paper"])
def test_at_given_rates_the_norms_are_the_best(rates):
    dataset = ["dataset=svhn", "privacy.accountant=rdp"] if rates == "paper" else SMALL
    plan = method_of(*dataset, f"privacy.sampling_rates={rates}").plan
    expected = [0.0166, 0.0467, 0.0868] if rates == "paper" else [0.2, 0.3, 0.4]
    assert [group.sampling_rate for group in plan.groups] == pytest.approx(expected, rel=1e-9)
    assert all(group.epsilon_accounted > 0.999 * group.epsilon for group in plan.groups)


@pytest.mark.parametrize(
    "overrides",
    [
        ("privacy.sampling=fixed_size", "privacy.budgets=[1,3]"),
        ("privacy.noise=discrete_gaussian",),
        ("privacy.min_sampling_rate=0.2",),
        ("privacy.budgets=clients", f"privacy.client_budgets={[0.5 + 0.1 * (i % 40) for i in range(60)]}"),
    ],
)
def test_what_has_accounting_is_planned(overrides):
    plan = method_of(*SMALL, *overrides).plan
    assert plan.one_sum
    assert len(plan.groups) == (2 if "privacy.budgets=[1,3]" in overrides else 3)
    assert all(group.epsilon_accounted <= group.epsilon for group in plan.groups)
    assert min(group.sampling_rate for group in plan.groups) >= (0.2 if "min" in overrides[0] else 0.0)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("privacy.sampling=fixed_size",), PrivacyError, "no bound for fixed_size"),
        (("privacy.accountant=theorem1",), PrivacyError, "theorem1 needs"),
        (("privacy.sampling_rates=paper",), ConfigError, "the paper has no rates for digits"),
        (("privacy.min_sampling_rate=0.9",), PrivacyError, "choose at most 0.2"),
        (("method.reweighting=uniform",), ConfigError, "setting 'method.reweighting' is not known"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(overrides, error, message):
    with pytest.raises(error) as raised:
        method_of(*overrides)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
