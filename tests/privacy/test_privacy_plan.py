import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpfed.errors import PrivacyError
from gdpfed.methods.weighting import Weighting, group_weights
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.sampled.planner import make_plan, plain_plan
from gdpfed.privacy.planning.groups import Group, groups_from_shares, merge_groups, paper_delta
from gdpfed.privacy.planning.plan_options import RelativeRounds

GROUPS = groups_from_shares(6000, (0.5, 1.5, 3.0))
PAPER_RATES = (0.0069, 0.0189, 0.0342)
FMNIST: dict[str, Any] = {
    "groups": GROUPS,
    "num_rounds": 50,
    "sampling_rate": 0.02,
    "clipping_norm": 1.5,
    "delta": paper_delta(6000),
}
SMALL: dict[str, Any] = {
    "groups": groups_from_shares(30, (1.0, 3.0)),
    "num_rounds": 5,
    "sampling_rate": 0.2,
    "clipping_norm": 1.0,
}


def sigma2(plan):
    return [group.noise_variance_multiplier for group in plan.groups]


def test_gdpfed_on_fmnist_meets_table_5():
    plan = make_plan(**FMNIST, accountant="rdp")
    assert sigma2(plan) == pytest.approx((2.25, 0.90, 0.53), rel=0.01)
    assert Weighting.of(plan).noise_magnitude(plan) == pytest.approx(2.77, rel=0.01)
    assert plan.delta == 6000**-1.1


def test_dp_fedavg_is_one_group_at_the_smallest_budget():
    plan = make_plan(**{**FMNIST, "groups": [merge_groups(GROUPS)]}, accountant="rdp")
    assert Weighting.of(plan).noise_magnitude(plan) == pytest.approx(1.5**2 * 2.25, rel=0.01)
    assert plan.groups[0].clients == range(6000)
    assert Weighting.of(plan).group_weights == pytest.approx((1 / 120,))


def test_noise_magnitude_by_hand():
    """The magnitude of a plan's noise equals a computation by hand from rates, weights and variances."""
    plan = make_plan(
        **FMNIST,
        accountant="rdp",
        group_sampling_rates=PAPER_RATES,
    )
    weighting = Weighting.of(plan, "squared_participation", (0.7, 0.8, 0.9))
    assert sigma2(plan) == pytest.approx((1.42, 0.87, 0.70), rel=0.01)
    r = (13.8, 37.8, 68.4)
    squares = sum(size**2 for size in r)
    by_hand = sum(k * s**2 / squares * v for k, s, v in zip((0.7, 0.8, 0.9), r, sigma2(plan), strict=True))
    assert weighting.noise_magnitude(plan) == pytest.approx(2.25 / 3 * by_hand, rel=1e-9)
    assert weighting.group_weights == pytest.approx([size**2 / (120 * squares) for size in r], rel=1e-9)


@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=8), st.floats(0.1, 1000))
def test_weights_sum_as_the_formulae_say(cohorts, mean):
    squared = group_weights(cohorts, mean, "squared_participation")
    assert sum(squared) == pytest.approx(1 / mean)
    assert max(squared) == squared[cohorts.index(max(cohorts))]
    assert group_weights(cohorts, mean, "uniform") == (1 / mean,) * len(cohorts)


def test_three_equal_groups_shrink_the_step_to_a_third():
    weights = group_weights([40.0] * 3, 120.0, "squared_participation")
    assert sum(weight * 40.0 for weight in weights) == pytest.approx(1 / 3)


def test_both_figures_are_in_the_plan():
    plan = make_plan(**FMNIST, accountant="rdp")
    for group in plan.groups:
        assert group.epsilon * (1 - 1e-3) < group.epsilon_accounted <= group.epsilon
        assert group.participations_p99 == 4
    assert plan.groups[0].epsilon_against_server == pytest.approx(5.50, abs=0.01)
    seen = make_plan(**FMNIST, accountant="rdp", sums_hidden=False)
    assert [group.epsilon_against_server for group in seen.groups] == [math.inf] * 3
    assert seen.to_dict()["groups"][0]["epsilon_against_server"] is None


def test_epsilon_after_ends_at_what_is_accounted():
    plan = make_plan(**FMNIST)
    for index, group in enumerate(plan.groups):
        figures = [plan.epsilon_after(index, rounds) for rounds in (0, 1, 10, 49, 50)]
        assert figures[0] == 0.0
        assert figures == sorted(figures)
        assert figures[-1] == group.epsilon_accounted


def test_fixed_size_plans_carry_the_rate_that_is_drawn():
    fixed = {**SMALL, "sampling": "fixed_size", "accountant": "rdp", "sampling_rate": 0.17}
    plan = make_plan(**fixed)
    assert [group.sampling_rate for group in plan.groups] == [3 / 15, 3 / 15]
    assert [group.expected_cohort_size for group in plan.groups] == [3.0, 3.0]


def test_plain_plan_promises_nothing():
    plan = plain_plan(groups=GROUPS, num_rounds=50, sampling_rate=0.02)
    assert not plan.private
    assert Weighting.of(plan).noise_magnitude(plan) == 0.0
    assert math.isinf(plan.clipping_norm)
    assert plan.epsilon_after(0, 1) == math.inf
    assert {group.noise_multiplier for group in plan.groups} == {0.0}
    data = plan.to_dict()
    assert data["clipping_norm"] is None
    assert data["groups"][0]["epsilon"] is None
    json.dumps(data, allow_nan=False)


def test_json_form():
    data = json.loads(json.dumps(make_plan(**SMALL).to_dict(), allow_nan=False))
    assert {
        "groups",
        "delta",
        "accountant",
        "sampling",
        "adjacency",
        "clipping_norm",
        "num_rounds",
        "sampling_rate",
        "private",
    } <= set(data)
    assert set(data["groups"][0]) == {
        "epsilon",
        "epsilon_accounted",
        "epsilon_against_server",
        "epsilon_against_members",
        "participations_p99",
        "clients",
        "sampling_rate",
        "expected_cohort_size",
        "noise_multiplier",
        "noise_variance_multiplier",
        "charges",
    }
    assert data["groups"][0]["clients"] == 15


def test_fingerprints_tell_plans_apart():
    plan = make_plan(**SMALL)
    assert plan.fingerprint() == make_plan(**SMALL).fingerprint()
    others: list[dict[str, Any]] = [
        {"num_rounds": 6},
        {"clipping_norm": 1.1},
        {"groups": groups_from_shares(30, (1.0, 3.1))},
    ]
    others.append({"groups": (Group(1.0, [*range(14), 29]), Group(3.0, range(14, 29)))})
    assert plan.fingerprint() not in {make_plan(**{**SMALL, **other}).fingerprint() for other in others}


def test_a_million_clients_are_cheap():
    started = time.process_time()
    groups = groups_from_shares(10**6, (0.5, 1.5, 3.0))
    plan = make_plan(groups=groups, num_rounds=100, sampling_rate=0.01, clipping_norm=1.0)
    assert all(isinstance(group.clients, range) for group in plan.groups)
    assert time.process_time() - started < 10


def test_a_plan_of_three_groups_is_quick():
    started = time.process_time()
    make_plan(**{**FMNIST, "num_rounds": 53})
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": ()}, "groups is empty"),
        ({"groups": [(2.0, range(5))]}, "groups has .2.0, range.0, 5..; give each as gdpfed.Group"),
        ({"groups": (Group(1, range(5)), Group(2, range(4, 9)))}, "client 4 is in more than one group"),
        ({"num_rounds": 0}, "num_rounds is 0"),
        ({"sampling_rate": 1.1}, "sampling_rate is 1.1; a rate above 1 would need more than all clients"),
        ({"delta": 1.5}, "delta is 1.5; it must lie in"),
        ({"clipping_norm": 0.0}, "clipping_norm is 0.0; it must be positive and finite"),
        ({"clipping_norm": -1.0}, "clipping_norm is -1.0; it must be positive"),
        ({"clipping_norm": math.nan}, "clipping_norm is nan; give a number"),
        ({"accountant": "prv"}, "accountant=prv is not known: use"),
        ({"sampling": "all"}, "sampling=all is not known: use allocation, fixed_size, poisson"),
        ({"adjacency": "add"}, "adjacency=add is not known: use"),
        ({"group_sampling_rates": (0.1,)}, "group_sampling_rates has 1 entries for 2 groups"),
        ({"group_sampling_rates": (0.1, 1.4)}, "a group's sampling rate is 1.4"),
        ({"sums_per_round": 0}, "sums_per_round is 0"),
        ({"schedule": (RelativeRounds(num_rounds=4),)}, "the schedule has 4 rounds for num_rounds 5"),
        ({"sampling": "fixed_size"}, "the pld accountant has no bound for fixed_size"),
        ({"accountant": "theorem1"}, "theorem1 needs"),
    ],
)
def test_bad_plans_are_told_in_one_line(change, message):
    with pytest.raises(PrivacyError, match=message) as caught:
        make_plan(**{**SMALL, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("accounted", [1.2, 1 + 1e-9])
def test_a_group_plan_above_its_budget_cannot_exist(accounted):
    def plan_at(epsilon_accounted):
        return GroupPlan(
            epsilon=1.0,
            epsilon_accounted=epsilon_accounted,
            epsilon_against_server=3.0,
            participations_p99=1,
            clients=range(3),
            ranges=(RoundRange(num_rounds=3, sampling_rate=0.5, clipping_norm=1.0, noise_multiplier=1.0),),
        )

    with pytest.raises(PrivacyError, match=rf"accounted epsilon {accounted:.6g} is above its budget 1"):
        plan_at(accounted)
    assert plan_at(1.0).epsilon_accounted == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none",), "reweighting=none is not known: use"),
        (("uniform", (0.5, 0.0)), "keep_fraction is 0.0; choose it within"),
        (("uniform", (0.5,)), "keep_fractions has 1 entries for 2 groups"),
    ],
)
def test_bad_weightings_are_told_in_one_line(arguments, message):
    with pytest.raises(PrivacyError, match=message):
        Weighting.of(make_plan(**SMALL), *arguments)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_rounds_may_differ_and_the_whole_still_meets_every_budget(accountant):
    """A plan whose rounds differ in noise, sampling rate and clipping norm meets each group's budget."""
    schedule = (
        RelativeRounds(num_rounds=2, noise_multiplier=2.0),
        RelativeRounds(num_rounds=3, sampling_rate=1.5, clipping_norm=0.5),
    )
    plan = make_plan(**SMALL, accountant=accountant, schedule=schedule)
    for index, group in enumerate(plan.groups):
        loud, quiet = group.ranges
        assert loud.noise_multiplier == pytest.approx(2 * quiet.noise_multiplier)
        assert (loud.sampling_rate, quiet.sampling_rate) == pytest.approx((0.2, 0.3))
        assert (loud.clipping_norm, quiet.clipping_norm) == (1.0, 0.5)
        assert group.epsilon * (1 - 1e-3) < group.epsilon_accounted <= group.epsilon
        figures = [plan.epsilon_after(index, rounds) for rounds in range(6)]
        assert figures == sorted(figures)
        assert figures[-1] == group.epsilon_accounted
        assert [charge.count for charge in plan.charges(index)] == [2, 3]
        assert [charge.count for charge in plan.charges(index, 3)] == [2, 1]
        event: Any = plan.charges(index)[1].event
        assert event.clipping_norm == 0.5


def test_a_second_sum_over_each_cohort_is_paid_for():
    once, twice = make_plan(**SMALL), make_plan(**SMALL, sums_per_round=2)
    for one, two in zip(once.groups, twice.groups, strict=True):
        assert two.noise_multiplier == pytest.approx(math.sqrt(2) * one.noise_multiplier, rel=2e-3)
        assert two.epsilon_accounted <= two.epsilon
        assert two.epsilon_against_server == pytest.approx(one.epsilon_against_server, rel=5e-3)
