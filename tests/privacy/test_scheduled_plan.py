"""Tests of plans for correlated noise: clients' scheduled rounds (turns), norms, and subtracted noise."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma
from gdpfed.privacy.correlated_noise import densest_turns, prefix_noise, sensitivity
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_group_streams, plan_stream
from gdpfed.privacy.planning.groups import Group, groups_from_shares, merge_groups

SETTINGS: dict[str, tuple[int, int, float, tuple[float, ...]]] = {
    "digits": (360, 30, 0.2, (1, 3, 6)),
    "fmnist": (6000, 50, 0.02, (0.5, 1.5, 3)),
    "hog": (600, 30, 0.1, (2, 6, 12)),
    "hog small": (600, 30, 0.1, (0.5, 1.5, 3)),
}


def budget(setting, groups=None, **options):
    clients, rounds, rate, budgets = SETTINGS[setting]
    terms: dict[str, Any] = {"num_rounds": rounds, "sampling_rate": rate, "delta": clients**-1.1} | options
    return TurnBudget(groups=groups or groups_from_shares(clients, budgets), clipping_norm=2.0, **terms)


def planned(setting, *, turns=None, equal_norms=False, **options):
    return plan_stream(budget(setting, **options), turns=turns, equal_norms=equal_norms)


def epsilons(plan, rounds, delta, distance=1.0):
    """Yield each group's epsilon for the most expensive turns (scheduled rounds) within its limits."""
    for group in plan.groups:
        turns = densest_turns(group.most_turns, group.separation, rounds)
        mu = distance * group.clipping_norm / group.noise_stddev * sensitivity(group.taps, turns, rounds)
        yield gaussian_epsilon(1 / mu, delta)


@pytest.mark.parametrize(
    ("setting", "mu"),
    [
        ("digits", (0.408, 1.000, 1.721)),
        ("fmnist", (0.164, 0.437, 0.800)),
        ("hog", (0.684, 1.657, 2.798)),
        ("hog small", (0.213, 0.538, 0.954)),
    ],
)
def test_mu_of_the_budgets(setting, mu):
    clients, *_, budgets = SETTINGS[setting]
    assert [1 / gaussian_sigma(each, clients**-1.1) for each in budgets] == pytest.approx(mu, abs=5.01e-4)


@pytest.mark.parametrize(
    ("setting", "plain", "turns", "tap", "one_tap", "two_taps"),
    [
        ("digits", 0.00595, (3, 5, 10), 0.695, 0.00330, 0.00329),
        ("fmnist", 0.00252, (1, 1, 1), 0.867, 0.00098, None),
        ("hog", 0.00308, (1, 3, 5), 0.755, 0.00142, 0.00141),
        ("hog small", 0.00927, (1, 3, 5), 0.754, 0.00427, 0.00421),
    ],
)
def test_reference_figures(setting, plain, turns, tap, one_tap, two_taps):
    even = planned(setting, num_taps=0, turns=budget(setting).equal_turns)
    assert even.noise_per_step == pytest.approx(plain, abs=5.01e-6)
    one = planned(setting)
    assert tuple(group.most_turns for group in one.groups) == turns
    assert one.groups[0].taps == (pytest.approx(tap, abs=1.1e-3),)
    assert one.noise_per_step == pytest.approx(one_tap, abs=5.01e-6)
    if two_taps is not None:
        assert planned(setting, num_taps=2).noise_per_step == pytest.approx(two_taps, abs=5.01e-6)


def test_two_taps_help_little_where_h_may_not_rise():
    """Two taps (weights of subtracted noise) make noise per step 0.000918, little below that of one tap."""
    assert planned("fmnist", num_taps=2).noise_per_step == pytest.approx(0.000918, abs=2e-6)


def test_twice_as_many_turns_for_the_largest_budget():
    assert planned("fmnist", turns=(1, 1, 2)).noise_per_step == pytest.approx(0.00080, abs=5.01e-6)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("equal_norms", [False, True])
def test_no_group_pays_more_than_its_budget(adjacency, equal_norms):
    clients, rounds, _, budgets = SETTINGS["digits"]
    plan = planned("digits", adjacency=adjacency, equal_norms=equal_norms)
    distance = 1.0 if adjacency == "zero_out" else 2.0
    paid = list(epsilons(plan, rounds, clients**-1.1, distance))
    assert all(each <= budget for each, budget in zip(paid, budgets, strict=True))
    if equal_norms:
        assert len({group.clipping_norm for group in plan.groups}) == 1
    else:
        assert paid == pytest.approx(budgets, rel=1e-7)
    updates = [group.most_turns for group in plan.groups]
    norms = [group.clipping_norm for group in plan.groups]
    assert np.average(norms, weights=updates) == pytest.approx(2.0)
    assert sum(updates) <= 0.2 * rounds * 3
    heard = sum(120 * turns * norm for turns, norm in zip(updates, norms, strict=True))
    noise = prefix_noise(plan.groups[0].taps, rounds) * plan.groups[0].noise_stddev
    assert plan.noise_per_step == pytest.approx(noise / heard)


@pytest.mark.parametrize("equal_norms", [False, True])
def test_turns_are_the_best_of_all(equal_norms):
    groups = (Group(1.0, range(4)), Group(4.0, range(4, 10)))
    terms: dict[str, Any] = {
        "num_rounds": 12,
        "sampling_rate": 0.4,
        "delta": 1e-3,
        "clipping_norm": 1.0,
    }
    asked = TurnBudget(groups=groups, **terms)
    best = plan_stream(asked, equal_norms=equal_norms)
    every = [
        plan_stream(asked, turns=turns, equal_norms=equal_norms).noise_per_step
        for turns in itertools.product(range(1, 13), repeat=2)
        if 4 * turns[0] + 6 * turns[1] <= 0.4 * 10 * 12
    ]
    assert best.noise_per_step == pytest.approx(min(every), rel=1e-6)


@pytest.mark.parametrize("power", [0, 2])
@pytest.mark.parametrize("num_taps", [0, 1])
def test_turns_of_a_sum_a_group_are_the_best_of_all(power, num_taps):
    """With one sum for each group, the planned numbers of turns (scheduled rounds) give the least noise."""
    sizes, budgets, norm = (4, 4, 6), (1.0, 2.0, 4.0), 2.0
    asked = TurnBudget(
        groups=(Group(1.0, range(4)), Group(2.0, range(4, 8)), Group(4.0, range(8, 14))),
        num_rounds=6,
        sampling_rate=0.5,
        delta=1e-3,
        clipping_norm=norm,
        num_taps=num_taps,
    )

    def plan(turns=None):
        return plan_group_streams(asked, lambda sizes: sizes**power, turns=turns)

    def figure(groups):
        sent = [size * each.most_turns for size, each in zip(sizes, groups, strict=True)]
        noise = (
            own**power * prefix_noise(each.taps, 6) * each.noise_stddev
            for own, each in zip(sent, groups, strict=True)
        )
        return math.hypot(*noise) / sum(own**power * own * norm for own in sent)

    best = plan()
    assert not best.one_sum
    assert best.noise_per_step == pytest.approx(figure(best.groups))
    assert list(epsilons(best, 6, 1e-3)) == pytest.approx(budgets)
    equal = [plan((turns,) * 3).groups for turns in range(1, 7)]
    every = [
        figure([equal[turns - 1][m] for m, turns in enumerate(chosen)])
        for chosen in itertools.product(range(1, 7), repeat=3)
        if sum(size * turns for size, turns in zip(sizes, chosen, strict=True)) <= 0.5 * 14 * 6
    ]
    assert best.noise_per_step == pytest.approx(min(every), rel=1e-4)


def test_one_group_at_the_strictest_budget_and_equal_turns():
    clients, rounds, _, budgets = SETTINGS["digits"]
    groups = groups_from_shares(clients, budgets)
    strictest = planned("digits", groups=(merge_groups(groups),))
    assert [group.most_turns for group in strictest.groups] == [6]
    assert strictest.groups[0].clipping_norm == pytest.approx(2.0)
    assert list(epsilons(strictest, rounds, clients**-1.1)) == pytest.approx([1.0])
    scaled = planned("digits", turns=budget("digits").equal_turns)
    assert [group.most_turns for group in scaled.groups] == [6, 6, 6]
    both = planned("digits")
    assert both.noise_per_step < scaled.noise_per_step < strictest.noise_per_step


def test_a_group_with_a_sum_of_its_own_has_turns_for_a_cohort_that_is_summed():
    """A group with its own sum gets enough turns (scheduled rounds) a client for cohorts of minimum size."""
    groups = tuple(Group(epsilon, range(33 * m, 33 * m + 33)) for m, epsilon in enumerate((1.0, 3.0, 6.0)))
    terms: dict[str, Any] = {"num_rounds": 30, "sampling_rate": 0.5, "delta": 1e-3, "clipping_norm": 1.0}

    def turns(minimum):
        asked = TurnBudget(groups=groups, minimum_cohort=minimum, **terms)
        return [each.most_turns for each in plan_group_streams(asked, np.square).groups]

    assert turns(1)[0] == 1
    assert min(turns(3)) == 3
    assert sum(turns(3)) <= 45


def test_with_everybody_in_every_round_plain_noise_is_best():
    plan = planned("digits", sampling_rate=1.0, turns=(30, 30, 30))
    assert plan.groups[0].taps == (0.0,)
    assert plan.noise_per_step == pytest.approx(0.00266, abs=5.01e-6)


def test_below_one_turn_a_client_some_have_one_at_the_cost_of_one():
    """A third of a turn (scheduled round) per client, in place of one turn, triples the noise per step."""
    one, third = planned("digits", sampling_rate=1 / 30), planned("digits", sampling_rate=1 / 90)
    assert third.groups == one.groups
    assert {each.most_turns for each in third.groups} == {1}
    assert third.noise_per_step == pytest.approx(3 * one.noise_per_step)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sampling_rate": 1.2}, "more than all clients"),
        ({"turns": (0, 5, 5)}, "at least 1"),
        ({"turns": (1, 5, 31)}, "at most one for each round"),
        ({"turns": (1, 5)}, "one each|give one"),
        ({"num_taps": -1}, "at least 0"),
        ({"num_taps": 17}, "at most 16"),
    ],
)
def test_plans_that_cannot_be_are_refused(options, match):
    with pytest.raises(PrivacyError, match=match):
        planned("digits", **options)


def test_a_million_clients_are_planned_at_once():
    groups = groups_from_shares(1_000_000, (1, 3, 6), (0.54, 0.37, 0.09))
    plan = plan_stream(
        TurnBudget(groups=groups, num_rounds=100, sampling_rate=0.05, delta=1e-7, clipping_norm=1.0)
    )
    sent = sum(group.size * each.most_turns for group, each in zip(groups, plan.groups, strict=True))
    assert 0.97 * 5_000_000 < sent <= 5_000_000
    assert math.isfinite(plan.noise_per_step)
