"""An experiment end to end with a stub trainer: resume, reuse, refusal, figures, files."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from matplotlib.image import imread
from rich.console import Console
from stub_trainer import StubTrainer, final_accuracy

from conf.experiment import Choice, Experiment, Published
from conf.load import load
from gdpfed.errors import ExperimentError
from gdpfed.experiments.crew import Alone
from gdpfed.experiments.reproduce import Reproduction, reproduce
from gdpfed.experiments.setting import Setting
from gdpfed.methods import make_method

EXPERIMENT = Experiment(
    name="small",
    title="Small: two methods",
    quantity="accuracy",
    text=["A paragraph."],
    datasets=["digits"],
    rows={
        "dp": Choice(label="DP", overrides=["method=dp_fedavg"]),
        "step": Choice(label="DP, step", overrides=["method=dp_fedavg"], effective_step_of="gdpfed_plus"),
        "plus": Choice(label="Plus", overrides=["method=gdpfed_plus"]),
    },
    overrides=["privacy.accountant=rdp"],
    published=Published(accuracy={"dp": {"digits": 44.5}}),
)
SWEEP = replace(
    EXPERIMENT,
    name="sweep",
    columns={
        "half": Choice(label="0.5", scale={"privacy.budgets": 0.5}),
        "one": Choice(label="1", scale={"privacy.budgets": [1, 1, 1]}),
    },
    column_heading="budgets times",
    published=Published(),
)
ROUNDS = 2


def run_it(output, trainer, *, experiment=EXPERIMENT, seeds=2, **setting):
    """Carry out an experiment; returns whether it is complete, and what it printed."""
    shown = io.StringIO()
    setting = Setting(num_rounds=ROUNDS, **setting)
    request = Reproduction(experiment, setting, seeds, output, f"gdpfed reproduce {experiment.name}")
    complete = reproduce(request, lambda missing: Alone(trainer), Console(file=shown, width=200))
    return complete, shown.getvalue()


def figures(output, name="small"):
    with (output / name / "figures.csv").open() as file:
        return {(row["dataset"], row["row"], row["column"]): row for row in csv.DictReader(file)}


def test_mean_and_deviation_over_the_seeds_beside_the_published_figure(tmp_path):
    complete, shown = run_it(tmp_path, trainer := StubTrainer(), seeds=3)
    assert complete
    assert len(trainer.trained) == 9
    expected = [100 * (0.3 + len("dp_fedavg") / 100 + seed / 50 + 1 / 1000) for seed in range(3)]
    text = f"{mean(expected):.1f} ± {stdev(expected):.1f}"
    assert text == "41.1 ± 2.0"
    markdown = (tmp_path / "small" / "table.md").read_text()
    assert f"| DP | {text} | 44.50 |" in markdown
    assert "| Plus | 43.1 ± 2.0 | – |" in markdown
    assert "A paragraph." in markdown
    assert text in shown
    row = figures(tmp_path)["digits", "dp", ""]
    assert (float(row["accuracy_percent"]), float(row["stddev_percent"])) == pytest.approx(
        (mean(expected), stdev(expected)), abs=1e-4
    )
    assert (row["seeds"], row["published_percent"], row["missing"]) == ("3", "44.5", "")
    picture = imread(tmp_path / "small" / "picture.png")
    assert 0.005 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5


def test_every_cell_says_its_exact_configuration(tmp_path):
    run_it(tmp_path, StubTrainer())
    cells = yaml.safe_load((tmp_path / "small" / "cells.yaml").read_text())
    assert [cell["row"] for cell in cells] == ["dp", "step", "plus"]
    for cell in cells:
        for run in cell["runs"]:
            saved = yaml.safe_load((tmp_path / "small" / run["config"]).read_text())
            config = load([*cell["overrides"], f"run.seed={run['seed']}"])
            assert saved["method"] == vars(config.method)
            assert saved["privacy"] == vars(config.privacy)
            assert saved["run"]["num_rounds"] == config.run.num_rounds == ROUNDS


def test_the_step_is_that_of_the_other_methods_plan(tmp_path):
    run_it(tmp_path, trainer := StubTrainer(), seeds=1)
    groups = make_method(trainer.trained[2]).plan.to_dict()["groups"]
    cohorts = [group["sampling_rate"] * group["clients"] for group in groups]
    step = sum(r**3 for r in cohorts) / (sum(cohorts) * sum(r**2 for r in cohorts))
    steps = [config.method.server_learning_rate for config in trainer.trained]
    assert steps == pytest.approx([1, step, 1], rel=1e-5)
    assert 1 / 3 < step < 1


@pytest.mark.parametrize("rounds", [0, 3, 4])
def test_an_interrupted_experiment_continues_where_it_was(tmp_path, rounds):
    with pytest.raises(
        KeyboardInterrupt, match=rf"after {rounds // ROUNDS} of 6 runs; the same command cont"
    ):
        run_it(tmp_path, StubTrainer(interrupt_after=rounds))
    finished = rounds // ROUNDS
    assert (tmp_path / "small" / "table.md").exists() == (finished > 0)
    if finished:
        assert "not run yet" in (tmp_path / "small" / "table.md").read_text()
    complete, _ = run_it(tmp_path, trainer := StubTrainer())
    assert complete
    assert len(trainer.trained) == 6 - finished
    begun = rounds - ROUNDS * finished
    assert [config.run.resume is not None for config in trainer.trained] == [
        True,
        *[False] * (5 - finished),
    ] or begun == 0
    whole, _ = run_it(tmp_path / "whole", StubTrainer())
    assert whole
    assert figures(tmp_path) == figures(tmp_path / "whole")


def test_an_interrupt_before_anything_is_there_says_how_to_continue_too(tmp_path):
    def interrupted(config, *, observe=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="after 0 of 6 runs; the same command continues: gdpfed rep"):
        run_it(tmp_path, interrupted)
    assert not (tmp_path / "small").exists()


def test_finished_runs_are_reused_also_by_another_experiment(tmp_path):
    run_it(tmp_path, StubTrainer())
    _, shown = run_it(tmp_path, trainer := StubTrainer())
    assert trainer.trained == []
    assert "41.1" in shown or "40.1" in shown
    run_it(tmp_path, trainer, experiment=SWEEP, seeds=1)
    assert {config.privacy.budgets[0] for config in trainer.trained} == {0.5}
    run_it(tmp_path, trainer := StubTrainer(), seeds=3)
    assert {config.run.seed for config in trainer.trained} == {2}


def test_another_configuration_gets_another_directory(tmp_path):
    run_it(tmp_path, StubTrainer(), seeds=1)
    run_it(tmp_path, trainer := StubTrainer(), seeds=1, overrides=("privacy.clipping_norm=1.5",))
    assert len(trainer.trained) == 3
    assert len(list((tmp_path / "runs").iterdir())) == 6


@pytest.mark.parametrize("damage", ["other", "foreign"])
def test_a_directory_that_holds_something_else_is_refused_before_training(tmp_path, damage):
    run_it(tmp_path, StubTrainer(interrupt_after=None), seeds=1)
    run = sorted((tmp_path / "runs").glob("digits-gdpfed_plus-*"))[0]
    if damage == "other":
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("clipping_norm: 2.0", "clipping_norm: 3.0"))
    else:
        (run / "config.yaml").unlink()
    trainer = StubTrainer()
    with pytest.raises(ExperimentError, match=re.escape(str(run))) as refused:
        run_it(tmp_path, trainer, seeds=2)
    assert trainer.trained == []
    assert "move it away, or choose another --output" in str(refused.value)


def test_a_run_that_was_stopped_before_its_first_round_begins_anew(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_it(tmp_path, StubTrainer(interrupt_after=0), seeds=1)
    (run,) = (tmp_path / "runs").iterdir()
    (run / "checkpoint.safetensors").unlink()
    run_it(tmp_path, trainer := StubTrainer(), seeds=1)
    assert trainer.trained[0].run.resume is None
    assert Path(trainer.trained[0].run.directory) == run


def test_an_absent_data_set_leaves_its_cells_out_and_the_rest_runs(tmp_path):
    trainer = StubTrainer(absent=("svhn",))
    complete, shown = run_it(tmp_path, trainer, datasets=("svhn", "digits"), client_factor=0.5)
    assert not complete
    assert sum(config.dataset.name == "svhn" for config in trainer.trained) == 1
    assert shown.count("dataset.path: svhn is not there") == 1
    assert "missing (1)" in shown
    markdown = (tmp_path / "small" / "table.md").read_text()
    assert re.search(r"\| DP \| missing \(1\) \| 40\.\d ± 1\.4 \|", markdown)
    assert figures(tmp_path)["svhn", "dp", ""]["missing"] == "dataset.path: svhn is not there"


def test_nothing_but_absent_data_sets_is_one_line(tmp_path):
    with pytest.raises(ExperimentError, match="nothing can be run of small: dataset.path: svhn is not there"):
        run_it(tmp_path, StubTrainer(absent=("svhn",)), datasets=("svhn",))
    assert not (tmp_path / "small").exists()


def test_what_was_shrunk_stands_in_the_table(tmp_path):
    _, shown = run_it(
        tmp_path, trainer := StubTrainer(), seeds=1, client_factor=0.25, overrides=("dataset.batch_size=2",)
    )
    assert {config.dataset.num_clients for config in trainer.trained} == {90}
    assert {config.privacy.sampling_rate for config in trainer.trained} == {0.2}
    markdown = (tmp_path / "small" / "table.md").read_text()
    for text in (shown, markdown):
        assert "Not the paper's setting" in text
        assert "clients times 0.25 (digits 90)" in text
        assert "2 rounds in place of digits 30" in text
        assert "dataset.batch_size=2" in text


def test_where_data_lie_and_how_runs_are_carried_out_is_no_change(tmp_path):
    _, shown = run_it(
        tmp_path, StubTrainer(), seeds=1, overrides=("simulation.workers=1", "dataset.momentum=0.5")
    )
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
    ("setting", "message"),
    [
        ({"client_factor": 0.0}, "--scale 0 must be in"),
        ({"datasets": ("mnist",)}, "--datasets mnist is not one of"),
        ({"overrides": ("dataset=fmnist",)}, "'dataset=fmnist': use --datasets"),
        ({"overrides": ("run.seed=3",)}, "'run.seed=3': use --seeds"),
        ({"overrides": ("method=fedavg",)}, "'method=fedavg' is for the experiment to choose"),
        ({"overrides": ("run.resume=a",)}, "'run.resume=a' is for the experiment to choose"),
        ({"seeds": 0}, "--seeds 0 must be at least 1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, setting, message):
    with pytest.raises(ExperimentError, match=re.escape(message)):
        run_it(tmp_path, StubTrainer(), **setting)
    assert list(tmp_path.iterdir()) == []
