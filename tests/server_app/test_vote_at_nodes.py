"""Tests of a vote over settings, which is one sum of all nodes or clients before the first round."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.once_checks import check_once
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.methods.vote import vote_request
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.rounds.extensions.vote_result import VoteResult
from gdpfed.simulation.in_process_fleet import simulate
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import grid_of_owners, nothing_drawn, run, small_config

SETTINGS = [
    *("dataset=breast_cancer", "dataset.num_clients=4", "privacy=record_level", "method=dp_sum"),
    # Half of a budget of 200 leaves the votes of four noise of less than one, and 1e-7 learns nothing.
    *("privacy.budgets=[200]", "privacy.batch_rate=0.5", "run.num_rounds=2", "privacy.vote_share=0.5"),
    *("privacy.delta=1e-5", "privacy.sampling_rate=1", "privacy.accountant=pld"),
    *("training.learning_rate=1e-7", "training.vote={learning_rate:[1e-7,5]}", "secagg.minimum_cohort=3"),
]


@pytest.fixture
def hospitals(tmp_path):
    """Return the folder, and a grid of four nodes that have budgets and ledgers."""
    grid = LocalGrid(4)
    for client in range(4):
        grid.contexts[FIRST_NODE_ID + client].node_config |= {
            "epsilon-record": 200.0,
            "delta-record": 1e-5,
            "ledger": str(tmp_path / f"{client}.json"),
        }
    return tmp_path, grid


def entry_of(path):
    (entry,) = json.loads(path.read_text())["ledger"]["runs"]
    return entry


def assert_voted(directory):
    """Check that all four nodes voted and that the run continued with the setting that won."""
    found = VoteResult.read(directory)
    assert found is not None
    assert found.clients == 4
    assert found.chosen == tuple(found.settings[int(np.argmax(found.votes))])
    card = (directory / "model_card.md").read_text()
    assert "4 clients tried 2 settings" in card
    assert f"The first was taken:\n\n* training.learning_rate={found.chosen[0]:g}: " in card
    losses = [json.loads(line)["loss"] for line in (directory / "rounds.jsonl").read_text().splitlines()]
    assert (abs(losses[1] - losses[0]) > 1e-3) == (found.chosen[0] == 5)


def test_all_nodes_vote_once_before_the_first_round_and_pay_for_it(hospitals):
    folder, grid = hospitals
    # Of whole batches an audit computes no sampled losses, which it would do again for each change below.
    run(folder / "run", [*SETTINGS, "privacy.batch_rate=1"], grid=grid)
    assert_voted(folder / "run")
    entry = entry_of(folder / "2.json")
    assert (entry["voted"], entry["rounds"]) == (True, [0, 1])
    (audit,) = audit_node_ledger(folder / "2.json").runs
    assert audit.within_budget
    assert 190 < audit.epsilon <= 200
    assert_audit_names_what_was_changed(folder / "run")


def assert_audit_names_what_was_changed(directory):
    """Check that the audit finds each change of files: less noise, no charge, or more settings."""
    for name, change, words in (
        ("vote.json", lambda found: found.update(noise_stddev=0.01), "below the plan's"),
        ("ledger.json", lambda ledger: ledger.update(vote_charged=False), "not the vote before them"),
        ("plan.json", lambda plan: plan.pop("vote"), "no plan pays for"),
        (
            "plan.json",
            lambda plan: plan["vote"]["charge"]["event"].update(clipping_norm=1.0),
            "move votes by",
        ),
        ("plan.json", lambda plan: plan["vote"].update(options=3), "a vote on 3 settings"),
    ):
        text = (directory / name).read_text()
        data = json.loads(text)
        change(data)
        (directory / name).write_text(json.dumps(data))
        assert words in " ".join(check_once(RunFiles.read(directory)))
        assert not audit_run(directory).passed
        (directory / name).write_text(text)
    assert audit_run(directory).passed


def test_a_node_that_comes_just_before_the_vote_votes_too(hospitals, monkeypatch):
    folder, grid = hospitals
    everybody = grid.get_node_ids

    def node_ids():
        begun = any("begin" in exchange for exchange in grid.exchanges)
        return [node_id for node_id in everybody() if begun or node_id != FIRST_NODE_ID + 3]

    monkeypatch.setattr(grid, "get_node_ids", node_ids)
    run(folder / "run", [*SETTINGS, "run.minimum_nodes=3"], grid=grid)
    assert_voted(folder / "run")
    late = entry_of(folder / "3.json")
    assert (late["voted"], late["terms"]["first_round"]) == (True, 0)


def test_a_simulation_votes_by_the_same_sum_and_a_resumed_one_keeps_the_choice(tmp_path):
    directory = tmp_path / "run"
    with nothing_drawn():
        simulate(small_config(directory, [*SETTINGS, "privacy.batch_rate=1", "run.stop_after_round=1"]))
        first = VoteResult.read(directory)
        simulate(small_config(directory, ["run.stop_after_round=null"], resume=True))
    assert VoteResult.read(directory) == first
    assert_voted(directory)
    assert audit_run(directory).passed


@pytest.mark.parametrize("against", ["outsiders", "everyone"])
def test_clients_that_are_protected_themselves_vote_and_pay_too(tmp_path, against):
    words = [
        *("dataset.num_clients=6", "privacy.budgets=[60]", "method=gdpfed", "privacy.accountant=pld"),
        *(f"privacy.against={against}", "privacy.sampling_rate=0.9", "run.num_rounds=2"),
        *("training.learning_rate=1e-7", "training.learning_rate_decay=1", "privacy.vote_share=0.5"),
        *("training.vote={learning_rate:[1e-7,0.1]}", "training.local_steps=5"),
    ]
    grid = grid_of_owners(tmp_path / "ledgers", [90.0] * 6)
    run(tmp_path / "run", words, grid=grid)
    found = VoteResult.read(tmp_path / "run")
    assert found is not None
    assert (found.clients, found.chosen[1:]) == (6, (0.0, 1.0))
    assert audit_run(tmp_path / "run").passed
    assert entry_of(tmp_path / "ledgers" / "2.json")["voted"] is True
    (audit,) = audit_node_ledger(tmp_path / "ledgers" / "2.json").runs
    with locked_ledger(tmp_path / "ledgers" / "2.json") as file:
        assert audit.epsilon == pytest.approx(file.ledger.epsilon(1e-3), rel=0.01)
    assert audit.within_budget
    assert audit.against_server > 1
    # The vote alone is in the figure against the server of a client that has had no round.
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["vote"]["charge"]["event"]["clipping_norm"] == 1


def test_a_node_refuses_a_vote_under_less_noise_and_the_run_goes_on_without(hospitals, monkeypatch):
    folder, grid = hospitals

    def quieter(*asked):
        request = vote_request(*asked)
        return replace(request, noise_multiplier=request.noise_multiplier / 2)

    monkeypatch.setattr("gdpfed.rounds.extensions.vote.vote_request", quieter)
    monkeypatch.setattr(SumOnce, "broken_by", lambda *asked: "")
    run(folder / "run", SETTINGS, grid=grid)
    assert not (folder / "run" / "vote.json").exists()
    assert "A vote on settings came to nothing" in (folder / "run" / "model_card.md").read_text()
    assert "voted" not in entry_of(folder / "0.json")
    assert json.loads((folder / "run" / "ledger.json").read_text())["vote_charged"] is True


def test_a_node_votes_once_whatever_the_server_forgets(hospitals, monkeypatch):
    folder, grid = hospitals
    run(folder / "run", [*SETTINGS, "run.stop_after_round=1"], grid=grid)
    first = entry_of(folder / "1.json")
    ledger = json.loads((folder / "run" / "ledger.json").read_text())
    assert ledger["vote_charged"] is True
    (folder / "run" / "vote.json").unlink()

    def forgotten(extension, self):
        self.loop.state.ledger.charged_once.clear()
        self.loop.state.ledger._charged_rounds = 0
        summed = self.sum_once(
            vote_request(self.prepared.method, self.theta, range(4), self.prepared.config), 3
        )
        self.loop.state.ledger._charged_rounds = 1
        assert summed.total is None

    monkeypatch.setattr("gdpfed.rounds.extensions.vote.ClientVote.before_rounds", forgotten)
    run(folder / "run", ["run.stop_after_round=null"], grid=grid, resume=True)
    assert entry_of(folder / "1.json")["rounds"] == [*first["rounds"], 1]
