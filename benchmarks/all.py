"""Reruns the commands that measured the tables of docs/ on speed, at one commit on one machine.

A page names the command of each of its tables. Each command runs once, in the order of the pages, and writes
its tables into the page. A command is left out if it needs a GPU and there is none. It fails if the machine
stays busy for ten minutes before it. A command that fails leaves its tables as they were.

    python -m benchmarks.all [--pages docs/performance.md ...] [--only 'WORD ...'] [--list]

`--only`: run only the commands that contain one of these words. `--list`: only list the commands.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

import torch

from benchmarks.harness import COMMIT, CONSOLE, PROJECT, check_idle, present_commit, publish, read_options
from gdpfed.errors import InputError
from gdpfed.report.console import Table
from gdpfed.report.metric_display import duration

PAGES = ("docs/performance.md", "docs/secagg.md", "docs/records.md")
WAITS, WAIT_SECONDS = 30, 20.0
MARKER = re.compile(r"<!-- measured by: (.*?) -->", re.DOTALL)


@dataclass(frozen=True)
class Measurement:
    """A benchmark's command line, and the page in docs/ that shows the tables of this benchmark."""

    page: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line as one string, as the page shows it."""
        return shlex.join(self.words)

    def left_out(self, *, has_gpu: bool) -> str:
        """Return the reason why this machine cannot run the benchmark, or an empty string if it can."""
        if self.words[0] != "python":
            return "not a benchmark"
        return "needs a GPU" if "cuda" in self.words and not has_gpu else ""

    def run(self, commit: str) -> str:
        """Run the benchmark, so that its tables name `commit`; return the last line of an error, or ""."""
        command = [sys.executable, *self.words[1:], "--write", str(PROJECT / self.page)]
        named = os.environ | {COMMIT: commit}
        done = subprocess.run(  # noqa: S603
            command, cwd=PROJECT, env=named, capture_output=True, text=True, check=False
        )
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return said[-1] if done.returncode else ""


def measurements_of(pages: Sequence[str], only: Sequence[str] = ()) -> list[Measurement]:
    """Return the benchmark commands that the given pages of docs/ name, in the order of the pages.

    A command that a page names several times is returned once. `only`: a command must contain one of these
    words, if there are any.
    """
    found: dict[Measurement, None] = {}
    for page in pages:
        for marker in MARKER.findall((PROJECT / page).read_text("utf-8")):
            words = tuple(shlex.split(marker))
            if not only or set(only) & set(words):
                found[Measurement(page, words)] = None
    return list(found)


def busy_for_long(pause: Callable[[float], None] = sleep) -> str:
    """Wait up to ten minutes for an idle machine; return an empty string, or the reason if it stays busy."""
    said = ""
    for _ in range(WAITS):
        try:
            return check_idle(busy_is_fine=False)
        except InputError as error:
            said = str(error)
            pause(WAIT_SECONDS)
    return said


def outcome_of(each: Measurement, *, commit: str, listed: bool, has_gpu: bool) -> tuple[str, str]:
    """Run a benchmark unless `listed` is set or this machine cannot run it; return outcome and time."""
    reason = each.left_out(has_gpu=has_gpu)
    if reason:
        return f"left out: {reason}", ""
    if listed:
        return "not run", ""
    if busy := busy_for_long():
        return f"FAILED: {busy}", ""
    started = perf_counter()
    with CONSOLE.status(each.command):
        error = each.run(commit)
    took = duration(perf_counter() - started)
    outcome = f"FAILED: {error}" if error else "measured"
    CONSOLE.print(f"{each.command}: {outcome}, {took}", soft_wrap=True, markup=False)
    return outcome, took


def main(has_gpu: Callable[[], bool] = torch.cuda.is_available) -> None:
    """Run the benchmarks one after the other, and show the outcome of each in a table."""
    options = read_options(__doc__, overrides=False, pages=PAGES, only="", list=False)
    chosen = measurements_of(options.pages, options.only.split())
    # Tables that are written change the files, and are not what was measured.
    act = partial(outcome_of, commit=present_commit(), listed=options.list, has_gpu=has_gpu())
    rows = [(Path(each.page).name, each.command, *act(each)) for each in chosen]
    publish(
        [Table("Tables of the pages on speed", ("page", "command", "outcome", "took"), rows)], options.write
    )
    if any(row[2].startswith("FAILED") for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
