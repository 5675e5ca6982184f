"""Tests that a run which protects records asks nodes for their numbers of records and plans with them."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from conf.load import load
from gdpfed.clients.configured import record_counts
from gdpfed.errors import ConfigError, RunError
from gdpfed.federation.server.budgets import plan_waits_for_clients, with_said_budgets, with_said_records
from gdpfed.federation.server.join import Joined, OwnBudget, join_clients
from gdpfed.federation.server.questions import Questions
from server_app.exchange import GridTransport
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid
from testing.small_runs import grid_of_owners

PARTIES = 6
RECORDS = ["method=dp_sum", "privacy.unit=record", f"dataset.num_clients={PARTIES}", "privacy.budgets=[2.0]"]
QUESTIONS = Questions("curious", "test run", None, unit="record")


def joined_on(grid):
    return join_clients(GridTransport(as_grid(grid), 5.0), PARTIES, QUESTIONS, PARTIES - 1)


def grid_with(folder, records):
    """Return a grid on which node k has ``records[k]`` records of its own, or no file for None."""
    grid = LocalGrid(PARTIES)
    for client, count in enumerate(records):
        if count is not None:
            path = folder / f"{client}.npz"
            np.savez(path, x_train=np.zeros((count, 64)), y_train=np.zeros(count, int))
            grid.contexts[FIRST_NODE_ID + client].node_config["data"] = str(path)
    return grid


def test_the_plan_counts_the_records_that_the_nodes_bring(tmp_path):
    config = load(RECORDS)
    assert plan_waits_for_clients(config)
    joined = joined_on(grid_with(tmp_path, [10, 20, None, 40, 50, 60]))
    assert joined.records == {0: 10, 1: 20, 3: 40, 4: 50, 5: 60}
    counted = with_said_records(config, joined)
    # Who brings none has the part of the digits that the partition gives it.
    assert counted.privacy.client_records == [10, 20, record_counts(config)[2], 40, 50, 60]
    counted.validate()
    assert not plan_waits_for_clients(counted)


def test_where_all_have_their_part_of_the_data_set_nothing_is_written_down():
    config = load(RECORDS)
    assert with_said_records(config, Joined()) is config


def test_a_resumed_run_and_one_about_clients_ask_for_no_records():
    config = load(RECORDS)
    resumed = replace(config, run=replace(config.run, resume="runs/one"))
    assert not plan_waits_for_clients(resumed)
    assert with_said_records(resumed, Joined(records={0: 3})) is resumed
    of_clients = load([f"dataset.num_clients={PARTIES}"])
    assert not plan_waits_for_clients(of_clients)
    given = load([*RECORDS, f"privacy.client_records={[5] * PARTIES}"])
    assert not plan_waits_for_clients(given)
    assert with_said_records(given, Joined(records={0: 3})) is given


def test_a_party_whose_part_is_empty_is_named():
    config = load([*RECORDS, "dataset.num_clients=2000", "privacy.sampling_rate=1"])
    counted = with_said_records(config, Joined(records={0: 3}))
    with pytest.raises(ConfigError, match=r"client \d+ has no records \("):
        record_counts(counted)


def test_a_party_without_records_does_not_join(tmp_path):
    joined = joined_on(grid_with(tmp_path, [10, 0, 10, 10, 10, 10]))
    (reason,) = joined.refused.values()
    assert "data is without records, and this run protects records" in reason
    assert 1 not in joined.nodes


@pytest.mark.parametrize("records", [0, -1, True, "3", 2.0, 2**50])
def test_a_node_that_says_what_no_number_of_records_can_be_is_lost_alone(records):
    def spoil(kind, client, content):
        if client != 3:
            return content
        return RecordDict({"client": ConfigRecord({"client_id": 3, "records": records})})

    joined = joined_on(LocalGrid(PARTIES, spoil=spoil))
    (reason,) = joined.refused.values()
    assert "and is left out: it must be from 1 to" in reason
    assert sorted(joined.nodes) == [0, 1, 2, 4, 5]


def test_budgets_are_those_of_the_unit_that_is_asked(tmp_path):
    grid = grid_of_owners(tmp_path, [9.0] * PARTIES, {"epsilon-record": 2.0, "delta-record": 1e-6})
    joined = joined_on(grid)
    assert set(joined.budgets.values()) == {OwnBudget(2.0, 1e-6)}
    config = with_said_budgets(load([*RECORDS, "privacy.budgets=clients"]), joined, PARTIES - 1)
    assert config.privacy.client_budgets == [2.0] * PARTIES
    assert config.privacy.delta == 1e-6


def test_nodes_that_say_no_budget_for_their_records_are_told_which_setting_is_missing():
    config = load([*RECORDS, "privacy.budgets=clients"])
    with pytest.raises(RunError, match=r"start its node with --node-config \"epsilon-record=\.\.\. ledger="):
        with_said_budgets(config, Joined(nodes={0: 1}), 1)


def test_nodes_with_a_budget_for_the_client_alone_are_left_out(tmp_path):
    grid = grid_of_owners(tmp_path, [9.0, *[None] * (PARTIES - 1)])
    joined = joined_on(grid)
    (reason,) = joined.refused.values()
    assert reason == (
        f"SuperNode {FIRST_NODE_ID} does not join: this run protects a record, and this node has a budget "
        'for a client only: give it one for both, as in --node-config "epsilon-record=2.0 ..."'
    )
