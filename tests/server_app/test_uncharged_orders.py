"""Test that a node charges no round and reads no example for an instruction that it cannot carry out."""

import pytest
from flwr.app import ConfigRecord

from gdpfed.clients.messages import MASK, ORDER_RECORD
from gdpfed.learning.task import Task
from testing.local_grid import refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, ledger_of, run

VICTIM = 3
WORDS = [
    "method=dp_fedavg",
    "privacy.sampling_rate=1",
    f"dataset.num_clients={NUM_CLIENTS}",
    "run.num_rounds=1",
]


@pytest.mark.parametrize("changes", [{"optimizer": "none such"}, {"device": "none"}])
def test_an_order_that_cannot_be_carried_out_is_not_charged(tmp_path, monkeypatch, changes):
    loaded: list[int] = []
    plain = Task.client_data

    def client_data(task, client_id):
        loaded.append(client_id)
        return plain(task, client_id)

    def meddle(kind, client, content):
        if (kind, client) == (MASK, VICTIM):
            content[ORDER_RECORD] = ConfigRecord({**content[ORDER_RECORD], **changes})
        return content

    monkeypatch.setattr(Task, "client_data", client_data)
    grid = grid_of_owners(tmp_path / "ledgers", [8.0] * NUM_CLIENTS, meddle=meddle)
    (record,) = run(tmp_path / "run", WORDS, grid=grid)
    assert (record.survivors, len(refusals(grid))) == ([NUM_CLIENTS - 1], 1)
    taken = [len(ledger_of(tmp_path / "ledgers", client).runs[0].rounds) for client in range(NUM_CLIENTS)]
    assert taken == [int(client != VICTIM) for client in range(NUM_CLIENTS)]
    assert sorted(loaded) == [client for client in range(NUM_CLIENTS) if client != VICTIM]
