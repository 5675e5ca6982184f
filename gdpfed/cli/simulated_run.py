"""Trains a simulated run and shows its plan and its rounds on the terminal."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.cli.command import FULL, busy
from gdpfed.errors import LearningError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from conf.schema import Config

NEEDED = {
    **dict.fromkeys(FULL, "make room"),
    **dict.fromkeys((errno.EPERM, errno.EACCES, errno.EROFS), "let this user write it"),
    errno.EFBIG: "let this user write larger files (ulimit -f)",
}
"""What has to be done before a run goes on whose file could not be written, by the system's reason."""
OWN_DATA = {
    "csv": "a table, or a folder with one for each party",
    "parquet": "a table, or a folder with one for each party",
    "npz": "the .npz file that holds the data",
    "image_folder": "the directory with the class folders",
    "heart_disease": "the folder with UCI's files processed.cleveland.data and so on",
    "shakespeare": "a text file of 'ROLE:' speeches, or LEAF's data directory",
}
"""Data sets that are nowhere unless somebody says where, and what is to be named."""


def require_path(config: "Config") -> None:
    """Raise LearningError if a data file is missing, before the slow import of the code that reads it."""
    data = config.dataset
    if data.name not in OWN_DATA:
        return
    what = OWN_DATA[data.name]
    if data.path is None:
        raise LearningError(f"dataset.path is not set: name {what}, as in dataset.path=/data/mine")
    if not Path(data.path).expanduser().exists():
        raise LearningError(f"dataset.path={data.path} is not there: name {what}")


def train(console: "Console", overrides: Sequence[str]) -> Path:
    """Train a run with these settings in this process, show its rounds, and return its directory.

    Raises:
        KeyboardInterrupt: Ctrl-C; once there is something to go on from, its text says how.
        RunError: the run failed; where the disk is full, its text says what to do, too.
    """
    from gdpfed.runs.resume import load_run

    config = load_run(overrides)
    require_path(config)
    from gdpfed.cli.show_plan import show_heading
    from gdpfed.learning.data_warnings import data_warnings
    from gdpfed.report.progress import RunProgress
    from gdpfed.rounds.extensions.norms_result import UpdateNorms
    from gdpfed.rounds.run import PreparedRun
    from gdpfed.runs.file_formats import CHECKPOINT_FILE
    from gdpfed.runs.round_log import RoundLogEntry, read_rounds
    from gdpfed.simulation.in_process_fleet import simulate_prepared

    with busy("planning ..."):
        prepared = PreparedRun.of(config)
    plan, waiting = prepared.method.plan, "training the first round ..."
    show_heading(console, prepared.config, prepared.method)
    for line in data_warnings(prepared.task):
        console.print(line)
    try:
        with RunProgress(
            console, plan.num_rounds, plan.budgets, waiting=waiting, against=plan.against
        ) as progress:

            def show(record: RoundLogEntry) -> None:
                records = read_rounds(prepared.path)
                if len(records) == 1 and (norms := UpdateNorms.read(prepared.path)) is not None:
                    console.print(norms.summary)
                progress.update(records)

            progress.go_on_after(read_rounds(prepared.path))
            simulate_prepared(prepared, observe=show, announce=console.print)
    except (KeyboardInterrupt, RunError, OSError) as error:
        begun = (prepared.path / CHECKPOINT_FILE).exists()
        anew = f"remove {prepared.path}, and start the run again"
        going_on = f"continue with run.resume={prepared.path}" if begun else anew
        if isinstance(error, KeyboardInterrupt):
            if not begun:
                raise
            raise KeyboardInterrupt(f"interrupted; {going_on}") from None
        cause = error if isinstance(error, OSError) else error.__context__
        needed = NEEDED.get(cause.errno or 0) if isinstance(cause, OSError) else None
        if needed is None or isinstance(error, PermissionError):
            raise
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{words}; {needed}, then {going_on}") from None
    return prepared.path
