"""Tests of a whole experiment with a stub trainer: resumed and reused runs, refusals, tables and files."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from matplotlib.image import imread

from conf.load import load
from conf.schema import Config
from gdpfed.errors import ConfigError, ExperimentError
from gdpfed.extras.experiments.cells import Setting, cells_of
from gdpfed.extras.experiments.definitions import Choice
from gdpfed.methods import make_method, resolve
from tests.extras.experiments import small_experiment
from tests.extras.experiments.small_experiment import (
    EXPERIMENT,
    ROUNDS,
    SWEEP,
    StubTrainer,
    figures,
    final_accuracy,
    run_it,
)

Whole = tuple[Path, StubTrainer, str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Run the small experiment with three seeds; return its output folder, trainer and printed text."""
    output, trainer = tmp_path_factory.mktemp("whole"), StubTrainer()
    complete, shown = run_it(output, trainer, seeds=3, pictures=True)
    assert complete
    return output, trainer, shown


def test_mean_and_deviation_over_the_seeds_beside_the_published_figure(whole):
    output, trainer, shown = whole
    assert len(trainer.trained) == 9
    expected = [100 * (0.3 + len("dp_fedavg") / 100 + seed / 50 + 1 / 1000) for seed in range(3)]
    text = f"{mean(expected):.1f} ± {stdev(expected):.1f}"
    assert text == "41.1 ± 2.0"
    markdown = (output / "small" / "table.md").read_text()
    assert f"| DP | {text} | 44.50 |" in markdown
    assert "| Plus | 43.1 ± 2.0 | – |" in markdown
    assert "A paragraph." in markdown
    assert text in shown
    row = figures(output)["digits", "dp", ""]
    assert float(row["accuracy_percent"]) == pytest.approx(mean(expected), abs=1e-4)
    assert float(row["stddev_percent"]) == pytest.approx(stdev(expected), abs=1e-4)
    assert (row["seeds"], row["published_percent"], row["missing"]) == ("3", "44.5", "")
    picture = imread(output / "small" / "picture.png")
    assert 0.005 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5


@pytest.mark.parametrize("experiment", [EXPERIMENT, SWEEP])
def test_differences_to_one_row_stand_below_the_accuracies(tmp_path, experiment):
    """The table below the accuracies shows the difference of each other row to the row named Plus."""
    _, shown = run_it(tmp_path, StubTrainer(), experiment=replace(experiment, compared_with="plus"))
    assert shown.count("Differences to Plus, by seed, Digits") == max(len(experiment.columns), 1)
    table = (tmp_path / experiment.name / "table.md").read_text().partition("**Differences to Plus")[2]
    assert "| DP | 2 | -2.0 ± 0.0 | -2.0 to -2.0 |" in table
    assert "| Plus |" not in table


def test_differences_of_rows_are_of_the_best_column_of_each_where_these_are_shown(tmp_path, monkeypatch):
    """One method is best with the larger budgets and the other with the smaller: these two are compared."""

    def accuracy_of(config: Config) -> float:
        larger = float(config.privacy.budgets[0]) > 0.75
        plus = str(config.method.name) == "gdpfed_plus"
        return 0.3 + 0.1 * (larger == plus) + 0.05 * plus + config.run.seed / 50

    monkeypatch.setattr(small_experiment, "final_accuracy", accuracy_of)
    run_it(tmp_path, StubTrainer(), experiment=replace(SWEEP, compared_with="plus", best_of_columns=True))
    page = (tmp_path / SWEEP.name / "table.md").read_text()
    _, *tables = page.split("**Differences to Plus, by seed, each at its best budgets times, Digits**")
    assert len(tables) == 1
    assert "| DP | 2 | -5.0 ± 0.0 | -5.0 to -5.0 |" in tables[0]
    assert "| Plus |" not in tables[0]


def test_differences_to_one_column_have_a_row_for_each_method(tmp_path):
    """A table of the differences between two columns has a row for each method."""
    large = SWEEP.columns | {"large": Choice(label="21", scale={"privacy.budgets": 21.0})}
    experiment = replace(SWEEP, columns=large, compared_column="one")
    run_it(tmp_path, StubTrainer(), experiment=experiment)
    page = (tmp_path / SWEEP.name / "table.md").read_text()
    _, _, table = page.partition("**Budgets times 21: differences to 1, by seed, Digits**")
    for label in ("DP", "Plus"):
        assert f"| {label} | 2 | 2.0 ± 0.0 | +2.0 to +2.0 |" in table
    with pytest.raises(ConfigError, match="compared_column=two is not a column: it has half, one, large"):
        replace(experiment, compared_column="two").validate()


def test_every_cell_says_its_exact_configuration(whole):
    directory = whole[0] / "small"
    cells = yaml.safe_load((directory / "cells.yaml").read_text())
    assert [cell["row"] for cell in cells] == ["dp", "step", "plus"]
    for cell in cells:
        assert [run["seed"] for run in cell["runs"]] == [0, 1, 2]
        run = cell["runs"][-1]
        saved = yaml.safe_load((directory / run["config"]).read_text())
        config = resolve(load([*cell["overrides"], f"run.seed={run['seed']}"]))
        assert saved["method"] == vars(config.method)
        assert saved["privacy"] == vars(config.privacy)
        assert saved["run"]["num_rounds"] == config.run.num_rounds == ROUNDS


def test_the_names_of_run_directories_stay_as_they_are(whole):
    names = {path.name for path in (whole[0] / "runs").glob("*-seed0")}
    digests = ("dp_fedavg-77efa2d977", "dp_fedavg-a5675d9ea4", "gdpfed_plus-b7257764ac")
    assert names == {f"digits-{each}-seed0" for each in digests}


def test_the_step_is_that_of_the_other_methods_plan(whole):
    trained = whole[1].trained[:3]
    groups = make_method(trained[2]).plan.to_dict()["groups"]
    cohorts = [group["sampling_rate"] * group["clients"] for group in groups]
    step = sum(r**3 for r in cohorts) / (sum(cohorts) * sum(r**2 for r in cohorts))
    assert [vars(config.method)["server_learning_rate"] for config in trained] == pytest.approx(
        [1, step, 1], rel=1e-5
    )
    assert 1 / 3 < step < 1


@pytest.mark.parametrize("rounds", [0, 3, 4])
def test_an_interrupted_experiment_continues_where_it_was(tmp_path, whole, rounds):
    finished, begun = divmod(rounds, ROUNDS)
    message = rf"after {finished} of 9 runs; the same command continues: gdpfed reproduce small"
    with pytest.raises(KeyboardInterrupt, match=message):
        run_it(tmp_path, StubTrainer(interrupt_after=rounds), seeds=3)
    assert (tmp_path / "small").exists() == (finished > 0)
    if finished:
        assert "not run yet" in (tmp_path / "small" / "table.md").read_text()
    complete, _ = run_it(tmp_path, trainer := StubTrainer(), seeds=3)
    assert complete
    assert len(trainer.trained) == 9 - finished
    resumed = [config.run.resume is not None for config in trainer.trained]
    assert resumed == [True, *[False] * (8 - finished)] or begun == 0
    assert figures(tmp_path) == figures(whole[0])


def test_finished_runs_are_reused_also_by_another_experiment(tmp_path, whole):
    output = shutil.copytree(whole[0], tmp_path / "copy")
    _, shown = run_it(output, trainer := StubTrainer(), seeds=3)
    assert trainer.trained == trainer.loaded == []
    assert "41.1 ± 2.0" in shown
    run_it(output, trainer, experiment=SWEEP, seeds=1)
    assert {config.privacy.budgets[0] for config in trainer.trained} == {0.5}
    run_it(output, trainer := StubTrainer(), seeds=4)
    assert {config.run.seed for config in trainer.trained} == {3}


def test_another_configuration_gets_another_directory(tmp_path, whole):
    output = shutil.copytree(whole[0], tmp_path / "copy")
    setting = Setting(overrides=("privacy.clipping_norm=1.5",))
    run_it(output, trainer := StubTrainer(), seeds=1, setting=setting)
    assert len(trainer.trained) == 3
    assert len(list((output / "runs").iterdir())) == 9 + 3


@pytest.mark.parametrize("damage", ["other", "foreign"])
def test_a_directory_that_holds_something_else_is_refused_before_training(tmp_path, whole, damage):
    output = shutil.copytree(whole[0], tmp_path / "copy")
    run = sorted((output / "runs").glob("digits-gdpfed_plus-*"))[0]
    if damage == "other":
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("clipping_norm: 2.0", "clipping_norm: 3.0"))
    else:
        (run / "config.yaml").unlink()
    trainer = StubTrainer()
    with pytest.raises(ExperimentError, match=re.escape(str(run))) as refused:
        run_it(output, trainer, seeds=4)
    assert trainer.trained == []
    assert "move it away, or choose another --output" in str(refused.value)


@pytest.mark.parametrize("left", ["all but a checkpoint", "a draft of the first file"])
def test_a_run_that_was_stopped_before_its_first_round_begins_anew(tmp_path, left):
    with pytest.raises(KeyboardInterrupt):
        run_it(tmp_path, StubTrainer(interrupt_after=0), seeds=1)
    (run,) = (tmp_path / "runs").iterdir()
    if left == "all but a checkpoint":
        (run / "checkpoint.safetensors").unlink()
    else:
        shutil.rmtree(run)
        run.mkdir()
        (run / ".config.yaml.tmp").write_text("dataset:")
    run_it(tmp_path, trainer := StubTrainer(), seeds=1)
    assert trainer.trained[0].run.resume is None
    assert trainer.trained[0].run.directory == str(run)
    assert (run / "model" / "weights.safetensors").exists()


def test_an_absent_data_set_leaves_its_cells_out_and_the_rest_runs(tmp_path):
    trainer = StubTrainer(absent=("svhn",))
    complete, shown = run_it(tmp_path, trainer, setting=Setting(("svhn", "digits"), client_factor=0.5))
    assert not complete
    assert sum(config.dataset.name == "svhn" for config in trainer.loaded) == 1
    assert {config.dataset.name for config in trainer.trained} == {"digits"}
    # Once before the first run, and once below the table.
    assert "6 of 12 runs cannot start: dataset.path: svhn is not there" in shown.splitlines()[0]
    assert shown.count("dataset.path: svhn is not there") == 2
    assert "missing (1)" in shown
    markdown = (tmp_path / "small" / "table.md").read_text()
    assert re.search(r"\| DP \| missing \(1\) \| 40\.\d ± 1\.4 \|", markdown)
    assert figures(tmp_path)["svhn", "dp", ""]["missing"] == "dataset.path: svhn is not there"


def test_a_setting_of_the_data_that_does_not_fit_all_data_sets_is_refused_before_the_first_run(tmp_path):
    trainer = StubTrainer(absent=("svhn",))
    setting = Setting(("svhn", "digits"), overrides=("dataset.path=/data/patient.csv",))
    with pytest.raises(ExperimentError, match="runs cannot start: dataset.path: svhn is not there, or name"):
        run_it(tmp_path, trainer, setting=setting)
    assert not trainer.trained


def test_cells_whose_columns_have_one_label_are_told_apart_by_their_settings():
    steps = ("training.local_steps=3", "training.local_steps=4")
    columns = {word: Choice(label="1, 3", overrides=["privacy.budgets=[1,3]", word]) for word in steps}
    cells = cells_of(replace(EXPERIMENT, columns=columns), Setting(("digits",)))
    labels = [cell.label for cell in cells if cell.row == "plus"]
    assert labels == [f"digits, Plus, 1, 3, {word}" for word in steps]


def test_nothing_but_absent_data_sets_is_one_line(tmp_path):
    with pytest.raises(
        ExperimentError, match="small has no run that can start: dataset.path: svhn is not there"
    ):
        run_it(tmp_path, StubTrainer(absent=("svhn",)), setting=Setting(("svhn",)))
    assert not (tmp_path / "small").exists()


def test_what_was_shrunk_stands_in_the_table(tmp_path):
    setting = Setting(client_factor=0.25, overrides=("dataset.batch_size=2",))
    _, shown = run_it(tmp_path, trainer := StubTrainer(), seeds=1, setting=setting)
    assert {config.dataset.num_clients for config in trainer.trained} == {90}
    assert {config.privacy.sampling_rate for config in trainer.trained} == {0.2}
    markdown = (tmp_path / "small" / "table.md").read_text()
    for text in (shown, markdown):
        assert "Not the paper's setting" in text
        assert "clients times 0.25 (digits 90)" in text
        assert "2 rounds in place of digits 30" in text
        assert "dataset.batch_size=2" in text


def test_where_data_lie_and_how_runs_are_carried_out_is_no_change(tmp_path):
    setting = Setting(overrides=("simulation.workers=1", "dataset.momentum=0.5"))
    _, shown = run_it(tmp_path, StubTrainer(), seeds=1, setting=setting)
    assert "Changed in every cell: `dataset.momentum=0.5`; 2 rounds" in shown


def test_columns_make_one_table_a_data_set(tmp_path):
    _, shown = run_it(tmp_path, trainer := StubTrainer(), experiment=SWEEP, seeds=1)
    assert "Small: two methods, Digits" in shown
    by_column = {tuple(c.privacy.budgets) for c in trainer.trained}
    assert by_column == {(0.5, 1.5, 3.0), (1.0, 3.0, 6.0)}
    expected = 100 * final_accuracy(trainer.trained[0])
    assert float(figures(tmp_path, "sweep")["digits", "dp", "half"]["accuracy_percent"]) == pytest.approx(
        expected, abs=1e-4
    )


@pytest.mark.parametrize(
    ("setting", "seeds", "message"),
    [
        (Setting(client_factor=0.0), 1, "--scale 0 must be in"),
        (Setting(("mnist",)), 1, "--datasets mnist is not known; did you mean fmnist? Use"),
        (Setting(overrides=("dataset=fmnist",)), 1, "'dataset=fmnist': use --datasets"),
        (Setting(overrides=("run.seed=3",)), 1, "'run.seed=3': use --seeds"),
        (Setting(overrides=("method=fedavg",)), 1, "'method=fedavg' is chosen by the experiment"),
        (Setting(overrides=("run.resume=a",)), 1, "'run.resume=a' is chosen by the experiment"),
        (Setting(), 0, "--seeds 0 must be from 1 to 1000"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, setting, seeds, message):
    with pytest.raises(ExperimentError, match=re.escape(message)):
        run_it(tmp_path, StubTrainer(), setting=setting, seeds=seeds)
    assert list(tmp_path.iterdir()) == []


def test_a_second_picture_shows_accuracy_over_what_clients_received_and_sent(tmp_path):
    assert run_it(tmp_path, StubTrainer(), experiment=replace(SWEEP, traffic=True), seeds=1, pictures=True)[0]
    picture = imread(tmp_path / "sweep" / "traffic.png")
    assert 0.005 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5
    assert "(traffic.png)" in (tmp_path / "sweep" / "table.md").read_text()
