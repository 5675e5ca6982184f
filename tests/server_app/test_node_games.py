"""Tests of games in which nodes choose their privacy budgets by round: plans, charges and false messages."""

import json
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import ConfigRecord, RecordDict

from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.messages import ORDER_RECORD, TERMS_RECORD
from gdpfed.errors import ConfigError, RunError
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.game.mean_field import play
from gdpfed.extras.fedpcs.game.payoffs import Game
from gdpfed.extras.fedpcs.node_side import GAME as GAME_RECORD
from gdpfed.extras.fedpcs.node_side import PATH
from gdpfed.extras.fedpcs.path_terms import PathTerms
from gdpfed.simulation import simulate
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, make_context, refusals
from testing.small_runs import ledger_of, run

NODES = 5
ROUNDS = 4
AVERSIONS = [0.1, 0.3, 0.5, 0.7, 0.9]
FIRST = [8.0, 2.0, 4.0, 1.0, 6.0]
SCALE = 0.001
GAME = [
    f"dataset.num_clients={NODES}",
    "privacy=record_level",
    "privacy.accountant=pld",
    "privacy.sampling_rate=1",
    "privacy.delta=1e-5",
    "method=fedpcs",
    "method.types=clients",
    "method.draws=without_replacement",
    f"method.budget_scale={SCALE}",
    f"run.num_rounds={ROUNDS}",
]


def players(folder, more=None, epsilon=5.0, **options):
    """Return a grid of nodes with ledgers and privacy aversions; ``more[k]`` changes node k's settings."""
    grid = LocalGrid(NODES, **options)
    folder.mkdir(exist_ok=True)
    for client in range(NODES):
        own = {
            "epsilon-record": epsilon,
            "ledger": str(folder / f"{client}.json"),
            "aversion": AVERSIONS[client],
            "first-budget": FIRST[client],
        }
        told = own | (more or {}).get(client, {})
        config = {key: value for key, value in told.items() if value is not None}
        grid.contexts[FIRST_NODE_ID + client].node_config |= config
    return grid


def in_one_place():
    """Return the game's result where all nodes' aversions to privacy loss are known in one place."""
    game = Game(
        aversions=np.array(AVERSIONS),
        first_budgets=np.array(FIRST),
        cohort_sizes=np.full(ROUNDS, NODES),
        least=0.01,
        highest=12.0,
    )
    return play(game, np.full(ROUNDS, 5.0), guess=np.full(ROUNDS, 6.005))


def test_nodes_play_to_the_same_mean_field_and_keep_their_aversions(tmp_path):
    grid = players(tmp_path / "nodes")
    records = run(tmp_path / "run", GAME, grid=grid)
    assert [record.survivors for record in records] == [[NODES]] * ROUNDS
    assert refusals(grid) == []
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    expected = in_one_place()
    # The nodes' grids of budgets end at other budgets than a grid for all of them.
    assert np.abs(np.array(plan["game"]["mean_budgets"]) - expected.mean_budgets).max() < 0.02
    assert np.abs(np.array(plan["game"]["paths"]) - expected.budgets).max() < 0.1
    assert plan["game"]["converged"]
    assert not {"aversions", "corrections"} & plan["game"].keys()
    told = [reply[GAME_RECORD] for reply in grid.replies if GAME_RECORD in reply]
    assert len(told) == NODES * len(plan["game"]["announced"])
    assert all(set(record) == {PATH} for record in told)
    assert audit_run(tmp_path / "run").passed
    for client in range(NODES):
        (entry,) = ledger_of(tmp_path / "nodes", client).runs
        assert isinstance(entry.terms, PathTerms)
        path = SCALE * np.array(plan["game"]["paths"])[:, client]
        assert entry.terms.path == pytest.approx(path)
        assert (entry.rounds, entry.steps) == ([0, 1, 2, 3], [1, 1, 1, 1])
        spent = ledger_of(tmp_path / "nodes", client).epsilon(1e-5, unit="record")
        assert spent == pytest.approx(epsilon_of_total(float(path.sum()), 1e-5))
        audit = audit_node_ledger(tmp_path / "nodes" / f"{client}.json")
        assert audit.passed
        assert audit.runs[0].epsilon == audit.runs[0].against_server == pytest.approx(spent)


def test_a_node_whose_budget_is_half_its_path_refuses_with_the_figures(tmp_path, caplog):
    whole = SCALE * 4 * 8.0  # client 0 keeps its first budget, the largest
    half = epsilon_of_total(whole / 2, 1e-5)
    grid = players(tmp_path / "nodes", {0: {"epsilon-record": half}})
    with pytest.raises(RunError, match="client 0 does not take part in this run: this run does not fit"):
        run(tmp_path / "run", GAME, grid=grid)
    assert "budgets by round of 0.032 zCDP in 4 rounds would take group 0 of this client's" in caplog.text
    assert f"from epsilon 0 to {epsilon_of_total(whole, 1e-5):.4g}" in caplog.text
    assert f"above its own budget of {half:g}" in caplog.text
    assert not (tmp_path / "run").exists()
    assert ledger_of(tmp_path / "nodes", 0).runs == ()


def test_a_node_stops_after_its_own_most_participations(tmp_path):
    """A node whose budget suffices for two of four rounds takes part in two, which is its own limit."""
    half = epsilon_of_total(SCALE * 2 * 8.0, 1e-5)
    grid = players(tmp_path / "nodes", {0: {"epsilon-record": half * 1.001, "max-participations": 2}})
    records = run(tmp_path / "run", [*GAME, "secagg.dropout_tolerance=0.2"], grid=grid)
    assert [record.survivors for record in records] == [[5], [5], [4], [4]]
    assert "this client takes part in 2 rounds of a run at most" in refusals(grid)[0]
    assert ledger_of(tmp_path / "nodes", 0).runs[0].rounds == [0, 1]
    assert audit_node_ledger(tmp_path / "nodes" / "0.json").passed


def test_a_run_goes_on_with_the_paths_it_began_with_and_a_changed_mind_stays_out(tmp_path):
    masked = []

    def vanishes(kind, client):
        masked.append(kind)
        if kind == "mask" and masked.count("mask") == 2 * NODES + 1:
            raise Crash
        return False

    with pytest.raises(Crash):
        run(tmp_path / "run", GAME, grid=players(tmp_path / "nodes", vanishes=vanishes))
    again = players(tmp_path / "nodes")
    again.contexts[FIRST_NODE_ID + 3].node_config["aversion"] = 0.05
    with pytest.raises(RunError, match="client 3 .* budgets by round are not this client's answer"):
        run(tmp_path / "run", grid=again, resume=True)
    again.contexts[FIRST_NODE_ID + 3].node_config["aversion"] = AVERSIONS[3]
    again.exchanges.clear()
    run(tmp_path / "run", grid=again, resume=True)
    assert {"ask"} not in again.exchanges
    # The third round was charged by the server and reached no node.
    assert [ledger_of(tmp_path / "nodes", client).runs[0].rounds for client in range(NODES)] == [
        [0, 1, 3]
    ] * 5
    assert audit_run(tmp_path / "run").passed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aversion": None, "first-budget": None}, "was not started with aversion and first-budget"),
        ({"first-budget": None}, "aversion is given without first-budget"),
        ({"aversion": None}, "first-budget is given without aversion"),
        ({"aversion": 1.0}, "aversion is 1.0: give a number above 0 and below 1"),
        ({"aversion": 0}, "aversion is 0: give a number above 0 and below 1"),
        ({"first-budget": 12.5}, "first-budget is 12.5, and this run takes budgets from 0.01 to 12"),
        ({"first-budget": 0.001}, "first-budget is 0.001, and this run takes budgets from 0.01 to 12"),
        ({"epsilon-record": None, "epsilon": 3.0}, "this node has a budget for a client only"),
        ({"epsilon-record": None}, "ledger is given without epsilon"),
        ({"averson": 0.5}, "averson is not a setting of a node; the nearest one is aversion"),
        ({"max-participations": 0}, "max-participations is 0: give a whole number"),
    ],
)
def test_a_node_that_cannot_play_ends_the_run_before_it_begins(tmp_path, settings, words):
    with pytest.raises(RunError) as error:
        run(tmp_path / "run", GAME, grid=players(tmp_path / "nodes", {0: settings}))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def spoilt(answer):
    def spoil(kind, client, content):
        if (kind, client) == ("ask", 2):
            content[GAME_RECORD] = ConfigRecord({PATH: answer})
        return content

    return spoil


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1.0] * 3, "client 2 answers with a list where a text should be: it must give one budget for each"),
        ([1.0, 1.0, 1.0, 13.0], "client 2 answers with a budget of 13.0: it must lie from 0.01 to 12"),
        ([1.0, 1.0, 1.0, float("nan")], "client 2 answers with a budget of nan"),
        ("all", "client 2 answers with all: it must give one budget for each"),
    ],
)
def test_an_answer_that_is_no_path_costs_that_node_its_part(tmp_path, answer, words, caplog):
    remedy = (
        f"{NODES - 1} nodes are left and {NODES} are needed: run.minimum_nodes={NODES - 1} goes on without it"
    )
    with pytest.raises(RunError, match=f"{words}.*; {remedy}$"):
        run(tmp_path / "run", GAME, grid=players(tmp_path / "nodes", spoil=spoilt(answer)))
    assert not (tmp_path / "run").exists()
    grid = players(tmp_path / "more", spoil=spoilt(answer))
    fewer = [*GAME, f"run.minimum_nodes={NODES - 1}", "run.stop_after_round=1"]
    run(tmp_path / "other", fewer, grid=grid)
    assert any(re.search(words, line) for line in caplog.messages)
    assert ledger_of(tmp_path / "more", 2).runs == ()


def test_a_game_that_one_node_is_told_otherwise_is_not_agreed_to(tmp_path):
    """A node refuses the run if the server tells it other rewards of the game than it tells other nodes."""

    def other_rewards(kind, client, content):
        if client == 2 and GAME_RECORD in content:
            told = dict(content[GAME_RECORD])
            told["rewards"] = [5 * each for each in told["rewards"]]
            content = RecordDict({**content, GAME_RECORD: ConfigRecord(told)})
        return content

    grid = players(tmp_path / "nodes", meddle=other_rewards)
    run(tmp_path / "run", [*GAME, f"run.minimum_nodes={NODES - 1}", "run.stop_after_round=1"], grid=grid)
    assert any(
        "the terms follow an announcement that this client was not sent" in each for each in refusals(grid)
    )
    assert ledger_of(tmp_path / "nodes", 2).runs == ()


def test_terms_and_orders_go_by_the_same_announcement(tmp_path):
    """A node charges no round if a message names another announcement of the game than the node answered."""
    told = []

    def other(kind, client, content):
        for record in content.config_records.values():
            if client == 2 and record.get("announced"):
                told.append(kind)
                record["announced"] = "0" * 64
        return content

    grid = players(tmp_path / "nodes", meddle=other)
    with suppress(RunError):
        run(tmp_path / "run", [*GAME, "run.minimum_nodes=3", "run.stop_after_round=1"], grid=grid)
    assert told
    assert any("announcement" in each for each in refusals(grid))
    assert all(entry.rounds == [] for entry in ledger_of(tmp_path / "nodes", 2).runs)


def test_announcing_ends_at_its_limit_and_the_last_answers_are_the_plan(tmp_path):
    grid = players(tmp_path / "nodes")
    run(tmp_path / "run", [*GAME, "method.most_announcements=2", "run.stop_after_round=1"], grid=grid)
    assert grid.exchanges.count({"ask"}) == 3
    game = json.loads((tmp_path / "run" / "plan.json").read_text())["game"]
    assert (len(game["announced"]), game["converged"]) == (3, False)


def test_a_simulation_has_no_nodes_to_ask(tmp_path):
    with pytest.raises(ConfigError, match="a simulation or a plan has no nodes"):
        simulate(load([*GAME, f"run.directory={tmp_path / 'run'}"]))


def test_nodes_without_an_aversion_check_a_path_that_is_given_them(tmp_path):
    given = [each for each in GAME if "types" not in each] + [f"method.first_budgets={FIRST}"]
    quiet = {client: {"aversion": None, "first-budget": None} for client in range(NODES)}
    grid = players(tmp_path / "nodes", quiet)
    run(tmp_path / "run", [*given, "run.stop_after_round=1"], grid=grid)
    terms: Any = ledger_of(tmp_path / "nodes", 0).runs[0].terms
    assert terms.path[0] == pytest.approx(SCALE * 8.0)
    # With an aversion it takes no path that is not its own answer.
    grid = players(tmp_path / "nodes")
    with pytest.raises(RunError, match="lacks the record game, which announces the game"):
        run(tmp_path / "other", given, grid=grid)


def changed(content, name, **changes):
    content[name] = ConfigRecord({**content[name], **changes})
    return content


@pytest.mark.parametrize(
    ("kind", "name", "changes", "words"),
    [
        ("mask", ORDER_RECORD, {"record_noise_multiplier": 1.0}, "noise multiplier 1 of a step is below"),
        ("mask", ORDER_RECORD, {"record_num_steps": 2}, "the server asks for 2 steps where the terms charge"),
        ("mask", ORDER_RECORD, {"record_batch_rates": [0.5, 0.5]}, "batch rates 0.5, 0.5 are not within"),
        ("mask", ORDER_RECORD, {"weight": 1e9}, "OrderError, see the log of the client"),
    ],
)
def test_a_rogue_server_gets_no_update(tmp_path, kind, name, changes, words):
    grid = players(
        tmp_path / "nodes",
        meddle=lambda asked, client, content: changed(content, name, **changes) if asked == kind else content,
    )
    run(tmp_path / "run", [*GAME, "run.num_rounds=1"], grid=grid, without_a_sum=True)
    assert all(words in refusal for refusal in refusals(grid)[:NODES])
    assert all(ledger_of(tmp_path / "nodes", client).runs[0].rounds == [] for client in range(NODES))


@pytest.mark.parametrize("kind", ["offer", "begin"])
def test_a_path_that_the_node_did_not_answer_is_not_agreed_to(tmp_path, kind):
    """A node refuses a run whose charges imply other budgets by round than the node has answered."""

    def meddle(asked, client, content):
        if (asked, client) != (kind, 1):
            return content
        charges = json.loads(content[TERMS_RECORD]["charges"])
        for charge in charges:
            charge["event"]["noise_stddev"] /= 2
        return changed(content, TERMS_RECORD, charges=json.dumps(charges))

    grid = players(tmp_path / "nodes", meddle=meddle)
    overrides = [*GAME, "secagg.dropout_tolerance=0.2", "run.stop_after_round=1"]
    if kind == "offer":
        with pytest.raises(RunError, match="client 1 .* budgets by round are not this client's answer"):
            run(tmp_path / "run", overrides, grid=grid)
    else:
        run(tmp_path / "run", overrides, grid=grid)
        assert "the terms' budgets by round are not this client's answer" in " ".join(refusals(grid))
    assert ledger_of(tmp_path / "nodes", 1).runs == ()


def vectors(grid):
    """Return how many exchanges so far have asked nodes for masked vectors: one in each masked round."""
    return sum("mask" in exchange for exchange in grid.exchanges)


@pytest.mark.parametrize(("aversion", "rounds"), [(AVERSIONS[4], [0, 2, 3]), (0.2, [0])])
def test_a_node_that_comes_back_takes_part_if_its_path_is_still_its_answer(tmp_path, aversion, rounds):
    """A node that comes back takes part only if its settings still give the plan's budgets by round."""
    grid, new = players(tmp_path / "nodes"), FIRST_NODE_ID + 100
    everybody = grid.get_node_ids

    def node_ids():
        if vectors(grid) == 1:
            grid.contexts.pop(FIRST_NODE_ID + 4, None)
        if vectors(grid) == 2 and new not in grid.contexts:
            first = {"aversion": aversion, "first-budget": FIRST[4], "epsilon-record": 5.0}
            told = {**first, "ledger": str(tmp_path / "nodes" / "4.json")}
            grid.contexts[new] = make_context(4, told, new)
        return everybody()

    grid.get_node_ids = node_ids
    overrides = [*GAME, "secagg.dropout_tolerance=0", "run.minimum_nodes=4", "method.draws=poisson"]
    records = run(tmp_path / "run", overrides, grid=grid)
    back = 5 if len(rounds) > 1 else 4
    assert [record.survivors for record in records] == [[5], [4], [back], [back]]
    assert ledger_of(tmp_path / "nodes", 4).runs[0].rounds == rounds
    assert ("budgets by round are not this client's answer" in " ".join(refusals(grid))) == (back == 4)
    assert audit_run(tmp_path / "run").passed


def test_a_game_is_played_by_those_who_are_there_if_they_are_enough(tmp_path):
    grid = players(tmp_path / "nodes")
    del grid.contexts[FIRST_NODE_ID + 2]
    few = ["run.minimum_nodes=4", "run.timeout_seconds=1", "run.stop_after_round=1"]
    run(tmp_path / "few", [*GAME, *few], grid=grid)
    paths = yaml.safe_load((tmp_path / "few" / "config.yaml").read_text())["method"]["paths"]
    assert paths[2] == [0.01] * ROUNDS
    assert min(paths[3]) > 0.01
    grid = players(tmp_path / "silent", vanishes=lambda kind, client: (kind, client) == ("ask", 3))
    with pytest.raises(RunError, match="client 3 has not answered the announced game"):
        run(tmp_path / "run", GAME, grid=grid)
    assert not (tmp_path / "run").exists()
