"""What members of a sum learn of a client: the attacks that the figure against members is there for."""

import math
from typing import Any

import pytest

from gdpfed.privacy.accountants.accountant import accountant_for
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares
from tests.privacy.loss_distribution import Round, least_epsilon_of

BUDGETS = (0.5, 1.5, 3.0)


@pytest.fixture(scope="module")
def plan() -> PrivacyPlan:
    """FMNIST's."""
    groups = groups_from_shares(6000, BUDGETS)
    return make_plan(groups=groups, num_rounds=50, sampling_rate=0.02, clipping_norm=1.5)


def one_round_known(plan: PrivacyPlan, group: int) -> float:
    """Epsilon where one of the rounds is known to have the client in its sum, by the plan's accountant."""
    event: Any = plan.charges(group)[0].event
    known = Charge(
        event=Gaussian(noise_stddev=event.noise_stddev, clipping_norm=event.clipping_norm), count=1
    )
    rest = Charge(event=event, count=plan.num_rounds - 1)
    return compose(
        [known, rest], plan.delta, schedule="fixed", accountant=accountant_for("gaussian", "pld", "fine")
    ).epsilon


def test_a_member_who_is_told_who_else_is_in_one_sum_learns_far_more_than_epsilon(plan):
    alone = [plan.epsilon_against_members(m, 1) for m in range(3)]
    assert alone == pytest.approx([2.91, 4.88, 6.47], abs=0.01)
    with_the_rest = [one_round_known(plan, m) for m in range(3)]
    assert with_the_rest == pytest.approx([2.96, 5.01, 6.84], abs=0.01)


def test_a_member_who_is_told_how_many_are_in_one_sum_learns_more_than_epsilon(plan):
    """The others all send -C, the client +C or nothing. With n drawn, one of them stands in for it."""
    found = []
    for group in plan.groups:
        sigma, rate = group.noise_multiplier, group.sampling_rate
        size_known, not_known = Round(sigma, rate, 2.0, 1.0), Round(sigma, rate, 1.0, 0.0)
        found.append(least_epsilon_of([(size_known, 1), (not_known, plan.num_rounds - 1)], plan.delta))
    assert found == pytest.approx([1.16, 3.61, 5.24], abs=0.01)
    assert all(epsilon > budget for epsilon, budget in zip(found, BUDGETS, strict=True))


def test_the_figure_against_members_covers_both(plan):
    for index, group in enumerate(plan.groups):
        assert group.participations_p99 == 4
        against = plan.to_dict()["groups"][index]["epsilon_against_members"]
        assert against == group.epsilon_against_server > one_round_known(plan, index) > group.epsilon


def test_without_privacy_or_without_taking_part(plan):
    assert plan.epsilon_against_members(0, 0) == 0.0
    without = make_plan(
        groups=plan_groups(), num_rounds=5, sampling_rate=0.2, clipping_norm=1.0, sums_hidden=False
    )
    assert without.epsilon_against_server(0, 1) == math.inf
    assert 0 < without.epsilon_against_members(0, 1) < math.inf


def plan_groups():
    return groups_from_shares(30, (1.0, 3.0))
