"""Tests of subnets (groups of clients with one sum each) at nodes: charges, and refused edge servers."""

import json

import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import RunError
from gdpfed.privacy.mechanisms.records.terms import StepTerms
from testing.local_grid import FIRST_NODE_ID, LocalGrid, refusals
from testing.small_runs import ledger_of, run

NUM_CLIENTS = 6
SUBNETS = [
    "method=h2fdp",
    "method.num_subnets=2",
    "method.local_aggregations=2",
    "training.local_steps=4",
    "dataset.model=softmax",
    f"dataset.num_clients={NUM_CLIENTS}",
    "privacy=record_level",
    "privacy.accountant=pld",
    "privacy.delta=1e-5",
    "privacy.batch_rate=0.2",
    "privacy.budgets=[1]",
    "run.num_rounds=2",
]


def owners(folder, **own):
    """Return a grid of nodes that have a ledger each."""
    grid = LocalGrid(NUM_CLIENTS)
    folder.mkdir(exist_ok=True)
    for client in range(NUM_CLIENTS):
        grid.contexts[FIRST_NODE_ID + client].node_config |= own | {"ledger": str(folder / f"{client}.json")}
    return grid


@pytest.mark.parametrize("mechanism", ["convex", "step_sum", "window"])
def test_nodes_charge_every_window_and_no_more(tmp_path, mechanism):
    grid = owners(tmp_path / "nodes", **{"epsilon-record": 1.0})
    count = "null" if mechanism == "step_sum" else "2"
    overrides = [*SUBNETS, f"method.mechanism={mechanism}", f"method.local_aggregations={count}"]
    records = run(tmp_path / "run", overrides, grid=grid)
    windows = 4 if mechanism == "step_sum" else 2
    assert [len(record.survivors) for record in records] == [2 * windows] * 2
    assert all(set(record.survivors) == {3} for record in records), records[0].failures
    assert audit_run(tmp_path / "run").findings == ()
    for client in range(NUM_CLIENTS):
        (entry,) = ledger_of(tmp_path / "nodes", client).runs
        assert sum(entry.steps) == 8
        assert entry.rounds == sorted([0, 1] * windows)
        assert isinstance(entry.terms, StepTerms)
        assert entry.terms.steps_left(sum(entry.steps)) == 0
    audit = audit_node_ledger(tmp_path / "nodes" / "0.json")
    assert audit.passed
    assert (audit.runs[0].steps, audit.runs[0].num_steps) == (8, 8)


def test_clients_as_wholes_take_part_in_several_sums(tmp_path):
    overrides = [*SUBNETS, "privacy=client_level", "privacy.sampling_rate=1", "privacy.delta=1e-3"]
    grid = owners(tmp_path / "nodes", epsilon=8.0, delta=1e-3)
    records = run(tmp_path / "run", [*overrides, "run.num_rounds=1"], grid=grid)
    assert records[0].survivors == [3] * 4
    (entry,) = ledger_of(tmp_path / "nodes", 0).runs
    assert entry.rounds == [0, 0]


def test_no_edge_can_be_trusted_and_nobody_has_been_charged(tmp_path):
    grid = owners(tmp_path / "nodes", **{"epsilon-record": 1.0})
    with pytest.raises(RunError, match="a flat federation has no edge to trust: use method.trust=secagg"):
        run(tmp_path / "run", [*SUBNETS, "method.trusted_share=0.5"], grid=grid)
    assert not (tmp_path / "run").exists()
    for path in (tmp_path / "nodes").glob("*.json"):
        assert json.loads(path.read_text())["ledger"]["runs"] == []


def test_a_node_with_a_budget_for_clients_only_takes_no_part(tmp_path):
    grid = owners(tmp_path / "nodes", epsilon=8.0)
    with pytest.raises(RunError, match="protects a record, and this node has a budget for a client only"):
        run(tmp_path / "run", SUBNETS, grid=grid)


def test_a_node_refuses_windows_that_are_not_convex(tmp_path, monkeypatch):
    """A node refuses steps that are private only for a convex loss if its model has no such loss."""
    monkeypatch.setattr("gdpfed.extras.h2fdp.subnet_mechanisms.record_norm", lambda config, mechanism: 1.5)
    monkeypatch.setattr("gdpfed.extras.h2fdp.subnet_mechanisms.reserved_delta", lambda config: 0.0)
    grid = owners(tmp_path / "nodes", **{"epsilon-record": 1.0})
    overrides = [*SUBNETS, "method.mechanism=convex", "dataset.model=linear", "run.num_rounds=1"]
    records = run(tmp_path / "run", overrides, grid=grid, without_a_sum=True)
    assert records[0].survivors == [0] * 4
    assert refusals(grid) == ["OrderError, see the log of the client"] * 12
