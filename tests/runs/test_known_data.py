"""Tests of resumed runs: they go on with the data that they began with, or are refused."""

import json

import numpy as np
import pytest
from PIL import Image

from gdpfed.errors import RunError
from gdpfed.extras.canaries.model_attack import attack_run
from gdpfed.learning.data import load_dataset
from gdpfed.learning.data.fingerprint import fingerprint
from gdpfed.learning.data.named_partitions import shared_out
from gdpfed.runs.known_data import DATA_FILE
from gdpfed.runs.resume import load_run
from gdpfed.simulation.in_process_fleet import simulate
from testing.small_runs import files_in, nothing_drawn

FEW = (
    *("dataset.num_clients=3", "dataset.model=linear", "method=fedavg", "privacy.sampling_rate=1"),
    *("run.num_rounds=2", "secagg=off"),
)


@pytest.fixture(autouse=True)
def _nothing_drawn_or_kept():
    """Clear the cache of data sets, so that each run reads its files anew."""
    load_dataset.cache_clear()
    with nothing_drawn():
        yield
    load_dataset.cache_clear()


def table(path, labels=(0, 1), rows=60):
    lines = [f"{age},{labels[int(age > 50)]}" for age in np.linspace(0, 99, rows).astype(int)]
    path.write_text("age,ill\n" + "\n".join(lines) + "\n")


def of_table(folder):
    (folder / "columns.yaml").write_text(
        "numeric: {age: [0, 100]}\nlabel: {column: ill, classes: {healthy: [0], ill: [1]}}\n"
    )
    table(folder / "t.csv")
    words = ["dataset=csv", f"dataset.path={folder / 't.csv'}", f"dataset.columns={folder / 'columns.yaml'}"]
    return words, lambda: table(folder / "t.csv", labels=(1, 0)), "t.csv"


def of_fewer_rows(folder):
    words, _, name = of_table(folder)
    return words, lambda: table(folder / "t.csv", rows=50), name


def of_test_table(folder):
    words, _, _ = of_table(folder)
    table(folder / "later.csv")
    words.append(f"dataset.test_path={folder / 'later.csv'}")
    return words, lambda: table(folder / "later.csv", labels=(1, 0)), "later.csv"


def arrays(path, shift=0):
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 4), np.float32), np.arange(30) % 2
    np.savez(path, x_train=x, y_train=(y + shift) % 2, x_test=x, y_test=y)


def of_arrays(folder):
    arrays(folder / "a.npz")
    words = ["dataset=npz", f"dataset.path={folder / 'a.npz'}"]
    return words, lambda: arrays(folder / "a.npz", shift=1), "a.npz"


def of_pictures(folder):
    for number in range(20):
        path = folder / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 9 * number, np.uint8)).save(path)
    words = ["dataset=image_folder", f"dataset.path={folder / 'pictures'}"]
    return words, lambda: (folder / "pictures" / "a").rename(folder / "pictures" / "c"), "pictures"


def of_owners(folder):
    words, _, _ = of_arrays(folder)
    owners = folder / "owners.txt"
    owners.write_text("".join(f"{number % 3}\n" for number in range(30)))
    words += ["dataset.partition=owners", f"dataset.partition_options={{path: {owners}}}"]
    return (
        words,
        lambda: owners.write_text("".join(f"{number // 10}\n" for number in range(30))),
        "owners.txt",
    )


@pytest.mark.parametrize("make", [of_table, of_fewer_rows, of_test_table, of_arrays, of_pictures, of_owners])
def test_other_data_are_refused_by_the_name_of_their_file(tmp_path, make):
    words, change, name = make(tmp_path)
    directory = tmp_path / "run"
    partition = [] if make is of_owners else ["dataset.partition=iid"]
    simulate(load_run([*FEW, *partition, *words, f"run.directory={directory}", "run.stop_after_round=1"]))
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != directory}
    change()
    _forget()
    before = files_in(directory)
    said = rf"{name} is not what the run began with \(SHA-256 .*\): put it back, or start a new run$"
    with pytest.raises(RunError, match=said):
        simulate(load_run([f"run.resume={directory}"]))
    assert files_in(directory) == before
    (tmp_path / "pictures" / "c").exists() and (tmp_path / "pictures" / "c").rename(
        tmp_path / "pictures" / "a"
    )
    for path, data in kept.items():
        path.write_bytes(data)
    _forget()
    simulate(load_run([f"run.resume={directory}"]))
    assert not (directory / DATA_FILE).exists()


def test_a_finished_run_says_what_changed_before_it_plans(tmp_path):
    """An attack refuses another declaration of persons as such, and not by the plan that it leads to."""
    rows = [f"{'abc'[k % 3]},{k % 2},{k},{k}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["clinic,ill,age,who", *rows, ""]))
    declared = "label: {column: ill, classes: ['0', '1']}\nnumeric: {age: [0, 60]}\n"
    declared += "party: {column: clinic, values: [a, b, c]}\nperson: {column: who, rows: 3}\n"
    (tmp_path / "columns.yaml").write_text(declared)
    words = ["dataset=csv", f"dataset.path={tmp_path / 't.csv'}", "dataset.num_clients=3", "method=dp_sum"]
    words += ["privacy=record_level", "privacy.budgets=[4]", "run.evaluation=nodes", "run.num_rounds=1"]
    directory = tmp_path / "run"
    simulate(load_run([*words, f"run.directory={directory}"]))
    (tmp_path / "columns.yaml").write_text(declared.replace("rows: 3", "parties: 2"))
    _forget()
    with pytest.raises(RunError, match=r"run has ended: there is nothing to resume$"):
        simulate(load_run([f"run.resume={directory}"]))
    said = (
        f"the declaration of {tmp_path / 't.csv'} is not what the run {directory} began with: put it back, "
    )
    with pytest.raises(RunError, match=f"^{said}as in {directory / 'model' / 'columns.yaml'}$"):
        attack_run(directory)
    (tmp_path / "columns.yaml").write_text(declared)
    _forget()
    assert attack_run(directory).membership


def _forget():
    load_dataset.cache_clear()
    shared_out.cache_clear()


def test_a_run_that_does_not_say_what_it_began_with_is_not_resumed(tmp_path):
    words, _, _ = of_arrays(tmp_path)
    directory = tmp_path / "run"
    run = [*FEW, *words, "dataset.partition=iid", f"run.directory={directory}", "run.stop_after_round=1"]
    simulate(load_run(run))
    path = directory / DATA_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    hashes = json.loads(path.read_text())["sha256"]
    others = [data for name, data in files_in(directory).items() if name != path]
    assert not any(each.encode() in data for each in hashes.values() for data in others)
    path.unlink()
    with pytest.raises(RunError, match=r"data.json cannot be read .*: restore it from a copy"):
        simulate(load_run([f"run.resume={directory}"]))


def test_a_fingerprint_is_of_type_shape_and_content():
    ones = np.ones((2, 3), np.float32)
    alike = [fingerprint(ones), fingerprint(np.asfortranarray(ones)), fingerprint(ones.copy())]
    others = [
        fingerprint(ones.T),
        fingerprint(ones.astype(np.float64)),
        fingerprint(ones, None),
        fingerprint([ones]),
        fingerprint(np.zeros((2, 3), np.float32)),
        fingerprint(("ab", "c")),
        fingerprint(("a", "bc")),
        fingerprint({"a": 1}),
        fingerprint({"a": "1"}),
    ]
    assert len(set(alike)) == 1
    assert len({*alike, *others}) == 1 + len(others)
    with pytest.raises(TypeError, match="object has no canonical form"):
        fingerprint(object())
