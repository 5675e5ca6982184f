"""Tests of nodes that come late, come back or leave: charges only for rounds in which a node is there."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import RunError
from gdpfed.privacy.accountants.composition import compose_runs
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, crashing_grid, make_context, refusals
from testing.small_runs import ACTIVE, FIRST_SEEN, NUM_CLIENTS, grid_of_owners, ledger_of, run

# No dropout is tolerated: a round that asked somebody who is not there would fail.
EVERYBODY = ["method=dp_fedavg", "privacy.sampling_rate=1", "secagg.dropout_tolerance=0", "run.num_rounds=3"]
SOME = [*EVERYBODY, "run.minimum_nodes=8"]
TURNS = [
    *("privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[3]"),
    *("privacy.sampling_rate=0.34", "run.num_rounds=6"),
]
LATE = range(10, NUM_CLIENTS)
NEW_NODE_ID = 5000


def vectors(grid):
    """Return how many exchanges so far have asked nodes for masked vectors: one in each masked round."""
    return sum("mask" in exchange for exchange in grid.exchanges)


def online_from(grid, away, comes_after=None):
    """Hide nodes from the server until ``comes_after`` rounds are masked, or always if that is None."""
    everybody = grid.get_node_ids

    def node_ids():
        if comes_after is not None and vectors(grid) >= comes_after:
            return everybody()
        return [node_id for node_id in everybody() if node_id - FIRST_NODE_ID not in away]

    grid.get_node_ids = node_ids
    return grid


def participations(directory):
    counts = json.loads((directory / "ledger.json").read_text())["participations"]
    return {int(client): count for group in counts for client, count in group.items()}


def test_a_node_that_joins_later_has_spent_less(tmp_path):
    grid = online_from(LocalGrid(NUM_CLIENTS), LATE, comes_after=1)
    records = run(tmp_path / "run", SOME, grid=grid)
    assert [record.failures for record in records] == [{}, {}, {}]
    assert [record.survivors for record in records] == [[10], [12], [12]]
    assert participations(tmp_path / "run") == {k: 2 if k in LATE else 3 for k in range(NUM_CLIENTS)}
    agree, steady = [{"advertise"}, {"share"}], [{"mask", "advertise"}, {"unmask", "share"}]
    # The keys agreed for round 2 are of a cohort without those who came, so it agrees anew.
    assert grid.exchanges == [
        *[{"join"}, *agree, *steady],
        *[{"join"}, *agree, *steady],
        *[{"mask"}, {"unmask"}],
    ]
    assert audit_run(tmp_path / "run").passed


def test_a_node_that_leaves_for_good_is_neither_asked_nor_charged_any_more(tmp_path, monkeypatch):
    grid = LocalGrid(NUM_CLIENTS)
    everybody = grid.get_node_ids
    monkeypatch.setattr(
        grid, "get_node_ids", lambda: [n for n in everybody() if n != FIRST_NODE_ID + 7 or vectors(grid) < 2]
    )
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    assert [record.failures for record in records] == [{}, {}, {}]
    assert [record.survivors for record in records] == [[12], [12], [11]]
    assert participations(tmp_path / "run") == {k: 2 if k == 7 else 3 for k in range(NUM_CLIENTS)}
    assert audit_run(tmp_path / "run").passed


@pytest.mark.parametrize(("before", "after"), [(LATE, ()), ((), LATE)])
def test_a_round_interrupted_while_nodes_come_or_go_is_charged_to_those_who_were_there(
    tmp_path, before, after
):
    directory, there = tmp_path / "run", NUM_CLIENTS - len(before)
    with pytest.raises(Crash):
        run(directory, SOME, grid=online_from(crashing_grid(NUM_CLIENTS, "mask", there + 3), before))
    records = run(directory, SOME, grid=online_from(LocalGrid(NUM_CLIENTS), after), resume=True)
    assert [record.cohort_sizes for record in records] == [[there], [there], [NUM_CLIENTS - len(after)]]
    assert [record.reachable for record in records] == [[there], [], [NUM_CLIENTS - len(after)]]
    assert sum(participations(directory).values()) == 2 * there + NUM_CLIENTS - len(after)
    assert audit_run(directory).findings == ()


def test_under_fixed_size_sampling_no_round_is_charged_while_a_client_is_absent(tmp_path):
    """A run with fixed-size sampling stops without a charge if a client is absent, and can be resumed."""
    fixed = ["privacy.sampling=fixed_size", "privacy.adjacency=replace_one", "secagg.dropout_tolerance=0.3"]
    words = [*SOME, *fixed, "privacy.sampling_rate=0.75", "run.timeout_seconds=0.1"]
    with pytest.raises(RunError, match="11 clients of the groups can be reached, and privacy.sampling=fixed"):
        run(tmp_path / "run", words, grid=online_from(LocalGrid(NUM_CLIENTS), LATE[1:]))
    assert participations(tmp_path / "run") == {}
    records = run(tmp_path / "run", resume=True, grid=LocalGrid(NUM_CLIENTS))
    assert [record.cohort_sizes for record in records] == [[9]] * 3


def move(grid, client):
    """Start a client's node anew: with another node id and without its state."""
    old = grid.contexts.pop(FIRST_NODE_ID + client)
    grid.contexts[NEW_NODE_ID] = make_context(client, old.node_config, NEW_NODE_ID)


def moving(client, **options):
    """Return a simulated Flower grid that restarts a node after the sum of round 1 was unmasked."""
    moved: list[int] = []

    def meddle(kind, asked, content):
        if kind == "unmask" and asked == NUM_CLIENTS - 1 and not moved:
            moved.append(client)
            move(grid, client)
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=meddle, **options)
    return grid


def test_a_node_that_comes_back_under_another_id_goes_on(tmp_path):
    """A node that is started anew under another id takes part in all rounds, with newly agreed keys."""
    grid = moving(4)
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    assert [record.survivors for record in records] == [[12], [12], [12]]
    assert refusals(grid) == []


def test_in_active_mode_nobody_comes_under_another_key(tmp_path, caplog):
    grid = moving(4, node_config=FIRST_SEEN)
    records = run(tmp_path / "run", [*EVERYBODY, *ACTIVE], grid=grid)
    assert [record.survivors for record in records] == [[12], [11], [11]]
    assert caplog.text.count("client 4 signs with a key that the other clients do not know") == 1


@pytest.mark.parametrize(
    ("partition", "words"),
    [(3, "two SuperNodes say they are client 3"), (99, "client 99: partition-id must be from 0 to 11")],
)
def test_a_stranger_is_asked_once_and_left_out(tmp_path, caplog, monkeypatch, partition, words):
    grid = LocalGrid(NUM_CLIENTS)
    everybody = grid.get_node_ids
    grid.contexts[NEW_NODE_ID] = make_context(partition, node_id=NEW_NODE_ID)
    monkeypatch.setattr(
        grid, "get_node_ids", lambda: [n for n in everybody() if n != NEW_NODE_ID or vectors(grid)]
    )
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    assert [record.survivors for record in records] == [[12], [12], [12]]
    assert caplog.text.count(words) == 1


@pytest.mark.parametrize(("epsilon", "runs"), [(3.0, 1), (0.5, 0)])
def test_a_late_node_agrees_to_the_terms_or_stays_away(tmp_path, caplog, epsilon, runs):
    owners = grid_of_owners(tmp_path / "ledgers", [None] * 11 + [epsilon])
    grid = online_from(owners, {11}, comes_after=1)
    records = run(tmp_path / "run", [*SOME, "privacy.budgets=[3]"], grid=grid)
    assert [record.survivors for record in records] == [[11], [11 + runs], [11 + runs]]
    late = ledger_of(tmp_path / "ledgers", 11)
    assert [each.rounds for each in late.runs] == [[1, 2]] * runs
    assert [each.terms.first_round for each in late.runs] == [1] * runs
    for each in late.runs:
        whole = replace(each.terms, first_round=0)
        assert 0 < late.epsilon(1e-3) < compose_runs([whole.planned_charges()], 1e-3).epsilon <= epsilon
    assert ("does not fit this client's own budget; the run goes on without it" in caplog.text) == (runs == 0)
    assert ("(the plan's delta is 0.001)" in caplog.text) == (runs == 0)


def test_a_node_that_comes_between_two_parts_of_a_run_is_charged_for_the_second(tmp_path):
    """A node that joins when a run is resumed is charged for later rounds only; others keep their charges."""
    ledgers, directory = tmp_path / "ledgers", tmp_path / "run"
    epsilons, overrides = [None] * 9 + [3.0] * 3, [*SOME, "privacy.budgets=[3]"]
    first = online_from(grid_of_owners(ledgers, epsilons), {10, 11})
    first.get_node_ids = online_from(first, {9}, comes_after=1).get_node_ids
    run(directory, [*overrides, "run.stop_after_round=2"], grid=first)
    second = online_from(grid_of_owners(ledgers, epsilons), {11}, comes_after=3)
    records = run(directory, overrides, grid=second, resume=True)
    assert [record.survivors for record in records] == [[9], [10], [11]]
    agreed = {client: ledger_of(ledgers, client).runs for client in (9, 10, 11)}
    assert [(each.terms.first_round, each.rounds) for each in agreed[9]] == [(1, [1, 2])]
    assert [(each.terms.first_round, each.rounds) for each in agreed[10]] == [(2, [2])]
    assert agreed[11] == ()
    spent = [ledger_of(ledgers, client).epsilon(1e-3) for client in (9, 10)]
    assert spent[0] > spent[1] > 0
    for client in (9, 10):
        audit = audit_node_ledger(ledgers / f"{client}.json")
        assert audit.passed
        assert audit.runs[0].epsilon == pytest.approx(ledger_of(ledgers, client).epsilon(1e-3), rel=0.02)


def test_turns_of_nodes_that_come_late_or_go_are_moved_and_each_pays_for_its_own(tmp_path):
    """Turns (scheduled rounds) of late or absent nodes are moved, and each node charges its own turns."""
    ledgers, directory = tmp_path / "ledgers", tmp_path / "run"
    grid = online_from(grid_of_owners(ledgers, [3.0] * NUM_CLIENTS), LATE, comes_after=2)
    grid.get_node_ids = online_from(grid, {0}, comes_after=1).get_node_ids
    records = run(directory, [*SOME, *TURNS, "run.minimum_nodes=7"], grid=grid)
    assert [record.survivors for record in records] == [[sum(r.cohort_sizes)] for r in records]
    assert max(sum(record.cohort_sizes) for record in records) == NUM_CLIENTS // 3
    taken = {int(k): each for k, each in json.loads((directory / "ledger.json").read_text())["taken"].items()}
    for client in range(NUM_CLIENTS):
        node = ledger_of(ledgers, client)
        assert [each.rounds for each in node.runs] == [taken[client]]
        assert all(later - turn >= 3 for turn, later in pairwise(taken[client]))
        audit = audit_node_ledger(ledgers / f"{client}.json")
        assert audit.passed
        assert node.epsilon(1e-3) == pytest.approx(audit.runs[0].epsilon)
        assert audit.runs[0].epsilon <= 3.0
    # Client 0 misses round 1 and takes a place in the next one; those who come late have their own.
    assert taken[0] == [1, 4]
    assert min(turn for client in LATE for turn in taken[client]) == 2
    assert audit_run(directory).passed


def test_whose_turn_an_interrupted_round_was_is_in_the_log(tmp_path):
    turns = [*EVERYBODY, *TURNS, "run.num_rounds=4", "privacy.sampling_rate=0.5"]
    with pytest.raises(Crash):
        run(tmp_path / "run", turns, grid=crashing_grid(NUM_CLIENTS, "mask", 9))
    records = run(tmp_path / "run", [], resume=True)
    assert ["round" in record.failures for record in records] == [False, True, False, False]
    assert [record.turns[0] for record in records[:2]] == [list(range(0, 12, 2)), list(range(1, 12, 2))]
    assert audit_run(tmp_path / "run").passed


def test_fewer_than_the_least_are_too_few(tmp_path):
    grid = online_from(LocalGrid(NUM_CLIENTS), range(7, NUM_CLIENTS))
    with pytest.raises(RunError, match="7 SuperNodes for 12 clients"):
        run(tmp_path / "run", SOME, grid=grid)
