"""Tests of sums in scheduled rounds (turns) of each client, and of ledgers that check the turns."""

import contextlib
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import sensitivity
from gdpfed.privacy.events import Gaussian, SampledGaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.ledgers.terms_options import SampledTerms
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.mechanisms.scheduled.turns import DealtTurns
from gdpfed.privacy.planning.groups import Group, groups_from_sizes
from gdpfed.privacy.release import NoiseAt, Release
from gdpfed.privacy.sampling.cohort_sizes import skipped_fractions
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.privacy.sampling.laws import sampling_law

ROUNDS, DELTA, KEY = 12, 1e-3, bytes(32)
GROUPS = (Group(1.0, range(10)), Group(3.0, (30, 12, 14, 20, 27)))


def plan_of(**options):
    terms: dict[str, Any] = {
        "groups": GROUPS,
        "num_rounds": ROUNDS,
        "sampling_rate": 0.3,
        "clipping_norm": 1.0,
        "delta": DELTA,
    }
    turns, hidden = options.pop("turns", (2, 5)), options.pop("sums_hidden", True)
    asked = TurnBudget(**terms | options)
    return make_scheduled_plan(asked, plan_stream(asked, turns=turns), sums_hidden=hidden)


def release(plan, members, **changed):
    largest = max(group.clipping_norm for group in plan.groups)
    norms = [next(g.clipping_norm for g in plan.groups if client in g.clients) for client in members]
    fields: dict[str, Any] = {
        "name": "all groups",
        "clients": np.array(members),
        "clipping_norm": largest,
        "noise_multiplier": plan.groups[0].noise_stddev / largest,
        "noise_at": NoiseAt.CLIENT,
        "client_clipping_norms": np.array(norms),
        "taps": taps_of(plan.mechanism, 0),
    }
    return Release(**fields | changed)


def promised(plan, m=0, **changed):
    said: dict[str, Any] = {"dropout_tolerance": 0.0, "corrupt_tolerance": 0.0}
    return terms_of(plan, m, "a run", **said | changed)


def cost(plan, m, turns, rounds=ROUNDS):
    """Return the epsilon of a client's turns (rounds in which it sends), by explicit matrices."""
    taps = taps_of(plan.mechanism, 0)
    matrix = np.linalg.inv(
        np.eye(rounds) - sum(tap * np.eye(rounds, k=-lag) for lag, tap in enumerate(taps, start=1))
    )
    group, chosen = plan.groups[m], np.zeros(rounds)
    chosen[list(turns)] = 1.0
    mu = group.clipping_norm * float(np.linalg.norm(matrix @ chosen)) / group.noise_stddev
    return gaussian_epsilon(1 / mu, plan.delta)


@pytest.mark.parametrize("turns", [(1, 1), (2, 5), (3, 4), (7, 8), (12, 11)])
@pytest.mark.parametrize("size", [1, 5, 12, 37])
def test_every_client_has_its_turns_and_every_round_as_many_clients(turns, size):
    plan = plan_of(groups=groups_from_sizes(2.0, (size, 7)), turns=turns, sampling_rate=1.0)
    drawn = [draw_cohorts(plan, index, KEY) for index in range(ROUNDS)]
    for m, group in enumerate(plan.groups):
        rounds: dict[int, list[int]] = {client: [] for client in group.clients}
        for index, cohorts in enumerate(drawn):
            assert abs(len(cohorts[m]) - group.expected_cohort_size) < 1
            assert len(cohorts[m]) <= plan.law.largest_expected(group.sampling_rate, len(group.clients))
            for client in cohorts[m].tolist():
                rounds[client].append(index)
        assert {len(taken) for taken in rounds.values()} == {turns[m]}
        apart = min((b - a for taken in rounds.values() for a, b in pairwise(taken)), default=ROUNDS)
        assert apart >= ROUNDS // turns[m]


def test_where_turns_divide_the_rounds_client_j_begins_in_round_j_mod_b():
    plan = plan_of(groups=groups_from_sizes(2.0, (12,)), turns=(3,))
    for index in range(ROUNDS):
        assert draw_cohorts(plan, index, KEY)[0].tolist() == [j for j in range(12) if j % 4 == index % 4]


def test_whose_turn_it_is_takes_no_longer_where_a_schedule_names_a_huge_width():
    """The width of a schedule comes from a server; a loop over this one would not end."""
    huge = DealtTurns((3, 4, 8), 2**62, 2**61 + 1)
    assert [huge.due(index).tolist() for index in (0, 1)] == [[3, 4], [3, 8]]


def test_below_one_turn_a_client_as_many_have_one_as_there_are_messages_for():
    """At a rate of 0.0151, each of twelve rounds asks one 67th of the clients, and nobody is asked twice."""
    plan = plan_of(groups=groups_from_sizes(2.0, (1000,)), turns=None, sampling_rate=0.0151, num_taps=1)
    assert plan.sampling_rate == pytest.approx(1 / 67)
    drawn = [draw_cohorts(plan, index, KEY)[0] for index in range(ROUNDS)]
    assert all(abs(len(cohort) - 1000 / 67) < 1 for cohort in drawn)
    asked = np.concatenate(drawn)
    assert len(set(asked.tolist())) == len(asked)
    due = plan.mechanism.turns_due(0, plan.groups[0], ROUNDS - 1)
    assert np.flatnonzero(due).tolist() == sorted(asked.tolist())
    assert due.max() == 1
    assert plan.messages_a_round == pytest.approx((2 * len(asked) - len(drawn[-1])) / ROUNDS, rel=0.02)


@pytest.mark.parametrize("turns", [(1, 1), (2, 5), (5, 8), (12, 11)])
def test_messages_are_updates_and_corrections_of_those_whose_turn_it_is_not(turns):
    plan = plan_of(groups=groups_from_sizes(2.0, (12, 24)), turns=turns, sampling_rate=1.0, num_taps=2)
    drawn = [[set(cohort.tolist()) for cohort in draw_cohorts(plan, index, KEY)] for index in range(ROUNDS)]
    sent = 0
    for m in range(2):
        lags = [lag for lag, tap in enumerate((1.0, *taps_of(plan.mechanism, m))) if tap > 0]
        members = [[drawn[index - lag][m] for lag in lags if index >= lag] for index in range(ROUNDS)]
        sent += sum(len(set().union(*each)) for each in members)
    assert plan.messages_a_round == pytest.approx(sent / ROUNDS)
    assert replace(plan, sums_hidden=False).messages_a_round == pytest.approx(plan.sampling_rate * 36)


def test_a_plan_says_one_epsilon_and_hides_nothing():
    plan = plan_of()
    assert not plan.sample_is_secret
    for m, group in enumerate(plan.groups):
        limits = plan.mechanism.limits[m]
        densest = range(0, limits.most_turns * limits.separation, limits.separation)
        assert group.epsilon_accounted == pytest.approx(cost(plan, m, densest))
        assert group.epsilon_accounted == pytest.approx(group.epsilon) == group.epsilon_against_server
        assert plan.epsilon_after(m, ROUNDS) == pytest.approx(group.epsilon)
        assert plan.epsilon_against_members(m, 99) == pytest.approx(group.epsilon)
        assert plan.epsilon_after(m, 0) == plan.epsilon_against_members(m, 0) == 0.0
        spent = [plan.epsilon_after(m, rounds) for rounds in range(ROUNDS + 1)]
        assert spent == sorted(spent)
        assert plan.epsilon_after(m, 4) == pytest.approx(cost(plan, m, [0, 2] if m else [0], rounds=4))
    assert plan.to_dict()["groups"][1]["turns"] == {
        "most_turns": 5,
        "separation": 2,
        "taps": list(taps_of(plan.mechanism, 0)),
    }
    assert math.isinf(plan_of(sums_hidden=False).groups[0].epsilon_against_server)
    assert skipped_fractions(plan, 1).rounds == 0.0


def test_a_run_of_the_schedule_is_charged_and_restored():
    plan = plan_of()
    ledger, taken = Ledger(plan), Counter[int]()
    for index in range(ROUNDS):
        cohorts = draw_cohorts(plan, index, KEY)
        assert [each.tolist() for each in ledger.with_steps_left(cohorts, index)] == [
            each.tolist() for each in cohorts
        ]
        ledger.open_round(index, cohorts)
        clients = np.concatenate(cohorts).tolist()
        taken.update(clients)
        ledger.charge(index, [release(plan, clients)])
        assert max(ledger.against_server()) <= max(ledger.spent())
        ledger = Ledger.from_dict(plan, ledger.to_dict())
    assert ledger.spent() == pytest.approx((1.0, 3.0))
    assert {taken[client] for client in GROUPS[0].clients} == {2}
    assert ledger.against_members() == pytest.approx((1.0, 3.0), rel=0.1)
    with pytest.raises(BudgetExhausted, match="beyond the plan's last one, 11"):
        ledger.open_round(ROUNDS, ([], []))


def test_a_turn_that_was_missed_is_moved_into_a_free_place_as_far_as_the_limits_let_it():
    """A missed turn (scheduled round) moves to a later round with room, far enough from the other turns."""
    plan = plan_of(groups=groups_from_sizes(2.0, (12,)), turns=(3,))
    ledger, rounds = Ledger(plan), dict[int, list[int]]()
    for index in range(ROUNDS):
        present = set(range(12)) - ({5} if index == 1 else set()) - ({9} if index >= 5 else set())
        drawn = ledger.with_steps_left(draw_cohorts(plan, index, KEY), index)
        here = [each[np.isin(each, list(present))] for each in drawn]
        (cohort,) = moved = ledger.with_moved_turns(here, index, present)
        assert len(cohort) <= 3
        ledger.open_round(index, moved)
        for client in cohort.tolist():
            rounds.setdefault(client, []).append(index)
    # There is no place before round 5, in which 9 is away; then 4 rounds between any two, or none.
    assert rounds.pop(5) == [5, 9]
    assert rounds.pop(9) == [1]
    assert rounds == {j: [j % 4, j % 4 + 4, j % 4 + 8] for j in (0, 1, 2, 3, 4, 6, 7, 8, 10, 11)}


def test_the_ledger_refuses_turns_too_many_or_too_close():
    plan = plan_of()
    ledger = Ledger(plan)
    ledger.open_round(0, ([0], [12]))
    with pytest.raises(
        PrivacyError, match="client 0 has no turn in round 1: it has had a turn 1 rounds away"
    ):
        ledger.open_round(1, ([0], []))
    assert ledger.charged_rounds == 1
    assert [each.tolist() for each in ledger.with_steps_left((np.array([0, 1]), np.array([12])), 1)] == [
        [1],
        [],
    ]
    for index in range(1, 6):
        ledger.open_round(index, ([], []))
    ledger.open_round(6, ([0], []))
    with pytest.raises(
        PrivacyError, match="client 0 has no turn in round 7: it has had 2 turns, and may have 2"
    ):
        ledger.open_round(7, ([0], []))
    # A turn that client 1 has missed is moved.
    ledger.open_round(7, ([1], [12]))
    assert ledger.against_members()[0] == pytest.approx(cost(plan, 0, [0, 6], rounds=8))


@pytest.mark.parametrize(
    ("turns", "match"),
    [([0, 3], "3 rounds away"), ([0, 6, 7], "may have 2"), ([0, 0], "in order"), ([0, 20], "of 8 that are")],
)
def test_a_ledger_that_breaks_the_limits_is_not_read(turns, match):
    plan = plan_of()
    ledger = Ledger(plan)
    for index in range(8):
        ledger.open_round(index, ([0] if index in (0, 6) else [], []))
    saved = ledger.to_dict()
    saved["taken"]["0"] = turns
    saved["participations"][0]["0"] = len(turns)
    with pytest.raises(PrivacyError, match=match):
        Ledger.from_dict(plan, saved)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"taps": ()}, "noise with the taps"),
        ({"taps": (0.9,)}, "noise with the taps"),
        ({"noise_multiplier": 0.1}, "below the plan's"),
        ({"noise_at": NoiseAt.NOWHERE}, "added nowhere"),
        ({"noise": "discrete_gaussian"}, "discrete_gaussian noise is asked for"),
        ({"client_clipping_norms": np.array([9.0, 1.0])}, "norm"),
        ({"clients": np.array([3, 12])}, "not drawn"),
    ],
)
def test_requests_that_break_the_plan_are_refused(changed, match):
    plan = plan_of()
    ledger = Ledger(plan)
    ledger.open_round(0, ([0], [12]))
    fields = {"clipping_norm": 10.0, "noise_multiplier": 1.0} if "client_clipping_norms" in changed else {}
    with pytest.raises(PrivacyError, match=match):
        ledger.charge(0, [release(plan, [0, 12], **fields | changed)])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_whatever_is_asked_turns_and_budgets_hold(data):
    plan = plan_of()
    ledger, client = Ledger(plan), ClientLedger()
    terms = promised(plan, 1)
    client.begin(terms, epsilons=[3.0], delta=DELTA)
    for index in range(ROUNDS):
        wanted = [data.draw(st.sets(st.sampled_from(list(group.clients)))) for group in GROUPS]
        arrays = [np.array(sorted(each), dtype=np.int64) for each in wanted]
        ledger.open_round(index, ledger.with_steps_left(arrays, index))
        if data.draw(st.booleans()):
            with contextlib.suppress(PrivacyError):
                client.charge("a run", index)
    for m, group in enumerate(GROUPS):
        limits = plan.mechanism.limits[m]
        for each in group.clients:
            turns = ledger.to_dict()["taken"].get(str(each), [])
            assert len(turns) <= limits.most_turns
            assert all(later - turn >= limits.separation for turn, later in pairwise(turns))
        assert ledger.against_members()[m] <= group.epsilon
    taken = client.run("a run").rounds
    assert len(taken) <= terms.most_turns
    assert client.epsilon(DELTA) == pytest.approx(cost(plan, 1, taken) if taken else 0.0)
    assert client.epsilon(DELTA) <= 3.0


def test_terms_go_through_a_message():
    terms = promised(plan_of(), 1)
    assert Terms.from_scalars(terms.to_scalars()) == terms
    assert (terms.most_turns, terms.separation, terms.num_rounds) == (5, 2, ROUNDS)
    assert terms.in_words().startswith("5 of 12 rounds, at least 2 apart")
    assert not isinstance(terms, SampledTerms)
    assert terms.updates_in(0) == 1


def test_a_client_pays_for_turns_taken_and_agrees_to_the_most_expensive():
    plan = plan_of()
    terms, ledger = promised(plan, 1), ClientLedger()
    assert ledger.epsilon(DELTA, also=terms) == pytest.approx(3.0)
    assert ledger.epsilon(DELTA, also=terms, at_most=2) == pytest.approx(cost(plan, 1, [0, 2]))
    late = promised(plan, 1, first_round=8)
    assert ledger.epsilon(DELTA, also=late) == pytest.approx(cost(plan, 1, [8, 10]))
    ledger.begin(terms, epsilons=[3.0], delta=DELTA)
    assert ledger.epsilon(DELTA) == 0.0
    for index in (1, 4):
        assert ledger.epsilon(DELTA, also=terms, turn=index) > ledger.epsilon(DELTA)
        ledger.charge("a run", index)
    assert ledger.epsilon(DELTA) == pytest.approx(cost(plan, 1, [1, 4]))
    assert ledger.epsilon_against_server(DELTA) == ledger.epsilon(DELTA)
    assert ledger.epsilon_against_server(DELTA, one_more_in=("a run", 9)) == pytest.approx(
        cost(plan, 1, [1, 4, 9])
    )
    again = ClientLedger.from_dict(ledger.to_dict())
    assert again.to_dict() == ledger.to_dict()
    plain = terms_of(plan, 1, "another", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    again.begin(plain, epsilons=[9.0], delta=DELTA)
    again.charge("another", 0)
    sigma = plan.groups[1].noise_stddev / plan.groups[1].clipping_norm
    taps = taps_of(plan.mechanism, 0)
    mu2 = sum(sensitivity(taps, turns, ROUNDS) ** 2 for turns in [(1, 4), (0,)]) / sigma**2
    assert again.epsilon(DELTA) == pytest.approx(gaussian_epsilon(1 / math.sqrt(mu2), DELTA))


def test_a_client_that_is_offered_a_run_again_counts_the_turns_that_it_had():
    plan = plan_of()
    terms, ledger = promised(plan, 1), ClientLedger()
    ledger.begin(terms, epsilons=[3.0], delta=DELTA)
    ledger.charge("a run", 0)
    again = replace(terms, first_round=5)
    # Turn 0 was taken; four more may follow from round 5 on, two rounds apart.
    assert ledger.epsilon(DELTA, also=again) == pytest.approx(cost(plan, 1, [0, 5, 7, 9, 11]))
    assert ledger.epsilon(DELTA, also=again, at_most=2) == pytest.approx(cost(plan, 1, [0, 5]))
    assert ledger.epsilon(DELTA, also=again, at_most=1) == pytest.approx(cost(plan, 1, [0]))


def test_a_client_refuses_turns_of_its_own_accord():
    ledger = ClientLedger()
    ledger.begin(promised(plan_of(), 1), epsilons=[3.0], delta=DELTA)
    ledger.charge("a run", 3)
    for index in (2, 4):
        with pytest.raises(PrivacyError, match=f"round {index} of run a run is not a turn of this client"):
            ledger.check_round("a run", index)
    with pytest.raises(PrivacyError, match="had its update already"):
        ledger.charge("a run", 3)
    for index in (5, 7, 9, 11):
        ledger.charge("a run", index)
    with pytest.raises(PrivacyError, match="may have 5"):
        ledger.charge("a run", 0)
    damaged = ledger.to_dict()
    damaged["runs"][0]["rounds"][1] = 4
    with pytest.raises(PrivacyError, match="not a turn of this client"):
        ClientLedger.from_dict(damaged)


def told(**changed):
    fields = {"work": "update", "noise": "gaussian", "clipping_norm": 0.5, "weight": 1.0, "records": None}
    return SimpleNamespace(**fields | changed)


def test_instructions_and_terms_that_break_what_was_agreed():
    terms = promised(plan_of(), 1)
    norm = terms.event.clipping_norm
    assert terms.broken_by(0, told(clipping_norm=norm), 100.0) == ""
    assert "above the" in terms.broken_by(0, told(clipping_norm=norm * 1.01), 100.0)
    assert "asks for discrete_gaussian noise" in terms.broken_by(0, told(noise="discrete_gaussian"), 100.0)
    assert "asks for dp_sgd" in terms.broken_by(0, told(work="dp_sgd"), 100.0)
    assert terms.owed_noise(5) == terms.event.noise_stddev
    ledger = ClientLedger()
    ledger.begin(terms, epsilons=[3.0], delta=DELTA)
    charge = replace(terms.charges[0], event=replace(terms.event, taps=(0.1,)))
    for other in [replace(terms, charges=(charge,)), replace(terms, epsilon=2.0)]:
        with pytest.raises(PrivacyError, match="other terms"):
            ledger.begin(other, epsilons=[3.0], delta=DELTA)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"most_turns": 7}, "do not fit in 12 rounds"),
        ({"most_turns": 4}, "take part 4 times, 2 rounds apart or more, and do not charge"),
        ({"separation": 1}, "do not charge the most expensive such rounds"),
        ({"most_turns": 0}, "at least 1"),
        (
            {"charges": (Charge(event=Gaussian(noise_stddev=1.0, clipping_norm=1.0), count=1),)},
            "another charge",
        ),
    ],
)
def test_terms_that_say_too_little_are_refused(changed, match):
    with pytest.raises(PrivacyError, match=match):
        replace(promised(plan_of(), 1), **changed)


def test_several_streams_or_none_with_noise_are_refused():
    terms = promised(plan_of(), 1)
    with pytest.raises(PrivacyError, match="several streams"):
        replace(terms, charges=(replace(terms.charges[0], count=2),))
    silent = replace(terms.charges[0], event=replace(terms.event, noise_stddev=0.0))
    with pytest.raises(PrivacyError, match="without noise"):
        replace(terms, charges=(silent,))


def test_turns_are_no_secret_sample():
    with pytest.raises(PrivacyError, match="is not known: use fixed_size or poisson"):
        SampledGaussian(
            sampling="scheduled", sampling_rate=0.1, group_size=10, noise_stddev=1.0, clipping_norm=1.0
        )
    with pytest.raises(PrivacyError, match="ask their mechanism"):
        sampling_law("scheduled").event(
            rate=0.1,
            group_size=10,
            noise_stddev=1.0,
            clipping_norm=1.0,
            adjacency="zero_out",
            noise="gaussian",
            num_sums=1,
        )
