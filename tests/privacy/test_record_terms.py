"""Tests of a client's ledger with charges for DP-SGD steps: epsilon of the client and of its records."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.calibration import steps_epsilon
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares

DELTA = 1e-5
SCHEDULE = (5, 5, 5, 3)
NOISE = 1.5
GROUPS = groups_from_shares(4, (2.0,))
PLAN = record_plan(
    groups=GROUPS,
    num_rounds=4,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=SCHEDULE, noise_multiplier=NOISE),
)
TERMS: Any = terms_of(PLAN, 0, "one", dropout_tolerance=0.2, corrupt_tolerance=0.0)
# 70, 20 and 10 % of every client's records.
SEVERAL = record_plan(
    groups=groups_from_shares(4, (1.0,)),
    num_rounds=4,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=SCHEDULE),
    record_budgets=[(0.5, 0.7), (1.0, 0.2), (4.0, 0.1)],
)
GROUPED: Any = terms_of(SEVERAL, 0, "grouped", dropout_tolerance=0.2, corrupt_tolerance=0.0)
OF_CLIENTS = terms_of(
    make_plan(groups=GROUPS, num_rounds=2, sampling_rate=1.0, clipping_norm=1.0, delta=DELTA),
    0,
    "of clients",
    dropout_tolerance=0.0,
    corrupt_tolerance=0.0,
)


def cost(rate, noise, steps):
    return steps_epsilon(
        make_accountant("pld"), batch_rate=rate, noise_multiplier=noise, num_steps=steps, delta=DELTA
    )


def begun(*terms):
    ledger = ClientLedger()
    for each in terms:
        ledger.begin(each, epsilons=[2.0], delta=DELTA)
    return ledger


def test_terms_say_which_steps_a_record_pays_for_and_survive_a_message():
    assert TERMS.unit == "record"
    assert (TERMS.num_rounds, TERMS.num_steps, TERMS.step_noise) == (4, sum(SCHEDULE), NOISE)
    assert (TERMS.records.work, TERMS.records.clipping_norm) == ("dp_sgd", 1.0)
    assert TERMS.records.batch_rates == (0.05,)
    assert GROUPED.records.shares == (0.7, 0.2, 0.1)
    for terms in (TERMS, GROUPED):
        assert Terms.from_scalars(json.loads(json.dumps(terms.to_scalars()))) == terms
    assert "records" not in OF_CLIENTS.to_scalars()


def records_with(**changes):
    return json.dumps(json.loads(str(TERMS.to_scalars()["records"])) | changes)


def charges_with(**changes):
    charges = json.loads(str(TERMS.to_scalars()["charges"]))
    charges[0]["event"] |= changes
    return json.dumps(charges)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"records": "3"}, "the terms' records are not a JSON mapping of batch_rates, clipping_norm"),
        ({"records": records_with(work="update")}, "the terms' work=update does not take"),
        ({"records": records_with(num_rounds=0)}, "the terms' num_rounds is 0"),
        ({"records": records_with(clipping_norm=-1.0)}, "clipping_norm of a record is -1.0"),
        ({"records": records_with(batch_rates=[])}, r"batch_rates are \[\]; give from 1"),
        ({"records": records_with(batch_rates=[0.05] * 101)}, "; give from 1 to 100"),
        ({"records": records_with(batch_rates=[1.5])}, "one of the terms' batch_rates is 1.5"),
        ({"records": records_with(batch_rates=[0.05, 0.1])}, "2 batch_rates and 1 shares"),
        ({"records": records_with(work="window_steps")}, "every step by itself, and window_steps costs wind"),
        ({"records": records_with(batch_rates=[0.04])}, "not those of the first of their batch_rates"),
        ({"charges": charges_with(noise_multiplier=9.0)}, "with one batch rate and one noise"),
        ({"first_round": 4}, "first_round is 4; it must be below their 4 rounds"),
    ],
)
def test_terms_that_contradict_themselves_are_refused(changes, words):
    with pytest.raises(PrivacyError, match=words):
        Terms.from_scalars(TERMS.to_scalars() | changes)


def test_terms_of_one_unit_in_the_words_of_the_other_are_refused():
    without = {name: value for name, value in TERMS.to_scalars().items() if name != "records"}
    with pytest.raises(PrivacyError, match="lack entries or have unknown ones: records"):
        Terms.from_scalars(without)
    with pytest.raises(PrivacyError, match="lack entries or have unknown ones: records"):
        Terms.from_scalars(OF_CLIENTS.to_scalars() | {"records": TERMS.to_scalars()["records"]})
    with pytest.raises(PrivacyError, match="record_sums charge a client"):
        Terms.from_scalars(TERMS.to_scalars() | {"charges": OF_CLIENTS.to_scalars()["charges"]})
    with pytest.raises(PrivacyError, match="sampled_sums charge a record"):
        Terms.from_scalars(OF_CLIENTS.to_scalars() | {"charges": TERMS.to_scalars()["charges"]})


def test_a_run_costs_all_its_steps_when_it_begins():
    ledger = ClientLedger()
    offered = ledger.epsilon(DELTA, unit="record", also=TERMS)
    ledger.begin(TERMS, epsilons=[2.0], delta=DELTA)
    # The same figure as the plan's, however the steps are spread over the rounds.
    assert ledger.epsilon(DELTA, unit="record") == offered == pytest.approx(cost(0.05, NOISE, 18), rel=1e-9)
    ledger.charge("one", 2, 4)
    assert ledger.epsilon(DELTA, unit="record") == offered
    assert ledger.epsilon_against_server(DELTA, unit="record") == pytest.approx(cost(0.05, NOISE, 4))
    nine = ledger.epsilon_against_server(DELTA, unit="record", one_more_in=("one", 3), more_steps=5)
    assert nine == pytest.approx(cost(0.05, NOISE, 9))


def test_clients_and_records_have_figures_of_their_own():
    both = begun(OF_CLIENTS, TERMS)
    assert both.epsilon(DELTA) == begun(OF_CLIENTS).epsilon(DELTA) > 0
    assert both.epsilon(DELTA, unit="record") == begun(TERMS).epsilon(DELTA, unit="record") > 0
    assert begun(TERMS).epsilon(DELTA) == begun(TERMS).epsilon_against_server(DELTA) == 0.0
    with pytest.raises(PrivacyError, match="a record's charges cannot be added to a client's"):
        both.epsilon(DELTA, also=TERMS)


def test_steps_are_taken_once_a_round_and_no_more_than_agreed():
    ledger = begun(TERMS)
    for index, steps in ((0, 5), (3, 12)):
        ledger.charge("one", index, steps)
    refused = [
        (0, 1, "round 0 of run one has had its update already"),
        (4, 1, "round 4 of run one lies beyond the 4"),
        (1, 0, "the steps of round 1 of run one is 0; it must be at least 1"),
        (1, 2, "round 1 of run one would take 2 steps, and 1 of the 18 of its terms are left"),
    ]
    for index, steps, words in refused:
        with pytest.raises(PrivacyError, match=words):
            ledger.charge("one", index, steps)
    ledger.charge("one", 1, 1)
    # Who has run out has taken exactly what the terms admit.
    (run,) = ledger.runs
    assert (run.steps, sum(run.steps)) == ([5, 12, 1], TERMS.num_steps)
    with pytest.raises(PrivacyError, match="have paid for all 18 steps of run one"):
        ledger.check_round("one", 2)


def test_who_comes_late_pays_for_no_more_than_the_rounds_that_are_left():
    late = replace(TERMS, first_round=2)
    assert late.num_steps == 10
    ledger = begun(late)
    assert ledger.epsilon(DELTA, unit="record") == pytest.approx(cost(0.05, NOISE, 10))
    with pytest.raises(PrivacyError, match="lies before round 2"):
        ledger.charge("one", 1, 1)


def test_every_group_of_records_has_its_own_figure_and_another_run_may_mix_them():
    rates, ledger = GROUPED.records.batch_rates, ClientLedger()
    own = [ledger.epsilon(DELTA, unit="record", also=GROUPED, record_group=group) for group in range(3)]
    assert own == pytest.approx([cost(rate, GROUPED.step_noise, 18) for rate in rates])
    assert own[0] <= 0.5 < own[1] <= 1.0 < own[2] <= 4.0
    assert ledger.epsilon(DELTA, unit="record", also=GROUPED) == own[2]
    dealt = replace(GROUPED, dealt_by="the hash of data")
    ledger.begin(dealt, epsilons=[0.5, 1.0, 4.0], delta=DELTA)
    again = replace(dealt, run="again")
    alike = ledger.epsilon(DELTA, unit="record", also=again, record_group=0)
    assert own[0] < alike < own[2]
    # With other shares, or dealt out by another seed, a record of the first group may have been in the last.
    for changes in ({"shares": (0.1, 0.2, 0.7)}, {"seed": 1}):
        mixed = replace(again, records=replace(GROUPED.records, **changes))
        assert ledger.epsilon(DELTA, unit="record", also=mixed, record_group=0) > own[2]


def test_shares_and_seed_alone_do_not_say_that_a_record_is_in_the_same_group_in_two_runs():
    """If two runs form budget groups from different data, a record is charged as if its group had changed."""
    ledger = begun(replace(GROUPED, dealt_by="the hash of data"))
    dearest = ledger.epsilon(DELTA, unit="record")
    other = replace(GROUPED, run="again", dealt_by="the hash of other data")
    assert ledger.epsilon(DELTA, unit="record", also=other, record_group=0) > dearest
    # A ledger of before says nothing of it: a run of its own costs what it did, and goes on.
    before = begun(GROUPED)
    assert "dealt_by" not in before.to_dict()["runs"][0]["terms"]
    resumed = replace(GROUPED, dealt_by="the hash of data")
    figures = [before.epsilon(DELTA, unit="record", also=resumed, record_group=group) for group in range(3)]
    assert figures == [
        ClientLedger().epsilon(DELTA, unit="record", also=resumed, record_group=group) for group in range(3)
    ]
    for also in (replace(resumed, run="again"), replace(GROUPED, run="again")):
        assert before.epsilon(DELTA, unit="record", also=also, record_group=0) > dearest


def test_a_run_does_not_go_on_with_records_in_other_groups():
    ledger = begun(replace(GROUPED, dealt_by="the hash of data"))
    with pytest.raises(PrivacyError, match="run grouped has begun under other terms"):
        ledger.begin(replace(GROUPED, dealt_by="the hash of other data"), epsilons=[2.0], delta=DELTA)


def test_a_ledger_with_records_survives_its_file():
    ledger = begun(OF_CLIENTS, TERMS)
    ledger.charge("of clients", 1)
    ledger.charge("one", 2, 3)
    saved = json.loads(json.dumps(ledger.to_dict()))
    assert ClientLedger.from_dict(saved).to_dict() == ledger.to_dict()
    of_clients, of_records = saved["runs"]
    assert (of_clients["rounds"], of_clients["steps"], of_clients["epsilons"]) == ([1], [0], [2.0])
    assert (of_records["rounds"], of_records["steps"], of_records["epsilons"]) == ([2], [3], [2.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": [3]}, "lacks the steps of some rounds"),
        ({"steps": [3, 16]}, "would take 16 steps, and 15 of the 18"),
        ({"steps": [3, 0]}, "the steps of round 1 of run one is 0"),
        ({"steps": None}, "no lists of budgets, rounds and steps"),
        ({"epsilons": []}, "cannot have 0 budgets"),
        (
            {"terms": TERMS.to_scalars() | {"records": records_with(work="convex_steps")}},
            "convex_steps costs windows of steps by the bound convex: do not join such a run",
        ),
        ({"epsilons": 2.0}, "no lists of budgets, rounds and steps"),
        ({"odd": 1}, "the ledger's run 0 is not a mapping of delta"),
    ],
)
def test_damaged_entries_about_records_are_refused(changes, words):
    ledger = begun(TERMS)
    for index in (2, 1):
        ledger.charge("one", index, 3)
    saved = json.loads(json.dumps(ledger.to_dict()))
    saved["runs"][0] |= changes
    with pytest.raises(PrivacyError, match=words):
        ClientLedger.from_dict(saved)


def test_charges_of_other_events_are_no_terms_about_records():
    other = Charge(
        event=DPSGDSteps(batch_rate=0.05, noise_multiplier=2.0, num_steps=1), count=1, unit="record"
    )
    with pytest.raises(PrivacyError, match="something else than steps of DP-SGD with one batch rate and one"):
        replace(TERMS, charges=(*TERMS.charges, other))


@pytest.mark.parametrize(
    ("terms", "other"),
    [(OF_CLIENTS, replace(OF_CLIENTS.charges[0], unit="record")), (TERMS, OF_CLIENTS.charges[0])],
)
def test_charges_of_two_units_are_no_terms(terms, other):
    """A run's terms that charge for both clients and records are refused, also if they come in a message."""
    mixed = (*terms.charges, other)
    with pytest.raises(PrivacyError, match="charges protect units of several kinds"):
        replace(terms, charges=mixed)
    message = terms.to_scalars() | {"charges": json.dumps([each.to_dict() for each in mixed])}
    with pytest.raises(PrivacyError, match="charges protect units of several kinds"):
        Terms.from_scalars(message)
