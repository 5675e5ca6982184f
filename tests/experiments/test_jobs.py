"""Several runs of an experiment at a time: what is computed, and what is left when something ends early."""

import io
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from stub_trainer import StubTrainer

from conf.experiment import Choice, Experiment
from gdpfed.cli import main
from gdpfed.errors import ExperimentError, LearningError, RunError
from gdpfed.experiments.crew import Alone
from gdpfed.experiments.forked import Forked
from gdpfed.experiments.output_lock import the_only_one
from gdpfed.experiments.reproduce import Reproduction, reproduce
from gdpfed.experiments.setting import Setting

EXPERIMENT = Experiment(
    name="small",
    title="Small: one method twice",
    quantity="accuracy",
    datasets=["digits"],
    rows={
        "dp": Choice(label="DP", overrides=["method=dp_fedavg"]),
        "same": Choice(label="the same", overrides=["method=dp_fedavg"]),
        "plus": Choice(label="Plus", overrides=["method=gdpfed_plus"]),
    },
    overrides=["privacy.accountant=rdp"],
)
SEEDS = 2
SIX_CELLS = ("reproduce", "table6", "--datasets=digits", "privacy.accountant=rdp")


def run_it(output, crew):
    request = Reproduction(EXPERIMENT, Setting(num_rounds=2), SEEDS, output, "gdpfed reproduce small")
    shown = io.StringIO()
    complete = reproduce(request, lambda missing: crew, Console(file=shown, width=200))
    return complete, shown.getvalue()


def forked(trainer, load=lambda config: None):
    return Forked(trainer, load, num_jobs=2)


def in_a_process_of_its_own(config, *, observe=None, parent):
    assert os.getppid() == parent
    return StubTrainer()(config, observe=observe)


def test_runs_in_processes_come_to_the_same_table_as_in_one(tmp_path):
    loaded = []
    trainer = partial(in_a_process_of_its_own, parent=os.getpid())
    complete, shown = run_it(tmp_path / "forked", forked(trainer, loaded.append))
    assert complete
    # Two rows are one configuration, hence one run a seed.
    assert len(loaded) == len(list((tmp_path / "forked" / "runs").iterdir())) == 2 * SEEDS
    assert shown.count("took") == 2 * SEEDS
    run_it(tmp_path / "alone", Alone(StubTrainer()))
    tables = [(tmp_path / kind / "small" / "figures.csv").read_text() for kind in ("forked", "alone")]
    assert tables[0] == tables[1]


def test_data_that_cannot_be_had_is_asked_for_once_and_said_once(tmp_path):
    asked = []

    def load(config):
        asked.append(config)
        raise LearningError("dataset.path: digits is not there")

    with pytest.raises(ExperimentError, match="nothing can be run of small: dataset.path: digits is not"):
        run_it(tmp_path, forked(StubTrainer(), load))
    assert len(asked) == 1


def refusing(config, *, observe=None):
    raise LearningError(f"no {config.method.name}")


def test_a_refusal_in_a_process_is_the_cells_reason(tmp_path):
    with pytest.raises(ExperimentError, match="nothing can be run of small: no dp_fedavg"):
        run_it(tmp_path, forked(refusing))


def killed(config, *, observe=None):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_ended_from_outside_is_one_line(tmp_path):
    with pytest.raises(RunError, match="was ended from outside, .* the same command continues"):
        run_it(tmp_path, forked(killed))


def broken(config, *, observe=None):
    raise ZeroDivisionError


def test_a_process_that_fails_is_told_from_one_that_is_ended(tmp_path, capfd):
    with pytest.raises(RunError, match="the training of .* failed; its error is above"):
        run_it(tmp_path, forked(broken))
    assert "ZeroDivisionError" in capfd.readouterr().err


def endless(config, *, observe=None):
    with suppress(KeyboardInterrupt):
        StubTrainer(interrupt_after=1)(config, observe=observe)
    time.sleep(600)


class InterruptedCrew(Forked):
    """Ctrl-C as soon as two runs have come to their first round."""

    rounds_seen = 0

    def start(self, run, observe):
        def count(record):
            observe(record)
            self.rounds_seen += 1
            if self.rounds_seen == 2:
                raise KeyboardInterrupt

        super().start(run, count)


def test_an_interrupt_ends_the_processes_and_their_runs_continue(tmp_path):
    with pytest.raises(KeyboardInterrupt, match="after 0 of 6 runs; the same command continues"):
        run_it(tmp_path, InterruptedCrew(endless, lambda config: None, num_jobs=2))
    assert not psutil.Process().children()
    begun = {run.name for run in (tmp_path / "runs").iterdir()}
    assert len(begun) == 2
    trainer = StubTrainer()
    assert run_it(tmp_path, Alone(trainer))[0]
    continued = {Path(config.run.resume).name for config in trainer.trained if config.run.resume}
    assert continued == begun


def test_one_reproduce_at_a_time_has_an_output(tmp_path, capsys):
    with the_only_one(tmp_path):
        assert main([*SIX_CELLS, f"--output={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"gdpfed: --output {tmp_path} is in use by another reproduce: wait for it, or choose another\n"
    )
    with the_only_one(tmp_path):
        pass


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_no_jobs_are_refused(tmp_path, capsys, jobs):
    assert main(["reproduce", "table2", f"--jobs={jobs}", f"--output={tmp_path}/out"]) == 2
    assert capsys.readouterr().err == f"gdpfed: --jobs {jobs} must be at least 1\n"
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([*SIX_CELLS, f"--output={tmp_path}/file"]) == 2
    assert "file cannot be a directory: File exists" in capsys.readouterr().err
