"""Reads the finished runs that a command names, of which no file has changed since they ended."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.cli.command import require_folders
from gdpfed.errors import AuditError, ReportError

if TYPE_CHECKING:
    from gdpfed.report.finished_run import FinishedRun


def require_runs(named: Sequence[Path]) -> None:
    """Raise ReportError if a path is not a run and holds none, before the slow import of what reads runs."""
    from gdpfed.report.run_folders import is_run, run_paths, runs_below
    from gdpfed.runs.file_formats import CONFIG_FILE

    require_folders(named)
    for path in named:
        if not is_run(next(run_paths([path]))):
            deeper = runs_below([path])
            right = f"{deeper[0]}, which holds runs" if deeper else "the directory of a run"
            raise ReportError(
                f"{path} is not a run: it holds no {CONFIG_FILE} with a run's settings; name {right}"
            )


def finished_runs(named: Sequence[Path]) -> "list[FinishedRun]":
    """Read the finished runs that are named or lie below, and say on the error stream which are left out.

    Raises:
        ReportError: a run is damaged or has changed, or none has ended.
    """
    from gdpfed.report.finished_run import UnfinishedError, read_run
    from gdpfed.report.run_folders import run_paths, runs_below

    runs, unfinished = [], []
    for path in run_paths(named):
        try:
            runs.append(read_run(path))
        except UnfinishedError as error:
            unfinished.append(error)
        else:
            _require_sealed(path)
    if not runs:
        raise unfinished[0]
    for each in unfinished:
        print(f"gdpfed: left out: {each}", file=sys.stderr)
    if below := runs_below(named):
        listed = ", ".join(map(str, below))
        print(f"gdpfed: left out: runs that lie deeper, in {listed}: name that directory", file=sys.stderr)
    return runs


def _require_sealed(path: Path) -> None:
    """Raise ReportError if a file of a finished run has changed since the run ended."""
    from gdpfed.audit.seal_checks import seal_findings

    try:
        findings = seal_findings(path)
    except AuditError as error:
        raise ReportError(f"{path} cannot be compared with its seal: {error}") from None
    if findings:
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise ReportError(
            f"{path} is not as the run left it: {findings[0]}{more}: restore it from a copy, or leave it out"
        )
