"""Trains every combination of listed values of settings, and compares the finished runs."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conf.load import load
from conf.sweeps import jobs_of
from gdpfed.errors import ExperimentError
from gdpfed.extras.experiments.cells import OF_EVERY_RUN
from gdpfed.extras.experiments.run_training import SIMULATION, Trainer, chosen_launch, train_missing
from gdpfed.extras.experiments.runs import Run, lock_output, run_name
from gdpfed.methods import resolve
from gdpfed.report.comparison import lines_of
from gdpfed.report.finished_run import read_run
from gdpfed.report.report_tables import tables_of
from gdpfed.report.run_folders import save_sweep_order


def sweep(
    overrides: Sequence[str],
    output: Path,
    console: Console,
    command: str,
    *,
    num_jobs: int | None = None,
    trainer: Trainer = SIMULATION,
) -> bool:
    """Train all missing runs of a sweep and print the comparison; return whether all are finished.

    `overrides`: settings, several values of some of them, and a launcher of Hydra's. `output`: where the runs
    go, each under a name that follows from its settings. `command`: the command line, to say how to continue.
    `num_jobs`: as ``--jobs``. `trainer`: loads data and trains.

    Raises:
        ConfigError, PrivacyError, ExperimentError, ReportError: one line; before anything is trained.
        RunError: nothing is finished, and a training has failed.
        KeyboardInterrupt: with a line that says how to continue.
    """
    launch, others = chosen_launch(overrides, num_jobs, output)
    for override in others:
        if override.partition("=")[0] in OF_EVERY_RUN:
            raise ExperimentError(
                f"'{override}' belongs to one run, and a sweep has several runs: leave it out"
            )
    by_settings: dict[str, Run] = {}
    for job in jobs_of(others):
        config = resolve(load(job.overrides))
        label = " ".join(job.differing) or config.method.name
        run = Run(label, config, output / run_name(config, job.differing))
        # Two whose results follow from the same would count as two seeds.
        by_settings.setdefault(run_name(config), run)
    runs = list(by_settings.values())
    with lock_output(output):
        try:
            errors, before = train_missing(runs, trainer, launch, console, command, output)
        finally:  # A sweep that is interrupted has an order, too.
            save_sweep_order(output, [run.path.name for run in runs if run.path.exists()])
    finished = [read_run(run.path) for run in runs if run.finished]
    if not finished:
        raise next(iter(errors.values()))
    lines = lines_of(finished)
    for metric in dict.fromkeys(line.metric for line in lines):
        for table in tables_of([line for line in lines if line.metric == metric]).values():
            console.print(table.to_rich())
    for run in runs:
        if run.path in errors:
            console.print(f"missing: {run.label}: {errors[run.path]}", soft_wrap=True, markup=False)
    if before:
        console.print(before, soft_wrap=True)
    console.print(f"The runs are in {output}, as 'gdpfed report {output}' shows them", soft_wrap=True)
    return not errors
