"""Tests of what members of a sum learn about a client, by attacks that epsilon against members covers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from conf.load import load
from gdpfed.methods import make_method
from gdpfed.privacy.accountants.accountant import accountant_for
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.sampling.cohorts import usual_size
from tests.privacy.loss_distribution import Round, least_epsilon_of

BUDGETS = (0.5, 1.5, 3.0)


@pytest.fixture(scope="module")
def plan() -> PrivacyPlan:
    """Return a plan for Fashion-MNIST: 6,000 clients in three groups, 50 rounds."""
    groups = groups_from_shares(6000, BUDGETS)
    return make_plan(groups=groups, num_rounds=50, sampling_rate=0.02, clipping_norm=1.5)


def one_round_known(plan: PrivacyPlan, group: int) -> float:
    """Return epsilon, by the plan's accountant, if a client is known to be in the sum of one round."""
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
    """If a member knows how many clients one sum has, epsilon against that member exceeds the budget."""
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


@pytest.mark.parametrize(("there", "size", "rate"), [(12, 10, 0.05), (20, 12, 0.05), (120, 61, 0.2)])
@pytest.mark.parametrize("pooled", [1, 2])
def test_who_is_not_asked_to_fill_a_sum_learns_a_little_of_how_many_were_drawn(there, size, rate, pooled):
    """Clients that need not fill up a sum with zeros learn little about whether another client was drawn."""
    others = np.arange(there - pooled)

    def none_asked(drawn):
        """Return the probability that no colluding client must send zeros if `drawn` clients are drawn."""
        left = np.maximum(there - drawn - np.arange(pooled)[:, None], 1)
        return np.where(drawn < size, np.prod((there - size - np.arange(pooled))[:, None] / left, axis=0), 1)

    chances = stats.binom.pmf(others, there - 1 - pooled, rate)
    with_it, without = chances @ none_asked(others + 1), chances @ none_asked(others)
    seen = rate * with_it / (rate * with_it + (1 - rate) * without)
    assert rate < seen <= rate * (1 + pooled / (there - size + 1 - pooled))
    if there == 12:
        assert seen > 1.09 * rate


def test_what_that_is_of_the_demos_epsilon():
    plan = make_method(load(["method=gdpfed", "privacy.against=outsiders"])).plan
    found = []
    for index, group in enumerate(plan.groups):
        there = len(group.clients)
        size = usual_size(plan, group.expected_cohort_size, there)
        (charge,) = plan.charges(index)
        event: Any = charge.event
        seen = replace(event, sampling_rate=event.sampling_rate * (1 + 1 / (there - size)))
        found.append(compose([replace(charge, event=seen)], plan.delta, schedule="fixed").epsilon)
    assert found == pytest.approx([1.018, 3.05, 6.10], abs=0.005)
