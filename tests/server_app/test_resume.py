"""Tests of resuming runs: the result is that of an uninterrupted run, and nothing is charged twice."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import PrivacyError, RunError
from gdpfed.methods import ClientSum, make_method, resolve
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.directory import Enrolment, RunDirectory
from server_app.grid_fleet import GridFleet
from testing.local_grid import Crash, LocalGrid, crashing_grid
from testing.small_runs import (
    NUM_CLIENTS,
    files_in,
    final_model,
    grid_of_owners,
    ledger_of,
    run,
    small_config,
)


def paused(directory, overrides=()):
    run(directory, [*overrides, "run.stop_after_round=1"])
    return directory


def interrupted(directory, overrides, stage, occurrence, clients=NUM_CLIENTS):
    """Run training until a given message of a stage, counted over all clients, ends it with an error."""
    with pytest.raises(Crash):
        run(directory, overrides, grid=crashing_grid(clients, stage, occurrence))


def test_resumed_run_ends_with_the_same_model(tmp_path):
    whole = run(tmp_path / "whole", ["method=fedavg"])
    paused(tmp_path / "parts", ["method=fedavg"])
    parts = run(tmp_path / "parts", ["method=fedavg"], resume=True)
    np.testing.assert_array_equal(final_model(tmp_path / "whole"), final_model(tmp_path / "parts"))
    assert [(r.round, r.accuracy, r.cohort_sizes) for r in whole] == [
        (r.round, r.accuracy, r.cohort_sizes) for r in parts
    ]


def test_resumed_private_run_has_the_ledger_of_an_uninterrupted_one(tmp_path):
    whole = run(tmp_path / "whole")
    paused(tmp_path / "parts")
    parts = run(tmp_path / "parts", resume=True)
    assert [r.spent_epsilon for r in whole] == [r.spent_epsilon for r in parts]
    assert json.loads((tmp_path / "parts" / "ledger.json").read_text())["charged_rounds"] == 3


def test_the_sampling_key_survives_a_pause_and_not_the_end(tmp_path):
    checkpoint = paused(tmp_path / "run") / "checkpoint.safetensors"
    assert checkpoint.stat().st_mode & 0o077 == 0
    run(tmp_path / "run", resume=True)
    assert not checkpoint.exists()


# Keys cost by the pair of clients.
FEW = 8
FIRST, SECOND, THIRD = (number * FEW + 3 for number in range(3))


@pytest.mark.parametrize(
    ("keys_ahead", "stage", "occurrence", "lost"),
    [
        (True, "advertise", FIRST, 1),
        (True, "share", FIRST, 1),
        (True, "mask", FIRST, 1),
        (True, "advertise", SECOND, 1),
        (True, "unmask", FIRST, 1),
        (True, "share", SECOND, 1),
        (True, "mask", SECOND, 2),
        (True, "advertise", THIRD, 2),
        (True, "unmask", SECOND, 2),
        (True, "share", THIRD, 2),
        (False, "advertise", SECOND, 2),
        (False, "share", SECOND, 2),
        (False, "mask", SECOND, 2),
        (False, "unmask", SECOND, 2),
    ],
)
def test_an_interrupted_round_is_charged_once_and_not_repeated(tmp_path, keys_ahead, stage, occurrence, lost):
    overrides = ["privacy.sampling_rate=1", "method=dp_fedavg", f"secagg.keys_ahead={keys_ahead}"]
    overrides.append(f"dataset.num_clients={FEW}")
    interrupted(tmp_path / "run", overrides, stage, occurrence, FEW)
    assert json.loads((tmp_path / "run" / "ledger.json").read_text())["charged_rounds"] == lost
    grid = LocalGrid(FEW)
    records = run(tmp_path / "run", overrides, grid=grid, resume=True)
    assert [record.round for record in records] == [1, 2, 3]
    words = {"round": "interrupted before its end: charged, and not repeated"}
    assert [record.failures for record in records] == [words if r == lost else {} for r in (1, 2, 3)]
    assert grid.exchanges[:3] == [{"join"}, {"advertise"}, {"share"}]
    assert sum(kind == "mask" for kind, _ in grid.sent) == (3 - lost) * FEW
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["charged_rounds"] == 3
    assert set(ledger["participations"][0].values()) == {3}


def test_a_record_written_after_the_last_checkpoint_is_dropped(tmp_path):
    directory = paused(tmp_path / "run")
    (directory / "seal.json").unlink()
    line = (directory / "rounds.jsonl").read_text()
    (directory / "rounds.jsonl").write_text(line + line.replace('"round": 1', '"round": 2'))
    records = run(directory, resume=True)
    assert [record.round for record in records] == [1, 2, 3]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["run.seed=7"], "has run.seed=0, not 7: leave run.seed out to go on with it, or start a new run"),
        (["method=gdpfed"], "has method.name=gdpfed_plus, not gdpfed: leave"),
        (["privacy.clipping_norm=9"], "has privacy.clipping_norm=2.0, not 9.0: leave"),
    ],
)
def test_another_configuration_is_refused_and_changes_nothing(tmp_path, overrides, words):
    directory = paused(tmp_path / "run")
    before = files_in(directory)
    with pytest.raises(RunError, match=words):
        run(directory, overrides, resume=True)
    assert files_in(directory) == before


@pytest.mark.parametrize(
    "name", ["checkpoint.safetensors", "ledger.json", "rounds.jsonl", "config.yaml", "assignment.json"]
)
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_file_is_refused_and_changes_nothing(tmp_path, name, keep):
    directory = paused(tmp_path / "run")
    data = (directory / name).read_bytes()
    (directory / name).write_bytes(data[: int(len(data) * keep)])
    before = files_in(directory)
    with pytest.raises((RunError, PrivacyError), match="run.resume="):
        run(directory, resume=True)
    assert files_in(directory) == before


@pytest.mark.parametrize(
    "name", ["checkpoint.safetensors", "ledger.json", "rounds.jsonl", "config.yaml", "assignment.json"]
)
def test_a_missing_file_is_refused(tmp_path, name):
    directory = paused(tmp_path / "run")
    (directory / name).unlink()
    with pytest.raises(RunError, match=f"run.resume=.*{name}"):
        run(directory, resume=True)


def test_an_edited_log_is_refused_before_anything_is_charged(tmp_path):
    directory = paused(tmp_path / "run")
    path = directory / "rounds.jsonl"
    path.write_text(path.read_text().replace('"total": ', '"total": "a word", "kept": '))
    before = files_in(directory)
    with pytest.raises(RunError, match="rounds.jsonl is not what the run wrote: restore it from a copy"):
        run(directory, resume=True)
    assert files_in(directory) == before


def test_of_two_new_runs_in_one_directory_the_second_is_refused(tmp_path):
    """Both have found the directory empty; the second waits for no lock and overwrites nothing."""
    config = small_config(tmp_path / "run")
    method = make_method(resolve(config))
    second = RunDirectory.make(tmp_path / "run")
    run(tmp_path / "run")
    before = files_in(tmp_path / "run")
    with pytest.raises(RunError, match="is not empty: name another one"), second.held():
        second.begin(config, method, "second", Enrolment(), task_of(config))
    assert files_in(tmp_path / "run") == before


def test_a_finished_run_has_nothing_to_resume(tmp_path):
    run(tmp_path / "run")
    with pytest.raises(RunError, match="has ended: there is nothing to resume$"):
        run(tmp_path / "run", resume=True)


def test_a_run_is_resumed_by_one_process_at_a_time(tmp_path):
    """A run is resumed by one process at a time, and refuses a second process."""
    directory = paused(tmp_path / "run")
    config = small_config(directory, resume=True)
    late = RunDirectory.resume(directory, config)
    method = make_method(resolve(config))
    late.load_ledger(method.plan, "", ())
    grid, refused = LocalGrid(NUM_CLIENTS), set[int]()

    def resume_too(kind, client, content):
        if kind == "advertise" and not refused:
            with pytest.raises(RunError, match="another process is at this run: wait for its end"):
                run(directory, resume=True)
            refused.add(client)
        return content

    grid.meddle = resume_too
    assert [each.round for each in run(directory, grid=grid, resume=True)] == [1, 2, 3]
    assert refused
    with pytest.raises(RunError, match="another process has meanwhile continued this run: resume again"):
        late.held().__enter__()


def test_a_ledger_of_another_checkpoint_is_refused(tmp_path):
    directory = paused(tmp_path / "run")
    old = (directory / "checkpoint.safetensors").read_bytes()
    run(directory, ["run.stop_after_round=2"], resume=True)
    ledger = json.loads((directory / "ledger.json").read_text())
    ledger["charged_rounds"] = 3
    for (charge,) in ledger["charges"]:
        charge["count"] = 3
    (directory / "ledger.json").write_text(json.dumps(ledger))
    (directory / "checkpoint.safetensors").write_bytes(old)
    with pytest.raises(RunError, match="the ledger has 3 rounds and the checkpoint 1"):
        run(directory, resume=True)


def scripted_sums(fleet, order, charged, *, upcoming, extensions):
    """Return sums that depend only on the round, the model and the group, in place of noised sums."""
    del fleet, upcoming, extensions
    rng = np.random.default_rng(order.round_index)
    requests = [each.take() for each in charged]
    return [
        ClientSum(each.name, rng.normal(size=len(each.start)) - 0.1 * each.start, len(each.clients))
        for each in requests
    ]


def test_a_methods_state_survives_a_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(GridFleet, "sum_updates", scripted_sums)
    overrides = ["method=pfa", "method.history=3", "method.subspace_dimension=2"]
    run(tmp_path / "whole", overrides)
    run(tmp_path / "parts", [*overrides, "run.stop_after_round=2"])
    history = Checkpoint.load(tmp_path / "parts").method_state["public_sums"]
    assert history.shape[0] == 2
    run(tmp_path / "parts", overrides, resume=True)
    np.testing.assert_array_equal(final_model(tmp_path / "whole"), final_model(tmp_path / "parts"))


def test_a_state_of_another_method_is_refused(tmp_path):
    directory = paused(tmp_path / "run", ["method=gdpfed"])
    checkpoint = Checkpoint.load(directory)
    replace(checkpoint, method_state={"alien": np.ones(3, np.float32)}).save(directory)
    with pytest.raises(
        RunError, match="gdpfed keeps no state in a checkpoint, but found alien; restore the checkpoint"
    ):
        run(directory, ["method=gdpfed"], resume=True)


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=dp_fedavg",),
        ("method=gdpfed_star", "privacy.against=everyone", "privacy.accountant=pld", "privacy.num_groups=2"),
    ],
)
def test_a_run_directory_that_was_put_back_twice_charges_no_node_twice(tmp_path, overrides):
    """A run whose folder is restored twice charges no node twice: nodes refuse rounds they have charged."""
    budgets = "privacy.budgets=[1,3]" if len(overrides) > 1 else "privacy.budgets=[1]"
    words = [*overrides, budgets, "privacy.sampling_rate=1", "run.num_rounds=3"]
    lived, backup = tmp_path / "runs" / "run", tmp_path / "backup"

    def resumed(*more):
        """Restore the folder of all runs from the backup, and resume the run."""
        shutil.rmtree(lived.parent)
        shutil.copytree(backup, lived.parent)
        return run(lived, more, grid=owners(), resume=True)

    def owners():
        return grid_of_owners(tmp_path / "ledgers", [9.0] * NUM_CLIENTS)

    def charged():
        return [[each.rounds for each in ledger_of(tmp_path / "ledgers", k).runs] for k in range(NUM_CLIENTS)]

    run(lived, [*words, "run.stop_after_round=1"], grid=owners())
    shutil.copytree(lived.parent, backup)
    resumed("run.stop_after_round=2")
    assert charged() == [[[0, 1]]] * NUM_CLIENTS
    assert [sum(each.survivors) for each in resumed()] == [NUM_CLIENTS, 0, NUM_CLIENTS]
    assert charged() == [[[0, 1, 2]]] * NUM_CLIENTS
    assert [sum(each.survivors) for each in resumed()] == [NUM_CLIENTS, 0, 0]
    assert charged() == [[[0, 1, 2]]] * NUM_CLIENTS
    assert audit_run(lived).passed
