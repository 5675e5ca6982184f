"""Tests of large models, which are sent as arrays in chunks, and of nodes that do not receive them."""

import re

import pytest
from flwr.app import ArrayRecord

from gdpfed.clients.messages import MASK, PLAIN
from gdpfed.errors import RunError
from testing.local_grid import LocalGrid
from testing.small_runs import NUM_CLIENTS, final_model, grid_of_owners, ledger_of, run

ALL = ["privacy.sampling_rate=1", "run.num_rounds=1"]
OWN = [*ALL, "method=dp_fedavg", "privacy.budgets=clients", "privacy.delta=null", "privacy.num_groups=1"]


def make_large(monkeypatch):
    """Make every model count as a large one."""
    for module in ("client_app.node_app", "gdpfed.federation.server.joined_nodes"):
        monkeypatch.setattr(f"{module}.LARGE_BYTES", 1000)


@pytest.mark.parametrize("mode", ["curious", "off"])
def test_vectors_as_arrays_sum_to_the_same_model(tmp_path, monkeypatch, mode):
    overrides = [*ALL, "method=fedavg", f"secagg.mode={mode}"]
    run(tmp_path / "small", overrides)
    make_large(monkeypatch)
    node = {"secagg-mode": "off"} if mode == "off" else {}
    grid = LocalGrid(NUM_CLIENTS, node_config=node)
    run(tmp_path / "large", overrides, grid=grid)
    assert final_model(tmp_path / "large").tobytes() == final_model(tmp_path / "small").tobytes()
    sent = [record for reply in grid.replies for name, record in reply.items() if name in (MASK, PLAIN)]
    assert len(sent) == NUM_CLIENTS
    assert all(isinstance(record, ArrayRecord) for record in sent)
    assert sum(kind == "carry" for kind, _ in grid.sent) == NUM_CLIENTS


def test_a_node_that_the_model_does_not_reach_is_left_out_before_anything_is_charged(tmp_path, monkeypatch):
    make_large(monkeypatch)
    epsilons = [2.0] * NUM_CLIENTS
    grid = grid_of_owners(tmp_path / "ledgers", epsilons)
    grid.vanishes = lambda kind, client: kind == "carry" and client == 3
    run(tmp_path / "run", [*OWN, f"run.minimum_nodes={NUM_CLIENTS - 1}"], grid=grid)
    assert (MASK, 3) not in grid.sent
    assert not ledger_of(tmp_path / "ledgers", 3).runs
    assert ledger_of(tmp_path / "ledgers", 2).runs
    grid = grid_of_owners(tmp_path / "others", epsilons)
    grid.vanishes = lambda kind, client: kind == "carry"
    words = "client 0 did not send back a message of 0.0 MB, as large as the model (it did not answer within"
    with pytest.raises(RunError, match=re.escape(words)):
        run(tmp_path / "none", OWN, grid=grid)
    assert not any(ledger_of(tmp_path / "others", client).runs for client in range(NUM_CLIENTS))
    assert not (tmp_path / "none").exists()
