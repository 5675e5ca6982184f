"""Tests of a client's ledger: a run is charged once and in full, and damaged files are refused."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.composition import compose_runs
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares

SETTINGS: dict[str, Any] = {
    "groups": groups_from_shares(40, (1.0, 3.0)),
    "num_rounds": 6,
    "sampling_rate": 0.2,
    "clipping_norm": 2.0,
    "accountant": "rdp",
}
PLAN = make_plan(**SETTINGS)
TERMS: Any = terms_of(PLAN, 1, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0)
DELTA = PLAN.delta


def ledger_with(*runs, rounds=()):
    ledger = ClientLedger()
    for run in runs:
        ledger.begin(replace(TERMS, run=run), epsilons=[9.0], delta=DELTA)
    for index in rounds:
        ledger.charge(runs[0], index)
    return ledger


def charges_with(**changes):
    """Return the charges of the run terms `TERMS` as JSON, with some fields of charge or event changed."""
    (entry,) = json.loads(str(TERMS.to_scalars()["charges"]))
    for key, value in changes.items():
        (entry if key in entry else entry["event"])[key] = value
    return json.dumps([entry])


def test_how_often_a_client_is_asked_is_judged_by_the_rate_that_is_charged():
    """Fixed-size sampling of 20 clients at rate 0.0749 draws one client, so the rate counts as 1 / 20."""
    (charge,) = TERMS.charges
    event = replace(charge.event, sampling="fixed_size", sampling_rate=0.0749)
    ((_, rate, _),) = replace(TERMS, charges=(replace(charge, event=event),)).draws()
    assert rate == 1 / 20


def test_terms_are_the_plans_and_survive_a_message():
    assert TERMS.charges == PLAN.charges(1)
    assert TERMS.event(5) == PLAN.charges(1)[0].event
    assert TERMS.unit == "client"
    assert (TERMS.epsilon, TERMS.num_rounds, TERMS.delta) == (3.0, 6, PLAN.delta)
    assert Terms.from_scalars(json.loads(json.dumps(TERMS.to_scalars()))) == TERMS
    assert compose_runs([TERMS.charges], DELTA).epsilon <= 3.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": ""}, "the terms' run is ''"),
        ({"charges": "[]"}, "the terms hold 0 charges"),
        ({"charges": "{"}, "charges are not a JSON list"),
        ({"charges": charges_with(count=0)}, "a charge's count is 0; it must be at least 1"),
        ({"charges": charges_with(unit="household")}, "unit=household is not known"),
        ({"charges": charges_with(sampling_rate=1.5)}, "sampling_rate is 1.5"),
        ({"charges": charges_with(noise_stddev=-1.0)}, "noise_stddev is -1.0"),
        ({"charges": charges_with(noise="laplace")}, "noise=laplace is not known"),
        ({"first_round": 6}, "first_round is 6; it must be below their 6 rounds"),
        ({"first_round": -1}, "first_round is -1; it must be at least 0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"sums_hidden": 1}, "sums_hidden is 1; give true or false"),
        ({"dropout_tolerance": 1.0}, "dropout_tolerance is 1.0"),
        ({"odd": 1}, "unknown ones: odd"),
    ],
)
def test_impossible_terms_are_refused(changes, words):
    with pytest.raises(PrivacyError, match=words):
        Terms.from_scalars(TERMS.to_scalars() | changes)


def test_a_run_is_charged_whole_when_it_begins_and_once():
    ledger = ClientLedger()
    assert ledger.epsilon(DELTA) == 0.0
    offered = ledger.epsilon(DELTA, also=TERMS)
    ledger.begin(TERMS, epsilons=[3.0], delta=DELTA)
    assert ledger.epsilon(DELTA) == ledger.epsilon(DELTA, also=TERMS) == offered
    ledger.begin(TERMS, epsilons=[3.0], delta=DELTA)
    assert len(ledger.runs) == 1
    assert ledger.epsilon(DELTA, also=replace(TERMS, run="two")) > offered


def test_a_client_that_comes_late_is_charged_for_the_rounds_from_then_on():
    late = replace(TERMS, first_round=4)
    ledger = ClientLedger()
    ledger.begin(late, epsilons=[3.0], delta=DELTA)
    assert ledger.epsilon(DELTA) == compose_runs([PLAN.charges(1, 2)], DELTA).epsilon
    with pytest.raises(PrivacyError, match="round 3 of run one lies before round 4, from which on"):
        ledger.charge("one", 3)
    ledger.charge("one", 4)
    for again in (TERMS, replace(TERMS, first_round=5)):
        ledger.begin(again, epsilons=[3.0], delta=DELTA)
    assert [each.terms for each in ledger.runs] == [late]


@pytest.mark.parametrize("version", [0, 5, "1", None])
def test_a_ledger_of_another_version_is_refused(version):
    saved = ledger_with("one", rounds=[1]).to_dict() | {"version": version}
    with pytest.raises(
        PrivacyError, match=f"the ledger has version {version!r}; this program reads 1 and 2 and 3 and 4"
    ):
        ClientLedger.from_dict(saved)


def test_terms_of_a_mechanism_that_there_is_not_are_refused():
    known = "use allocated_sums, local_windows, own_spending"
    with pytest.raises(PrivacyError, match=f"mechanism 'barter' is not known: {known}"):
        Terms.from_scalars(TERMS.to_scalars() | {"mechanism": "barter"})


def test_a_process_that_has_imported_no_mechanism_reads_terms():
    """A new process can read the terms of a run before it imports any privacy mechanism."""
    code = (
        "import json, sys; from gdpfed.privacy.ledgers.terms import Terms; "
        "print(Terms.from_scalars(json.loads(sys.argv[1])).run)"
    )
    told = json.dumps(TERMS.to_scalars())
    process = subprocess.run([sys.executable, "-c", code, told], capture_output=True, text=True, check=True)
    assert process.stdout == "one\n"


def test_two_sums_a_round_are_two_updates_and_no_more():
    plan = make_plan(**SETTINGS, sums_per_round=2)
    ledger = ClientLedger()
    terms = terms_of(plan, 1, "one", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    ledger.begin(terms, epsilons=[3.0], delta=DELTA)
    ledger.charge("one", 0)
    one = ledger.epsilon_against_server(DELTA)
    ledger.charge("one", 0)
    assert ledger.epsilon_against_server(DELTA) > one
    with pytest.raises(PrivacyError, match="round 0 of run one has had its update already"):
        ledger.charge("one", 0)


@pytest.mark.parametrize("epsilons", [[], [1.0, 3.0]])
def test_a_run_about_clients_is_begun_under_one_budget(epsilons):
    ledger = ClientLedger()
    with pytest.raises(PrivacyError, match=f"a client cannot have {len(epsilons)} budgets"):
        ledger.begin(TERMS, epsilons=epsilons, delta=DELTA)
    assert ledger.runs == ()


@pytest.mark.parametrize("changes", [{"run": "r" * 65}, {"charges": TERMS.charges * 10_001}])
def test_terms_that_would_fill_a_ledger_are_refused(changes):
    with pytest.raises(PrivacyError):
        replace(TERMS, **changes)


def test_the_same_run_under_other_terms_is_refused():
    ledger = ledger_with("one")
    with pytest.raises(PrivacyError, match="run one has begun under other terms"):
        ledger.begin(replace(TERMS, charges=PLAN.charges(0)), epsilons=[9.0], delta=DELTA)


@pytest.mark.parametrize(
    ("run", "index", "words"),
    [
        ("two", 0, "run two was never begun"),
        ("one", 6, "round 6 of run one lies beyond the 6 of its terms"),
        ("one", 2, "round 2 of run one has had its update already"),
        ("one", -1, "the round is -1"),
    ],
)
def test_a_round_that_may_not_be_sent_is_refused_and_changes_nothing(run, index, words):
    ledger = ledger_with("one", rounds=[2])
    with pytest.raises(PrivacyError, match=words):
        ledger.charge(run, index)
    assert ledger.runs[0].rounds == [2]


def test_against_the_server_only_updates_count_over_all_runs():
    ledger = ledger_with("one", "two", rounds=[0, 3])
    two = ledger.epsilon_against_server(DELTA)
    assert ledger_with("one").epsilon_against_server(DELTA) == 0.0
    three = ledger.epsilon_against_server(DELTA, one_more_in=("two", 0))
    assert 0 < two < three
    ledger.charge("two", 0)
    assert ledger.epsilon_against_server(DELTA) == three


def test_saving_and_loading_changes_nothing():
    ledger = ledger_with("one", "two", rounds=[5, 1])
    again = ClientLedger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.to_dict() == ledger.to_dict()
    assert again.epsilon(DELTA) == ledger.epsilon(DELTA)


def damaged(**changes):
    (entry,) = ledger_with("one", rounds=[1]).to_dict()["runs"]
    return {"version": 1, "runs": [{**entry, **changes}]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "not a mapping of version and runs"),
        ({"version": 6, "runs": []}, "version 6; this program reads 1 and 2 and 3 and 4"),
        (damaged(edge_trusted="yes"), "edge_trusted 'yes', which is neither true nor false"),
        ({"version": 1, "runs": {}}, "the ledger's runs are not a list"),
        ({"version": 1, "runs": [{}]}, "the ledger's run 0 is not a mapping"),
        (damaged(terms=3), "the ledger's run 0 has no terms"),
        (damaged(epsilons=[0]), "a run's epsilon is 0"),
        (damaged(rounds=[1, 1], steps=[0, 0]), "has had its update already"),
        (damaged(rounds=[6]), "lies beyond the 6"),
        ({"version": 1, "runs": damaged()["runs"] * 2}, "the ledger holds run one twice"),
    ],
)
def test_damaged_ledgers_are_refused(data, words):
    with pytest.raises(PrivacyError, match=words):
        ClientLedger.from_dict(data)
