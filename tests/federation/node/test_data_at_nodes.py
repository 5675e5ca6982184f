"""Tests of nodes whose examples changed during a run: such a node sends nothing and charges nothing."""

import json
import shutil
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.federation.node.join_checks import DataRefusedError
from gdpfed.federation.node.known_data import UNUSABLE, refuse_other_data
from gdpfed.learning.data.own import OwnData
from testing.local_grid import FIRST_NODE_ID, refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, ledger_of, run, small_config

WORDS = ["method=dp_fedavg", "privacy.sampling_rate=1", "run.num_rounds=2", "run.minimum_nodes=11"]
CHANGED = 3


def grid(folder):
    """Return a grid of nodes, each with a budget, a ledger and a file of its own examples."""
    made = grid_of_owners(folder, [9.0] * NUM_CLIENTS)
    for client in range(NUM_CLIENTS):
        made.contexts[FIRST_NODE_ID + client].node_config["data"] = str(folder / f"{client}.npz")
    return made


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    """Stop a run after its first round, change the labels in one node's file, and return the folder."""
    parent = tmp_path_factory.mktemp("paused")
    folder = parent / "nodes"
    folder.mkdir()
    task = task_of(small_config(parent / "run"))
    for client in range(NUM_CLIENTS):
        part = task.client_data(client)
        np.savez(folder / f"{client}.npz", x_train=part.x, y_train=part.y)
    run(parent / "run", [*WORDS, "run.stop_after_round=1"], grid=grid(folder))
    first = np.load(folder / f"{CHANGED}.npz")
    np.savez(folder / f"{CHANGED}.npz", x_train=first["x_train"], y_train=9 - first["y_train"])
    return parent


@pytest.fixture
def begun(paused, tmp_path):
    """Copy the folder that `paused` returns, and return the folder of the nodes in the copy."""
    shutil.copytree(paused, tmp_path, dirs_exist_ok=True)
    return tmp_path / "nodes"


def rounds_of(folder, client):
    return [each.rounds for each in ledger_of(folder, client).runs]


def test_a_node_with_other_examples_says_no_and_only_its_own_log_says_why(begun, tmp_path, caplog):
    nodes = grid(begun)
    records = run(tmp_path / "run", [], grid=nodes, resume=True)
    assert [sum(each.survivors) for each in records] == [12, 11]
    assert refusals(nodes) == [UNUSABLE]
    assert f"{CHANGED}.npz is not what run " in caplog.text
    assert rounds_of(begun, CHANGED) == [[0]]
    hashes = (begun / f"{CHANGED}.json.data").read_text()
    assert not any(
        each.encode() in reply for each in hashes.split('"') if len(each) == 64 for reply in sent(nodes)
    )


def sent(nodes):
    return [repr(dict(reply)).encode() for reply in nodes.replies]


def test_its_operator_may_have_it_go_on(begun, tmp_path):
    kept = begun / f"{CHANGED}.json.data"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    records = run(tmp_path / "run", [], grid=grid(begun), resume=True)
    assert [sum(each.survivors) for each in records] == [12, 12]
    assert rounds_of(begun, CHANGED) == [[0, 1]]


def test_a_damaged_file_keeps_the_node_out(begun, tmp_path, caplog):
    (begun / "5.json.data").write_text("{")
    (begun / f"{CHANGED}.json.data").unlink()
    records = run(tmp_path / "run", [], grid=grid(begun), resume=True)
    assert [sum(each.survivors) for each in records] == [12, 11]
    assert "5.json.data, which says what runs began with, is damaged" in caplog.text


@pytest.mark.parametrize("kind", [LearningError, TypeError, MemoryError])
def test_a_server_learns_of_no_kind_of_error(tmp_path, kind):
    kept = tmp_path / "kept.data"
    kept.write_text(json.dumps({"version": 1, "runs": {"run": "0" * 64}}))
    kept.chmod(0o600)
    node: Any = SimpleNamespace(data=OwnData(tmp_path / "own.npz"), kept_beside=lambda suffix: kept)
    with (
        patch("gdpfed.federation.node.known_data.read_own", side_effect=kind("of a record")),
        pytest.raises(DataRefusedError, match=f"^{UNUSABLE}$"),
    ):
        refuse_other_data(node, "run")
