"""Tests of rounds with too few nodes: the run refuses them or waits, and ends without a charge."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import ConfigError, RunError
from gdpfed.methods import make_method
from gdpfed.methods.sum_parameters import can_sum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.enough import present_for_a_round, some_sum, without_small_sums
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import grid_of_owners, ledger_of, run

NODES = 4
WORDS = [
    *("method=dp_fedavg", "privacy.budgets=[3]", "privacy.sampling_rate=1", "run.num_rounds=3"),
    *("dataset=npz", "dataset.model=linear", "dataset.partition=iid", f"dataset.num_clients={NODES}"),
    *("run.minimum_nodes=3", "run.timeout_seconds=1", "secagg.dropout_tolerance=0"),
]


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.attendance.POLL_SECONDS", 0.02)
    x, y = np.random.default_rng(0).random((40, 4), np.float32), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return [*WORDS, f"dataset.path={tmp_path / 'a.npz'}"]


def owners(folder):
    return grid_of_owners(folder / "ledgers", [9.0] * NODES, {"data": str(folder / "a.npz")})


def losing(grid, *clients, after=1, comes_back=False):
    """Hide nodes after ``after`` masked rounds; with ``comes_back`` they return after a few queries."""
    everybody, asked = grid.get_node_ids, list[int]()

    def node_ids():
        gone = sum("mask" in exchange for exchange in grid.exchanges) >= after
        asked.extend([1] * gone)
        away = {FIRST_NODE_ID + client for client in clients if gone and not (comes_back and len(asked) > 3)}
        return [node_id for node_id in everybody() if node_id not in away]

    grid.get_node_ids = node_ids
    return grid


def charged(directory):
    return json.loads((directory / "ledger.json").read_text())["charged_rounds"]


@pytest.mark.parametrize("turns", [(), ("privacy.against=everyone", "privacy.accountant=pld")])
def test_a_round_that_nobody_can_be_asked_in_is_not_charged(tmp_path, words, caplog, turns):
    directory, ledgers = tmp_path / "run", tmp_path / "ledgers"
    grid = losing(owners(tmp_path), 2, 3)
    said = (
        r"^round 2: 2 of 4 clients can be reached, too few for any sum .*: nothing is charged for the round; "
    )
    with pytest.raises(RunError, match=said):
        run(directory, [*words, *turns], grid=grid)
    assert "2 nodes are there, too few for a round: waiting up to 1 s" in caplog.text
    assert charged(directory) == 1
    records = run(directory, [], grid=owners(tmp_path), resume=True)
    assert [sum(each.survivors) for each in records] == [4, 4, 4]
    assert [each.rounds for each in ledger_of(ledgers, 3).runs] == [[0, 1, 2]]
    assert audit_run(directory).passed


def test_nodes_that_come_back_in_time_are_waited_for(tmp_path, words):
    grid = losing(owners(tmp_path), 2, 3, comes_back=True)
    records = run(tmp_path / "run", words, grid=grid)
    assert [sum(each.survivors) for each in records] == [4, 4, 4]


def test_fewer_nodes_than_a_sum_takes_are_refused_before_anything():
    with pytest.raises(
        ConfigError, match=r"run.minimum_nodes=2 is below secagg.minimum_cohort=3, the smallest sum"
    ):
        load(["run.minimum_nodes=2"])


def test_nodes_that_read_no_file_of_the_servers_refuse_before_anything(tmp_path, words, caplog):
    """Nodes that read no file named by the server refuse to join, before any round is charged."""
    directory = tmp_path / "run"
    with pytest.raises(RunError, match=r"; SuperNode 1000 does not join: the server names the file .*a\.npz"):
        run(directory, words, grid=LocalGrid(NODES))
    assert not directory.exists()
    grid = owners(tmp_path)
    del grid.contexts[FIRST_NODE_ID + 3].node_config["data"]
    assert [sum(each.survivors) for each in run(directory, words, grid=grid)] == [3, 3, 3]
    assert "SuperNode 1003 does not join: the server names the file" in caplog.text


def test_what_cannot_be_a_sum_has_no_turn():
    """A cohort too small for a sum is emptied, so that its clients take no turn (scheduled round)."""
    words = ["method=gdpfed", "privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[1,3]"]
    plan = make_method(load([*words, "dataset.num_clients=8", "privacy.sampling_rate=0.5"])).plan
    assert not plan.one_sum
    cohorts = (np.arange(2), np.arange(4, 8))
    kept = without_small_sums(plan, SecAggConfig(), cohorts)
    assert [each.tolist() for each in kept] == [[], [4, 5, 6, 7]]
    assert some_sum(plan, SecAggConfig(), [0, 4, 5, 6])
    assert not some_sum(plan, SecAggConfig(), [0, 1, 4, 5])


def test_what_sums_are_configured_to_bear_counts():
    """Whether clients suffice for a sum depends on how many of them the settings assume to be corrupt."""
    assert [can_sum(SecAggConfig(), n) for n in (2, 3, 4)] == [False, True, True]
    assert not can_sum(SecAggConfig(corrupt_tolerance=0.45, minimum_cohort=2), 2)


def test_a_round_whose_cohort_could_be_too_small_does_not_begin_where_rounds_are_drawn_ahead(tmp_path):
    """A round of random allocation does not begin if its cohort could be too small for a sum."""
    words = ["method=dp_fedavg", "privacy.against=outsiders", "privacy.sampling=allocation"]
    words += ["secagg.same_size=false"]
    plan = make_method(load([*words, "dataset.num_clients=60", "privacy.sampling_rate=0.5"])).plan
    asked = []

    def fleet_of(number):
        def present(round_index, suffices):
            asked.append(suffices(range(number)))
            return frozenset(range(number))

        return SimpleNamespace(secagg=SecAggConfig(), present=present)

    assert present_for_a_round(plan, fleet_of(50), 0, tmp_path) == frozenset(range(50))
    with pytest.raises(RunError, match=r"round 1: only 12 clients of the groups can be reached: a cohort"):
        present_for_a_round(plan, fleet_of(12), 0, tmp_path)
    assert asked == [True, False]


def test_a_round_does_not_begin_while_some_are_away_whom_a_cohort_of_a_fixed_size_may_have(tmp_path):
    """With fixed-size sampling, no round begins while clients are away: its sum would tell who is drawn.

    Without the rule, where half of a group is away, three of five answer nearly twice as often in
    rounds for which one of them was drawn.
    """
    words = ["privacy.against=outsiders", "privacy.sampling=fixed_size", "privacy.accountant=rdp"]
    words += ["dataset.num_clients=10"]
    plan = make_method(load([*words, "method=dp_fedavg", "privacy.sampling_rate=0.5"])).plan
    asked = []

    def present_of(plan, there):
        def present(round_index, suffices):
            asked.append(suffices(there))
            return there

        fleet: Any = SimpleNamespace(secagg=SecAggConfig(), present=present)
        return present_for_a_round(plan, fleet, 0, tmp_path)

    assert present_of(plan, frozenset(range(10))) == frozenset(range(10))
    with pytest.raises(RunError, match=r"round 1: only 9 clients of the groups can be reached, and privacy"):
        present_of(plan, frozenset(range(9)))
    assert asked == [True, False]
    cohorts = [draw_cohorts(plan, 0, index.to_bytes(32, "big"))[0] for index in range(400)]
    sums = [(0 in cohort, can_sum(SecAggConfig(), int((cohort < 5).sum()))) for cohort in cohorts]
    seen = {own: np.mean([summed for drawn, summed in sums if drawn == own]) for own in (True, False)}
    assert seen[True] > 1.4 * seen[False]
    # Everybody's turn, and no promise: nothing rests on the draw.
    for free in (["method=dp_fedavg", "privacy.sampling_rate=1"], ["method=fedavg"]):
        others = make_method(load([*words, *free])).plan
        assert others.law.name == "fixed_size"
        assert present_of(others, frozenset(range(9))) == frozenset(range(9))
