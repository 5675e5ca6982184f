"""Tests of the warning that a model may only guess the most frequent class, and of the causes it names."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from conf.load import load
from gdpfed.audit.card_checks import check_card
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.learning.data import Split
from gdpfed.learning.labels import labels_of
from gdpfed.learning.training.held_out_counts import counts_dimension, judged
from gdpfed.methods import make_method
from gdpfed.report.chance import UNKNOWN, AtChance
from gdpfed.report.chance_causes import ChanceFile, at_chance
from gdpfed.report.plan_lines import plan_warnings, unspent
from gdpfed.rounds.extensions.held_out import HeldOutResult
from gdpfed.runs.file_formats import AT_CHANCE_FILE
from gdpfed.runs.round_log import RoundLogEntry
from testing.small_runs import nothing_drawn

QUIET = ("privacy.sampling_rate=0.2", "dataset.num_clients=360")


def entry(accuracy, **metrics):
    return RoundLogEntry(1, accuracy, 1.0, [], [], {}, [], [], metrics={"accuracy": accuracy, **metrics})


def run_of(path: Path, overrides=(), *, x=None, y=None, classes=2) -> Any:
    """Return a minimal prepared run: its test set has 200 examples, of which 120 are of class 0."""
    y = np.array([0] * 120 + [1] * 80) if y is None else y
    x = np.zeros((len(y), 3), dtype=np.float32) if x is None else x
    labels = labels_of("classes", classes, ())
    data = SimpleNamespace(test=Split(x, y), labels=labels, num_classes=classes, named_classes=("0", "1"))
    task = SimpleNamespace(load=lambda: data, classes_counted=classes)
    config = load(["dataset=digits", *QUIET, *overrides])
    method = make_method(config)
    order = SimpleNamespace(task=task)
    return SimpleNamespace(config=config, method=method, task=task, order=order, path=path)


def concluded(*records, spent=(1.0, 3.0, 6.0), dimension=4) -> Any:
    return SimpleNamespace(records=records, spent=spent, released=np.zeros(dimension))


def test_a_result_is_at_chance_where_its_interval_reaches_the_most_frequent_class(tmp_path):
    run = run_of(tmp_path)
    found = at_chance(run, concluded(entry(0.66)))
    assert found is not None
    assert (found.most_frequent, found.share) == ("0", 0.6)
    assert found.low < 0.6 < found.high
    assert found.line == (
        f"The result is not above chance: accuracy 66.0 % (59.2 to 72.2) on 200 test examples, and answering "
        f"'0' always is right for 60.0 %. It may be that {UNKNOWN}"
    )
    assert at_chance(run, concluded(entry(0.68))) is None
    assert at_chance(run, concluded(entry(None))) is None
    # Scores tell classes apart that answers do not.
    assert at_chance(run, concluded(entry(0.6, auc=0.9))) is None
    assert at_chance(run, concluded(entry(0.6, auc=0.52))) is not None


def test_of_several_classes_the_area_counts_with_its_interval(tmp_path):
    """A model of ten classes whose scores tell them apart is above chance, even if it answers one class."""
    run = run_of(tmp_path)
    run.task = task = task_of(load(["dataset=digits", "dataset.model=linear", *QUIET]))
    data = task.load()
    rows, labels = data.test.take(np.arange(len(data.test))).x, data.test.y
    means = np.stack([rows[labels == k].mean(axis=0) for k in range(10)]).reshape(10, -1)
    for direction, is_at_chance in ((means - means.mean(axis=0), False), (0 * means, True)):
        # The bias of class 0 makes it the answer to every example.
        theta = np.concatenate([direction.ravel(), [50.0], np.zeros(9)])
        end = SimpleNamespace(records=(entry(0.1, auc=0.9),), spent=(1.0, 3.0, 6.0), released=theta)
        assert (at_chance(run, cast("Any", end)) is not None) == is_at_chance


def test_a_class_that_is_nearly_all_is_a_cause_where_no_auc_was_measured(tmp_path):
    y = np.array([0] * 184 + [1] * 16)
    found = at_chance(run_of(tmp_path, y=y), concluded(entry(0.92)))
    assert found is not None
    (cause,) = found.causes
    assert cause.startswith("'0' is so frequent that accuracy tells models hardly apart: dataset.metrics=")
    found = at_chance(run_of(tmp_path, y=y), concluded(entry(0.92, auc=0.5)))
    assert found is not None
    assert found.causes == []


def test_inputs_that_are_not_scaled_are_a_cause(tmp_path):
    x = np.zeros((200, 5), dtype=np.float32)
    x[:, 0] = 250.0
    found = at_chance(run_of(tmp_path, x=x), concluded(entry(0.5)))
    assert found is not None
    assert found.causes == [
        "inputs are not scaled: 20 % of those of the test examples lie outside of [-4, 4], up to 250"
    ]
    tokens = np.full((200, 5), 250, dtype=np.int64)
    found = at_chance(run_of(tmp_path, x=tokens), concluded(entry(0.5)))
    assert found is not None
    assert found.causes == []


def test_noise_above_the_step_is_a_cause(tmp_path):
    run = run_of(tmp_path, ["privacy.budgets=[0.02]"])
    noise = run.method.weighting.noise_per_step(run.method.plan)
    dimension = int((30 / noise) ** 2)
    found = at_chance(run, concluded(entry(0.5), spent=(0.02,), dimension=dimension))
    assert found is not None
    (cause,) = found.causes
    assert cause.startswith("the noise of a step is 30 times as long as the step")
    found = at_chance(run, concluded(entry(0.5), spent=(0.02,), dimension=int((0.9 / noise) ** 2)))
    assert found is not None
    assert found.causes == []


def test_budgets_that_no_turn_can_use_are_warned_of_and_a_cause(tmp_path):
    words = ["dataset=fmnist", "method=idp_fedavg_sample", "privacy.against=everyone"]
    config = load(words)
    plan = make_method(config).plan
    (line,) = [each for each in plan_warnings(plan, config) if "budgets" in each]
    spent = [plan.epsilon_after(m, plan.num_rounds) for m in range(3)]
    assert spent == pytest.approx([0.5] * 3, rel=1e-3)
    assert line.startswith(
        "budgets are used only in part, since one more turn would not fit: group 1 0.5 of 1.5, group "
    )
    star = load(["dataset=fmnist", "method=gdpfed_star", "privacy.against=everyone"])
    assert not [each for each in plan_warnings(make_method(star).plan, star) if "budgets" in each]
    run = run_of(tmp_path, ["run.num_rounds=1", "privacy.sampling_rate=0.2"])
    found = at_chance(run, concluded(entry(0.5), spent=(1.0, 3.0, 0.5)))
    assert found is not None
    assert list(found.causes) == list(unspent([1, 3, 6], [1.0, 3.0, 0.5]))
    assert "group 2 0.5 of 6" in found.line


def counted(right, wrong, noise):
    """Return noised counts of two equally frequent classes, with `right` and `wrong` answers in each."""
    counts = np.zeros(counts_dimension(2))
    counts[:4] = [right, wrong, wrong, right]
    counts[4:] = (right + wrong) / 10
    noised = counts + np.random.default_rng(0).normal(0, noise, len(counts))
    return HeldOutResult(6, "records", noise, noised.tolist(), judged(noised, 2, noise))


@pytest.mark.parametrize(("right", "wrong", "chance"), [(105, 100, True), (180, 20, False)])
def test_where_clients_test_it_follows_from_their_noised_counts_alone(tmp_path, right, wrong, chance):
    run = run_of(tmp_path, ["run.evaluation=server"])
    run.config = replace(run.config, run=replace(run.config.run, evaluation="nodes"))
    run.task.load().test = Split(np.zeros((0, 3), dtype=np.float32), np.zeros(0, dtype=np.int64))
    assert at_chance(run, concluded(entry(None))) is None
    counted(right, wrong, 4.0).save(tmp_path)
    found = at_chance(run, concluded(entry(None)))
    assert (found is not None) == chance
    if found is not None:
        noised = np.array(HeldOutResult.read(tmp_path).counts)  # type: ignore[union-attr]
        assert found.share == pytest.approx(noised[:4].reshape(2, 2).sum(axis=1).max() / noised[:4].sum())
        assert "records that clients hold out, by noised counts" in found.tested


def test_the_file_is_there_only_as_long_as_the_result_is_at_chance(tmp_path):
    said: list[str] = []
    observer = ChanceFile(run_of(tmp_path), said.append)
    observer.concluded(concluded(entry(0.5)))
    found = AtChance.read(tmp_path)
    assert found is not None
    assert said == [found.line]
    observer.concluded(concluded(entry(0.9)))
    assert not (tmp_path / AT_CHANCE_FILE).exists()


def test_it_is_the_last_line_of_simulate_and_of_report(tmp_path, capsys):
    path = tmp_path / "run"
    settings = ["dataset=digits", "dataset.num_clients=30", "method=fedavg", "run.num_rounds=1", "secagg=off"]
    settings += ["training.learning_rate=1e-9", "simulation.workers=1", f"run.directory={path}"]
    with nothing_drawn():
        assert main(["simulate", *settings]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("The result is not above chance: accuracy ")
    assert f"* **{last}**" in (path / "model_card.md").read_text().splitlines()
    assert AT_CHANCE_FILE in (path / "seal.json").read_text()
    assert audit_run(path).passed
    files, card = RunFiles.read(path), (path / "model_card.md").read_text()
    edits = {"accuracy ": "accuracy 1", " to ": " to 1", " test examples": "9 test examples"}
    edited = [card.replace(last, last.replace(*each, 1)) for each in edits.items()]
    for each in (*edited, card.replace(f"* **{last}**\n", "")):
        assert list(check_card(replace(files, card=each)))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"fedavg: {last}"
    assert main(["report", "--latex", str(path)]) == 0
    latex, said = capsys.readouterr()
    assert "not above chance" not in latex
    assert said.splitlines()[-1] == f"fedavg: {last}"
