import json
import math
from dataclasses import replace

import pytest

from gdpfed.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.accountants.gaussian import epsilon_against_server
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanisms.sampled.planner import make_plan, plain_plan
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.privacy.sampling.cohorts import draw_cohorts

KEY = b"k" * 32
PLAN = make_plan(
    groups=groups_from_shares(40, (1.0, 3.0)), num_rounds=6, sampling_rate=0.2, clipping_norm=1.0
)


def lasting(num_rounds):
    """Return the plan of this file with another number of rounds, and with the same noise in each round."""
    groups = tuple(
        replace(group, ranges=(replace(group.ranges[0], num_rounds=num_rounds),)) for group in PLAN.groups
    )
    return replace(PLAN, groups=groups, num_rounds=num_rounds)


def run(ledger, plan, rounds):
    for round_index in range(ledger.charged_rounds, rounds):
        ledger.open_round(round_index, draw_cohorts(plan, round_index, KEY))


def test_spending_ends_at_what_the_plan_accounts():
    ledger = Ledger(PLAN)
    assert ledger.spent() == (0.0, 0.0)
    before: tuple[float, ...] = (0.0, 0.0)
    for round_index in range(6):
        ledger.open_round(round_index, draw_cohorts(PLAN, round_index, KEY))
        assert all(now > then for now, then in zip(ledger.spent(), before, strict=True))
        before = ledger.spent()
    assert ledger.spent() == tuple(group.epsilon_accounted for group in PLAN.groups)
    assert all(
        0 <= group.epsilon - spent < 3e-3 for group, spent in zip(PLAN.groups, ledger.spent(), strict=True)
    )


def test_training_stops_before_a_budget_is_exceeded():
    longer = lasting(100)
    ledger = Ledger(longer)
    run(ledger, longer, 6)
    with pytest.raises(BudgetExhausted, match=r"round 6 would take group 0 to epsilon 1.* its budget 1;"):
        ledger.open_round(6, draw_cohorts(longer, 6, KEY))
    assert ledger.charged_rounds == 6
    assert all(spent <= budget for spent, budget in zip(ledger.spent(), (1.0, 3.0), strict=True))


def test_rounds_beyond_the_plan_are_refused_even_within_the_budget():
    shorter = lasting(2)
    ledger = Ledger(shorter)
    run(ledger, shorter, 2)
    with pytest.raises(BudgetExhausted, match="round 2 lies beyond the plan's last one, 1"):
        ledger.open_round(2, draw_cohorts(PLAN, 2, KEY))


@pytest.mark.parametrize(
    ("round_index", "message"),
    [
        (0, "round 0 is charged already; the next to charge is 1"),
        (2, "round 2 is out of order; the next to charge is 1"),
        (-1, "round_index is -1"),
        (1.0, "round_index is 1.0; give a whole number"),
    ],
)
def test_rounds_are_charged_once_and_in_order(round_index, message):
    ledger = Ledger(PLAN)
    run(ledger, PLAN, 1)
    with pytest.raises(PrivacyError, match=message):
        ledger.open_round(round_index, draw_cohorts(PLAN, 1, KEY))
    assert ledger.charged_rounds == 1


def test_the_server_knows_each_clients_own_participations():
    ledger = Ledger(PLAN)
    ledger.open_round(0, ([0, 1], []))
    assert ledger.against_server()[1] == 0.0
    ledger.open_round(1, ([1], [20]))
    ledger.open_round(2, ([1, 7], []))
    assert [ledger.participations(client) for client in (0, 1, 2, 20)] == [1, 3, 0, 1]
    expected = (
        epsilon_against_server(PLAN.groups[0].noise_multiplier, 3, PLAN.delta),
        epsilon_against_server(PLAN.groups[1].noise_multiplier, 1, PLAN.delta),
    )
    assert ledger.against_server() == expected


def test_without_hidden_sums_nothing_holds_against_the_server():
    ledger = Ledger(replace(PLAN, sums_hidden=False))
    assert ledger.against_server() == (0.0, 0.0)
    ledger.open_round(0, ([1], []))
    assert ledger.against_server() == (math.inf, 0.0)


def test_without_privacy_everything_is_spent_with_the_first_round():
    plan = plain_plan(groups=groups_from_shares(40, (1.0, 3.0)), num_rounds=2, sampling_rate=0.5)
    ledger = Ledger(plan)
    assert ledger.spent() == (0.0, 0.0)
    run(ledger, plan, 2)
    assert ledger.spent() == (math.inf, math.inf)
    assert ledger.against_server() == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        (([0],), "1 cohorts for 2 groups; give one each"),
        (([0, 0], []), "the cohort of group 0 repeats a client"),
        (([25], []), "client 25 is not in group 0"),
        (([], [40]), "client 40 is not in group 1"),
    ],
)
def test_cohorts_that_the_plan_cannot_draw_are_refused(cohorts, message):
    ledger = Ledger(PLAN)
    with pytest.raises(PrivacyError, match=message):
        ledger.open_round(0, cohorts)
    assert ledger.charged_rounds == 0
    assert ledger.against_server() == (0.0, 0.0)


def test_fixed_size_cohorts_have_their_size():
    fixed = make_plan(
        groups=(Group(2.0, [3, 5, 8, 13, 21]),),
        num_rounds=3,
        sampling_rate=0.4,
        clipping_norm=1.0,
        sampling="fixed_size",
        accountant="rdp",
        delta=1e-3,
    )
    ledger = Ledger(fixed)
    ledger.open_round(0, draw_cohorts(fixed, 0, KEY))
    with pytest.raises(PrivacyError, match="group 0: it has 3 clients; fixed_size sampling draws exactly 2"):
        ledger.open_round(1, ([3, 5, 8],))


def test_saving_and_loading_changes_nothing():
    ledger = Ledger(PLAN)
    run(ledger, PLAN, 4)
    again = Ledger.from_dict(PLAN, json.loads(json.dumps(ledger.to_dict())))
    assert again.to_dict() == ledger.to_dict()
    assert again.spent() == ledger.spent()
    assert again.against_server() == ledger.against_server()
    for either in (ledger, again):
        run(either, PLAN, 6)
    assert again.to_dict() == ledger.to_dict()
    with pytest.raises(PrivacyError, match="round 3 is charged already"):
        again.open_round(3, draw_cohorts(PLAN, 3, KEY))


def saved(**changes):
    ledger = Ledger(PLAN)
    run(ledger, PLAN, 2)
    return {**ledger.to_dict(), **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the ledger is a list, not a mapping"),
        (saved(extra=1), "unknown entries: extra"),
        ({k: v for k, v in saved().items() if k != "plan"}, "lacks or has unknown entries: plan"),
        (saved(version=5), "the ledger has version 5; this program reads 4"),
        (saved(plan="abc"), r"belongs to another plan \(abc\); resume with the configuration"),
        (saved(charged_rounds=-1), "charged_rounds is -1; it must be at least 0"),
        (saved(charged_rounds=True), "charged_rounds is True; give a whole number"),
        (saved(participations=[{}]), "participations are not a list of 2 groups"),
        (saved(charges=[[]]), "charges are not a list of 2 groups"),
        (saved(charges=[[], 3]), "charges are not those of 2 rounds of the plan"),
        (saved(charged_rounds=3), "charges are not those of 3 rounds of the plan"),
        (saved(participations=[{}, []]), "participations of group 1 are list, not a mapping"),
        (saved(participations=[{"x": 1}, {}]), "count of client x has no client id"),
        (
            saved(participations=[{"30": 1}, {}]),
            "client 30 is under group 0, of which the client is not a member",
        ),
        (saved(participations=[{"3": 3}, {}]), "count of client 3 is 3, above the 2 charged rounds"),
        (saved(participations=[{"3": 0}, {}]), "count of client 3 is 0; it must be at least 1"),
    ],
)
def test_damaged_ledgers_are_told_in_one_line(data, message):
    with pytest.raises(PrivacyError, match=message):
        Ledger.from_dict(PLAN, data)


def test_a_ledger_of_another_plan_is_refused():
    other = replace(PLAN, clipping_norm=2.0)
    with pytest.raises(PrivacyError, match="belongs to another plan"):
        Ledger.from_dict(other, saved())
