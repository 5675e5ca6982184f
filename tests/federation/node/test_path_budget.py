"""Tests of runs whose terms state a zCDP cost (path) for each round: charges, limits, and ledger files."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_app.carried import settings_of
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import AuditError, PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, epsilon_of_total
from gdpfed.extras.fedpcs.spending_plan import spending_plan
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.record_steps import RecordSteps
from secagg import SumParameters
from testing.local_grid import make_context

PATH = (0.01, 0.03, 0.02, 0.04)
PARAMETERS = SumParameters(
    label="test",
    num_clients=6,
    threshold=3,
    dropout_tolerance=0,
    dimension=10,
    clipping_norm=float("inf"),
    noise_multiplier=0.0,
)
NO_TOLERANCE: Any = {"dropout_tolerance": 0.0, "corrupt_tolerance": 0.0}


def path_terms(run="run", path=PATH, most_rounds=None, first_round=0):
    """Return the terms of client 1 of three; `path` is the zCDP cost of each round."""
    budgets = np.column_stack([np.full(len(path), 1.0), path, np.full(len(path), 2.0)])
    spending = ClientBudgets(
        budgets=budgets,
        draw_probabilities=np.full_like(budgets, 1 / 3),
        cohort_sizes=np.full(len(path), 2),
        draws="poisson",
        most_rounds=most_rounds or len(path),
    )
    plan = spending_plan(
        spending,
        unit="record",
        adjacency="replace_one",
        work="dp_sgd",
        clipping_norm=1.0,
        delta=1e-5,
        accountant="pld",
        sums_hidden=True,
    )
    return terms_of(plan, 0, run, client=1, first_round=first_round, **NO_TOLERANCE)


def order(rho, num_steps=1, batch_rate=1.0) -> Any:
    steps = RecordSteps(
        num_steps=num_steps,
        batch_rates=(batch_rate,),
        clipping_norm=1.0,
        noise_multiplier=2 / float(np.sqrt(2 * rho)),
    )
    return SimpleNamespace(
        **{"work": "dp_sgd", "noise": "gaussian", "weight": 7.0, "clipping_norm": 9.0},
        **{"records": steps, "announced": "", "taps": (), "fills": False, "may_fill": False},
    )


@pytest.fixture
def own(tmp_path):
    def make(**settings):
        told = {name.replace("_", "-"): value for name, value in settings.items()}
        return settings_of(make_context(0, told | {"ledger": str(tmp_path / "ledger.json")})).budgets

    return make


def charge(budgets, index, rho, run="run", **steps):
    budget.charge(budgets, RoundOfRun(run, index), PARAMETERS, order(rho, **steps))


def spent(budgets):
    with locked_ledger(budgets["record"].ledger) as file:
        return file.ledger.epsilon(1e-5, unit="record")


def test_a_round_costs_its_zcdp_and_rounds_that_it_is_not_in_cost_nothing(own):
    budgets = own(epsilon_record=3.0)
    terms = path_terms()
    assert terms.path == pytest.approx(PATH)
    budget.begin(budgets, terms)
    assert spent(budgets) == 0.0
    charge(budgets, 1, 0.03)
    charge(budgets, 3, 0.04)
    assert spent(budgets) == pytest.approx(epsilon_of_total(0.07, 1e-5))
    # A second run adds its zCDP: all together are one Gaussian.
    budget.begin(budgets, path_terms("other"))
    charge(budgets, 2, 0.02, "other")
    assert spent(budgets) == pytest.approx(epsilon_of_total(0.09, 1e-5))
    audit = audit_node_ledger(budgets["record"].ledger)
    assert audit.passed
    assert [row.epsilon for row in audit.runs] == pytest.approx(
        [epsilon_of_total(rho, 1e-5) for rho in (0.07, 0.09)]
    )


@pytest.mark.parametrize(
    ("index", "rho", "steps", "words"),
    [
        (1, 0.03, {}, "round 1 of run run has had its update already"),
        (4, 0.03, {}, "round 4 of run run lies beyond the 4 of its terms"),
        (0, 0.03, {}, "noise multiplier 8.16497 of a step is below the 14.1421 of the terms"),
        (2, 0.02, {"num_steps": 2}, "the server asks for 2 steps where the terms charge one for each"),
        (2, 0.02, {"num_steps": 2, "batch_rate": 0.5}, "the server asks for 2 steps"),
    ],
)
def test_a_server_that_asks_for_more_gets_nothing_and_nothing_is_charged(own, index, rho, steps, words):
    budgets = own(epsilon_record=3.0)
    budget.begin(budgets, path_terms())
    charge(budgets, 1, 0.03)
    with pytest.raises(PrivacyError, match=words):
        charge(budgets, index, rho, **steps)
    assert spent(budgets) == pytest.approx(epsilon_of_total(0.03, 1e-5))


def test_a_run_takes_no_more_rounds_than_its_terms_say(own):
    budgets = own(epsilon_record=epsilon_of_total(0.07, 1e-5) * 1.001)
    terms = path_terms(most_rounds=2)
    assert terms.most_expensive_rounds() == (3, 1)
    budget.begin(budgets, terms)
    charge(budgets, 0, 0.01)
    charge(budgets, 2, 0.02)
    with pytest.raises(PrivacyError, match="have paid for all 2 steps of run run"):
        charge(budgets, 3, 0.04)


def test_runs_side_by_side_fit_round_by_round(own, caplog):
    """A node charges two concurrent runs to one budget, and refuses a round that no longer fits into it."""
    budgets = own(epsilon_record=epsilon_of_total(0.1, 1e-5) * 1.0001)
    more = own(epsilon_record=epsilon_of_total(0.15, 1e-5) * 1.001)
    for name in ("run", "other"):
        budget.begin(more, path_terms(name))
    charge(budgets, 3, 0.04)
    charge(budgets, 3, 0.04, "other")
    charge(budgets, 0, 0.01)
    with pytest.raises(PrivacyError, match="^one more round does not fit this client's own budget$"):
        charge(budgets, 1, 0.03)
    assert f" to {epsilon_of_total(0.12, 1e-5):.4g} at delta 1e-05, above its own budget" in caplog.text
    charge(budgets, 0, 0.01, "other")
    # Offered again, a run counts what was taken and the worst of what is left.
    with pytest.raises(PrivacyError, match="does not fit"):
        budget.consider(budgets, path_terms(first_round=1))
    budget.consider(more, path_terms(first_round=1))


def test_a_path_with_counts_on_held_out_records_is_refused():
    """Terms with a zCDP path and held-out counts are refused, since the two use different adjacencies."""
    counts = Charge(event=Gaussian(noise_stddev=3.0, clipping_norm=2**0.5), count=1, unit="record")
    with pytest.raises(PrivacyError, match="counts on held-out records are charged under zero_out: set run"):
        replace(path_terms(), held_out=(counts,), held_out_by="a rule")


def test_what_a_server_has_seen_is_what_was_taken(own):
    budgets = own(epsilon_record=3.0, max_epsilon_against_server=epsilon_of_total(0.035, 1e-5))
    budget.begin(budgets, path_terms())
    charge(budgets, 1, 0.03)
    with pytest.raises(PrivacyError, match="limit against the server"):
        charge(budgets, 0, 0.01)


def test_a_path_adds_up_with_steps_of_other_runs(own):
    training = RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(5, 5), noise_multiplier=2.0)
    plan = record_plan(groups=groups_from_shares(4, (2.0,)), num_rounds=2, training=training)
    budgets = own(epsilon_record=3.0)
    budget.begin(budgets, terms_of(plan, 0, "steps", **NO_TOLERANCE))
    alone = spent(budgets)
    budget.begin(budgets, path_terms())
    assert spent(budgets) == alone
    charge(budgets, 3, 0.04)
    assert alone + epsilon_of_total(0.04, 5e-6) > spent(budgets) > max(alone, epsilon_of_total(0.04, 1e-5))
    audit = audit_node_ledger(budgets["record"].ledger)
    assert audit.passed
    assert audit.runs[-1].epsilon == pytest.approx(spent(budgets), rel=0.02)


def test_a_ledger_with_a_path_survives_its_file(own):
    ledger = ClientLedger()
    ledger.begin(path_terms(), epsilons=[3.0], delta=1e-5)
    ledger.charge("run", 2, 1)
    saved = json.loads(json.dumps(ledger.to_dict()))
    again = ClientLedger.from_dict(saved)
    assert again.to_dict() == saved
    assert again.epsilon(1e-5, unit="record") == ledger.epsilon(1e-5, unit="record")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda records, charges: records.update(num_rounds=5),
            "do not have one budget for each of their 5 rounds",
        ),
        (lambda records, charges: records.update(batch_rates=[0.5]), "one step of dp_sgd in a round, on"),
        (lambda records, charges: records.update(work="gradient_sum"), "one step of dp_sgd in a round, on"),
        (lambda records, charges: records.update(clipping_norm=2.0), "at their clipping norm"),
        (
            lambda records, charges: charges[0]["event"].update(noise_stddev=0.0),
            "are not for Gaussian noise",
        ),
        (lambda records, charges: charges[0]["event"].update(adjacency="zero_out"), "are not for Gaussian"),
    ],
)
def test_terms_whose_path_cannot_be_accounted_are_refused(change, words):
    scalars = path_terms().to_scalars()
    records, charges = json.loads(str(scalars["records"])), json.loads(str(scalars["charges"]))
    change(records, charges)
    changed = scalars | {"records": json.dumps(records), "charges": json.dumps(charges)}
    with pytest.raises(PrivacyError, match=words):
        Terms.from_scalars(changed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"most_rounds": 0}, "most_rounds is 0"),
        ({"mechanism": "record_sums"}, "unknown ones: most_rounds"),
        ({"mechanism": "sampled_sums"}, "unknown ones: most_rounds, records"),
    ],
)
def test_a_path_is_read_as_nothing_else(changes, words):
    with pytest.raises(PrivacyError, match=words):
        Terms.from_scalars(path_terms().to_scalars() | changes)


def test_the_audit_finds_a_round_that_was_taken_twice(own):
    budgets = own(epsilon_record=3.0)
    budget.begin(budgets, path_terms())
    charge(budgets, 1, 0.03)
    path = budgets["record"].ledger
    data = json.loads(path.read_text())
    data["ledger"]["runs"][0]["rounds"].append(1)
    data["ledger"]["runs"][0]["steps"].append(1)
    path.write_text(json.dumps(data))
    audit = audit_node_ledger(path)
    assert "run run sent more updates in one round than it was charged for" in audit.findings
    path.write_text("{}")
    with pytest.raises(AuditError):
        audit_node_ledger(path)
