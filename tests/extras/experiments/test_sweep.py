"""Tests of ``gdpfed simulate --multirun``: a run for each combination of values, and runs that fail."""

import io
import stat
from pathlib import Path

import pytest
from joblib.externals.loky import get_reusable_executor
from rich.console import Console

from conf.errors import ConfigError
from conf.sweeps import jobs_of
from gdpfed.cli import main
from gdpfed.errors import ExperimentError, RunError
from gdpfed.extras.experiments.run_training import Trainer
from gdpfed.extras.experiments.sweep import sweep
from gdpfed.report.finished_run import read_run
from gdpfed.report.run_folders import run_paths, sweep_order
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.file_formats import CHECKPOINT_FILE, MODEL_FILE
from testing.small_runs import SMALL, nothing_drawn
from tests.extras.experiments.small_experiment import StubTrainer, fail_after_a_round

PAIR = ("method=fedavg,dp_fedavg", "run.seed=0,1")


def sweep_it(output: Path, *overrides: str, train=None, jobs: int | None = 1) -> tuple[bool, str]:
    """Run a sweep with a stub trainer; return whether all runs are complete, and what is printed."""
    shown = io.StringIO()
    trainer = Trainer(lambda config: None, train or StubTrainer().train)
    console = Console(file=shown, width=200)
    complete = sweep([*SMALL, *overrides], output, console, "the command", num_jobs=jobs, trainer=trainer)
    return complete, shown.getvalue()


def test_a_real_sweep_trains_each_run_once_and_report_reads_its_directory(tmp_path, capfd):
    words = ["simulate", "-m", *SMALL, *PAIR, "secagg=off", "--jobs=2", f"--output={tmp_path}"]
    with nothing_drawn():
        assert main(words) == 0
    first, said = capfd.readouterr()
    assert said == ""
    assert first.count(", took ") == 4
    assert "method=fedavg run.seed=1, accuracy" in first
    runs = [read_run(path) for path in sorted(tmp_path.glob("digits-*"))]
    assert [(run.settings["method"]["name"], run.seed) for run in runs] == [
        *(("dp_fedavg", 0), ("dp_fedavg", 1), ("fedavg", 0), ("fedavg", 1))
    ]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("digits-*/*")}
    assert main(words) == 0
    again = capfd.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    # Of a run that has learnt nothing a report says so, which depends on its noise.
    reported = [line for line in capfd.readouterr().out.splitlines() if "is not above chance" not in line]
    before_it = (
        "4 of 4 runs were finished before and are shown as they are; code of packages is not compared: if it "
        "has changed, name another --output"
    )
    assert again.splitlines() == [*reported, before_it, first.splitlines()[-1]]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("digits-*/*")}


@pytest.fixture
def no_worker_left():
    """Stop joblib's worker processes after the test; joblib would keep them for later calls."""
    yield
    get_reusable_executor().shutdown(kill_workers=True)


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.parametrize(
    "launcher", [(), ("hydra/launcher=basic",), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")]
)
def test_a_run_that_fails_costs_a_line_and_goes_on_the_next_time(tmp_path, launcher):
    jobs = None if launcher else 2
    complete, shown = sweep_it(tmp_path, *PAIR, *launcher, train=fail_after_a_round, jobs=jobs)
    assert not complete
    missing = [line for line in shown.splitlines() if line.startswith("missing: ")]
    assert [line.partition(": the")[0] for line in missing] == [
        "missing: method=fedavg run.seed=0",
        "missing: method=fedavg run.seed=1",
    ]
    assert all(line.endswith(" failed: the disk is full") for line in missing)
    complete, shown = sweep_it(tmp_path, *PAIR, train=(again := StubTrainer()).train)
    assert complete
    resumed = [Path(config.run.resume or "").name for config in again.trained]
    assert resumed == sorted(path.name for path in tmp_path.glob("digits-fedavg-*"))


def test_an_interrupted_sweep_keeps_its_order_for_a_report(tmp_path):
    """Runs that never began have no place in it; without the order, `dp_fedavg` would come first."""
    with pytest.raises(KeyboardInterrupt):
        sweep_it(tmp_path, "method=fedavg,dp_fedavg,gdpfed", train=StubTrainer(interrupt_after=1).train)
    with pytest.raises(KeyboardInterrupt):
        sweep_it(tmp_path, "method=fedavg,dp_fedavg,gdpfed", train=StubTrainer(interrupt_after=3).train)
    assert [path.name.split("-")[1] for path in run_paths([tmp_path])] == ["fedavg", "dp_fedavg"]
    assert len(sweep_order(tmp_path)) == 2


def test_nothing_but_failures_is_one_line(tmp_path):
    with pytest.raises(RunError, match="the training of .* failed: the disk is full"):
        sweep_it(tmp_path, "method=fedavg", train=fail_after_a_round)


def test_a_launcher_that_ends_early_costs_a_line_a_run(tmp_path, monkeypatch):
    def ended(*arguments):
        raise OSError("sbatch: no\nqueue")

    monkeypatch.setattr("gdpfed.extras.experiments.run_training.launch", ended)
    with pytest.raises(RunError, match="failed: hydra/launcher=joblib: OSError: sbatch: no queue"):
        sweep_it(tmp_path, "method=fedavg", "hydra/launcher=joblib", jobs=None)


def test_a_run_that_another_process_begins_is_left_to_it(tmp_path):
    sweep_it(tmp_path, "method=fedavg")
    (path,) = tmp_path.glob("digits-*")
    (path / MODEL_FILE).unlink()
    (path / CHECKPOINT_FILE).unlink(missing_ok=True)
    with RunDirectory(path).held(), pytest.raises(RunError, match="another process is at this run: wait"):
        sweep_it(tmp_path, "method=fedavg")
    assert path.exists()
    assert sweep_it(tmp_path, "method=fedavg")[0]


def test_a_name_tells_what_differs_and_equal_runs_are_one(tmp_path):
    _, shown = sweep_it(tmp_path, "privacy.budgets=[1,3,6],[2,6,12]", "simulation.workers=1,2")
    assert shown.count(", took ") == 2
    names = sorted(path.name.partition("-simulation")[0] for path in tmp_path.glob("digits-*"))
    assert names == [f"digits-gdpfed_plus-privacy.budgets=_{each}_" for each in ("1,3,6", "2,6,12")]


def test_ranges_globs_and_quoted_paths_have_values():
    assert [job.differing for job in jobs_of(["run.seed=range(1,3)"])] == [("run.seed=1",), ("run.seed=2",)]
    chosen = [job.overrides[0] for job in jobs_of(["method=glob([*fedavg],exclude=hier*)"])]
    assert chosen == ["method=dp_fedavg", "method=fedavg", "method=sampled_fedavg"]
    assert len(jobs_of(["dataset.path='/a','/b'"])) == 2
    alone = ["dataset.path=/a,b", "privacy.client_budgets=uniform(1,2)"]
    assert [job.overrides for job in jobs_of(alone)] == [tuple(alone)]
    assert len(jobs_of(["run.seed=1,2", "run.seed=1,2"])) == 2
    with pytest.raises(ConfigError, match="run.seed=1,2 and run.seed=3 are both given: choose one"):
        jobs_of(["run.seed=1,2", "run.seed=3"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["run.seed=range(0,1e400)"], r"'run.seed=range\(0,1e400\)' has more than 10,000 values"),
        (["run.seed=shuffle(range(0,1,1e-300))"], "has more than 10,000 values, .*: give a shorter range"),
        (["run.seed=range(0,200)", "training.batch_size=range(1,100)"], "stand for 19,800 runs, and a sweep"),
        (["run.seed=range(0,10,0)"], r"is not a range: .* as in run.seed=range\(0,10,2\)"),
        (["run.seed=range(0,nan)"], r"is not a range: "),
    ],
)
def test_a_sweep_without_end_is_refused(words, fault):
    with pytest.raises(ConfigError, match=fault):
        jobs_of(words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run.seed=interval(0,1)"], "'run.seed=interval(0,1)' has no values to count: list them, as in"),
        (["run.seed=0,x"], "run.seed=x is not a whole number"),
        (
            ["run.seed=0,1", "run.seed=2"],
            "run.seed=0,1 and run.seed=2 are both given: choose one",
        ),
        (["method=glob(x*)"], "'method=glob(x*)' stands for no value: the options are ali_dpfl, "),
        (["run.seed=range(0,0)"], "'run.seed=range(0,0)' stands for no value: list them, as in run.seed=1,2"),
        (["run.resume=x"], "'run.resume=x' belongs to one run, and a sweep has several runs: leave it out"),
        (["simulation.backend=ray"], "'simulation.backend=ray' belongs to one run, and a sweep has several"),
        (
            ["hydra/launcher=ray"],
            "hydra/launcher=ray is not known: use basic or joblib; pip install hydra-ray-launcher",
        ),
        (["hydra/launcher=x"], "hydra/launcher=x is not known: use basic or joblib [config]"),
        (
            ["hydra/launcher=basic", "hydra.launcher.n=1"],
            "hydra/launcher=basic hydra.launcher.n=1: Could not over",
        ),
        (
            ["hydra/launcher=joblib", "+hydra.launcher.n_jobs=1"],
            "hydra/launcher=joblib +hydra.launcher.n_jobs=1: Could not append",
        ),
        (["hydra.sweep.dir=x"], "'hydra.sweep.dir=x' sets Hydra itself, of which only the launcher is used"),
        (["hydra/launcher=joblib", "--jobs=2"], "--jobs 2 and hydra/launcher=joblib: leave one of them out"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_leaves_nothing(tmp_path, capsys, words, line):
    assert main(["simulate", "-m", f"--output={tmp_path}/out", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gdpfed: {line}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["method=fedavg,pfa"], ["run.seed=1,2"], ["--jobs=2"]])
def test_several_runs_need_multirun(capsys, words):
    assert main(["simulate", *words]) == 2
    assert "--multirun" in capsys.readouterr().err


def test_finished_runs_of_other_data_are_refused(tmp_path):
    """A sweep refuses to reuse finished runs if the data's hash is not the one kept with the runs."""
    hashes = {"data": "a" * 64}
    trained = StubTrainer()

    def again(*overrides):
        shown = io.StringIO()
        trainer = Trainer(lambda config: hashes["data"], trained.train)
        words = [*SMALL, "method=dp_fedavg,fedavg", *overrides]
        console = Console(file=shown, width=200)
        assert sweep(words, tmp_path, console, "the command", num_jobs=1, trainer=trainer)
        return shown.getvalue()

    assert "finished before" not in again()
    assert again().count("2 of 2 runs were finished before and are shown as they are; code of pack") == 1
    file = tmp_path / ".data.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    hashes["data"] = "b" * 64
    with pytest.raises(
        ExperimentError, match=r"^dataset=digits is not what .* \(.* b{12}, then a{12}\): put it"
    ):
        again()
    with pytest.raises(ExperimentError, match="dataset=digits is not what"):
        again("run.seed=0,1")
    assert len(trained.trained) == 2
    file.write_text("{}")
    with pytest.raises(ExperimentError, match="cannot be read .*: restore it from a copy, or name another"):
        again()
    file.unlink()
    assert "code of packages is not compared, nor are the data of 2 of them" in again()
