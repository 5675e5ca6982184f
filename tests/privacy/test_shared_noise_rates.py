"""Tests of sampling rates at which groups with different budgets can share one noise."""

from typing import Any

import dp_accounting as dp
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.methods.weighting import Weighting
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.privacy.planning.shared_noise_rates import scaled_clipping_norms, shared_noise_sampling_rates

GROUPS = groups_from_shares(600, (1.0, 3.0, 6.0), (0.5, 0.3, 0.2))
SIZES = [group.size for group in GROUPS]
TERMS: dict[str, Any] = {"num_rounds": 20, "delta": 1e-3}


def independent_epsilon(accountant, rate, sigma):
    """Return epsilon of a group's rounds by dp-accounting, which has its own grid of orders or losses."""
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    if accountant == "pld":
        ledger = dp.pld.PLDAccountant(relation, value_discretization_interval=1e-3)
    else:
        ledger = dp.rdp.RdpAccountant(neighboring_relation=relation)
    one_round = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))
    return ledger.compose(one_round, TERMS["num_rounds"]).get_epsilon(TERMS["delta"])


def rates(accountant, mean_rate, **terms):
    return shared_noise_sampling_rates(
        make_accountant(accountant),
        GROUPS,
        sampling_rate=mean_rate,
        **{"sampling": "poisson"} | TERMS | terms,
    )


def mean_over_clients(values):
    return sum(value * size for value, size in zip(values, SIZES, strict=True)) / sum(SIZES)


def test_clipping_norms_by_hand():
    norms = scaled_clipping_norms([2.0, 1.0, 0.5], SIZES, 1.5)
    unscaled = [0.5, 1.0, 2.0]
    scale = 1.5 / (0.5 * 0.5 + 0.3 * 1.0 + 0.2 * 2.0)
    assert norms == pytest.approx([scale * value for value in unscaled], rel=1e-12)
    assert mean_over_clients(norms) == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_at_the_rates_one_noise_meets_every_budget(accountant):
    found = rates(accountant, 0.1)
    assert mean_over_clients(found) == pytest.approx(0.1, rel=1e-12)
    assert list(found) == sorted(found)
    terms = TERMS | {"groups": GROUPS, "sampling_rate": 0.1, "clipping_norm": 1.0, "accountant": accountant}
    plan = make_plan(**terms, group_sampling_rates=found, one_sum=True)
    (sigma,) = {group.noise_multiplier for group in plan.groups}
    for rate, group in zip(found, GROUPS, strict=True):
        assert independent_epsilon(accountant, rate, sigma) == pytest.approx(group.epsilon, rel=0.01)


def test_a_group_that_is_always_protected_takes_part_always():
    groups = groups_from_shares(300, (1.0, 3.0, 25.0))
    found = shared_noise_sampling_rates(
        make_accountant("rdp", "whole"), groups, sampling="poisson", sampling_rate=0.6, **TERMS
    )
    assert found[2] == 1.0
    assert sum(found) / 3 == pytest.approx(0.6, rel=1e-12)


def test_under_theorem1_the_rates_have_a_closed_form():
    shape = [eps / (eps + 2 * 3 * 2.302585093) ** 0.5 for eps in (1.0, 3.0, 6.0)]
    scale = 0.1 / mean_over_clients(shape)
    assert rates("theorem1", 0.1) == pytest.approx([scale * value for value in shape], rel=1e-9)


def test_trivial_cases():
    assert rates("pld", 1.0) == (1.0, 1.0, 1.0)
    one = (Group(1.0, range(10)),)
    assert shared_noise_sampling_rates(
        make_accountant("pld"), one, sampling="poisson", sampling_rate=0.3, **TERMS
    ) == (0.3,)


def test_fixed_size_sampling_is_refused():
    with pytest.raises(PrivacyError, match="not give whole numbers of clients.*use privacy.sampling=poisson"):
        rates("rdp", 0.1, sampling="fixed_size")


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian"])
def test_one_sum_has_one_noise_that_keeps_every_budget(accountant, noise):
    terms = TERMS | {"groups": GROUPS, "sampling_rate": 0.1, "clipping_norm": 1.5, "noise": noise}
    apart = make_plan(**terms, accountant=accountant)
    norms = scaled_clipping_norms([group.noise_multiplier for group in apart.groups], SIZES, 1.5)
    plan = make_plan(**terms, accountant=accountant, group_clipping_norms=norms, one_sum=True)
    stddev = plan.groups[0].noise_stddev
    for index, group in enumerate(plan.groups):
        assert group.noise_stddev == pytest.approx(stddev, rel=1e-12)
        assert group.epsilon * (1 - 1e-3) < group.epsilon_accounted <= group.epsilon
        event: Any = plan.charges(index)[0].event
        assert event.noise_multiplier == pytest.approx(stddev / norms[index], rel=1e-12)
        assert plan.epsilon_after(index, 20) == group.epsilon_accounted
    assert Weighting.of(plan).noise_magnitude(plan) == pytest.approx(stddev**2, rel=1e-12)
    written = plan.to_dict()
    assert [group["clipping_norm"] for group in written["groups"]] == list(norms)
    assert "clipping_norm" not in apart.to_dict()["groups"][0]


def test_one_noise_is_the_largest_that_a_group_needs():
    plan = make_plan(
        groups=GROUPS, sampling_rate=0.1, clipping_norm=2.0, accountant="rdp", one_sum=True, **TERMS
    )
    apart = make_plan(groups=GROUPS, sampling_rate=0.1, clipping_norm=2.0, accountant="rdp", **TERMS)
    assert {group.noise_multiplier for group in plan.groups} == {apart.groups[0].noise_multiplier}
    assert plan.groups[2].epsilon_accounted < 0.5 * plan.groups[2].epsilon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_clipping_norms": (1.0, 2.0)}, "group_clipping_norms has 2 entries for 3"),
        ({"group_clipping_norms": (1.0, 2.0, 0.0)}, "a group's clipping_norm is 0.0"),
    ],
)
def test_what_one_sum_cannot_do_is_refused(change, message):
    terms = TERMS | {"groups": GROUPS, "sampling_rate": 0.1, "clipping_norm": 1.0, "accountant": "rdp"}
    with pytest.raises(PrivacyError, match=message):
        make_plan(**terms, one_sum=True, **change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("squared_participation",), "one sum of all groups has one weight"),
        (("uniform", (0.5, 0.7, 1.0)), "treat groups apart"),
    ],
)
def test_one_sum_cannot_be_weighed_by_group(arguments, message):
    plan = make_plan(
        groups=GROUPS, sampling_rate=0.1, clipping_norm=1.0, accountant="rdp", one_sum=True, **TERMS
    )
    with pytest.raises(PrivacyError, match=message):
        Weighting.of(plan, *arguments)
