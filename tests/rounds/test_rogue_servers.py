"""Tests of nodes with their own budgets, which refuse requests beyond the charges that they agreed to."""

import re

import pytest

from gdpfed.errors import RunError
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.ledgers.charged import OpenRound
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.records.terms import RecordTerms, StepTerms
from testing.local_grid import refusals
from testing.small_runs import grid_of_owners, ledger_of, run
from tests.rounds import rogue_methods as rogue

NUM_CLIENTS = 6
SMALLER = [
    "method=dp_fedavg",
    f"dataset.num_clients={NUM_CLIENTS}",
    "run.num_rounds=2",
    "training.local_steps=1",
    "privacy.renyi_orders=whole",
    "privacy.budgets=[3]",
    "privacy.sampling_rate=1",
]


@pytest.fixture
def owners(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", lambda *each: [])
    return grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)


TOLD = {
    rogue.TwiceInOneList: "round 1 of run .* has had its update already",
    rogue.TwiceInTurn: "round 1 of run .* has had its update already",
    rogue.ExtraSum: "round 1 of run .* has had its update already",
    rogue.Silent: "noise of standard deviation 0 is below .* against the terms",
    rogue.LessNoise: "noise of standard deviation .* is below .* against the terms",
    rogue.OtherNoise: "the server asks for discrete_gaussian noise where the terms say gaussian",
    rogue.LargerNorm: "clipping norm 4 is above the 2 of the terms",
    rogue.HeavyWeightsInALargerSum: "clipping norm 4 is above the 2 of the terms",
    rogue.GradientSum: "OrderError, see the log of the client",
}
TWICE = (rogue.TwiceInOneList, rogue.TwiceInTurn, rogue.ExtraSum)


@pytest.mark.parametrize("method", TOLD, ids=lambda method: method.__name__)
def test_every_node_refuses_it(tmp_path, monkeypatch, owners, method):
    """Every node refuses requests beyond what it agreed to, even if the server does not refuse them."""
    monkeypatch.setattr(OpenRound, "check", lambda *each: None)
    monkeypatch.setattr("gdpfed.rounds.run.make_method", method.from_config)
    first, second = run(tmp_path / "run", SMALLER, grid=owners)
    assert first.survivors == [NUM_CLIENTS]
    assert second.survivors == ([NUM_CLIENTS, 0] if method in TWICE else [0])
    reasons = refusals(owners)
    assert len(reasons) == NUM_CLIENTS
    assert all(re.search(TOLD[method], reason) for reason in reasons), reasons
    rounds = [0, 1] if method in TWICE else [0]
    assert all(ledger_of(tmp_path / "ledgers", k).runs[0].rounds == rounds for k in range(NUM_CLIENTS))


def test_terms_about_records_are_refused(tmp_path, monkeypatch, owners):
    def about_records(*each, **more):
        terms = terms_of(*each, **more)
        event = DPSGDSteps(batch_rate=0.05, noise_multiplier=2.0, num_steps=1)
        rounds = terms.num_rounds
        records = RecordTerms(
            num_rounds=rounds, work="dp_sgd", clipping_norm=1.0, batch_rates=(0.05,), shares=(1.0,)
        )
        common = {name: value for name, value in vars(terms).items() if name != "charges"}
        charges = (Charge(event=event, count=rounds, unit="record"),)
        return StepTerms(**common, charges=charges, records=records)

    monkeypatch.setattr("gdpfed.federation.server.budgets.terms_of", about_records)
    with pytest.raises(
        RunError, match="this run protects a record, and this node has a budget for a client only"
    ):
        run(tmp_path / "run", SMALLER, grid=owners)
    assert not (tmp_path / "run").exists()
