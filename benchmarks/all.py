"""Repeats the measurements of all pages on speed, at one commit on one machine.

A page names the command of each of its tables. Each command runs once, in the order of the pages, and writes
its tables where they are. One that needs a GPU is left out where there is none, and so is one before which
the machine has been busy for ten minutes. One that ends in an error leaves its tables as they were.

    python -m benchmarks.all [--pages docs/performance.md ...] [--only 'WORD ...'] [--list]

`--only`: commands that have one of these words. `--list`: only say which there are.
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
    """A command that measures something for a page in docs/, and that page."""

    page: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line, as it stands in the page."""
        return shlex.join(self.words)

    def left_out(self, *, has_gpu: bool) -> str:
        """Return why this machine cannot make the measurement; empty if it can."""
        if self.words[0] != "python":
            return "not a benchmark"
        return "needs a GPU" if "cuda" in self.words and not has_gpu else ""

    def run(self, commit: str) -> str:
        """Run the measuring command for a commit; return the last line of its error, or ""."""
        command = [sys.executable, *self.words[1:], "--write", str(PROJECT / self.page)]
        named = os.environ | {COMMIT: commit}
        done = subprocess.run(  # noqa: S603
            command, cwd=PROJECT, env=named, capture_output=True, text=True, check=False
        )
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return said[-1] if done.returncode else ""


def measurements_of(pages: Sequence[str], only: Sequence[str] = ()) -> list[Measurement]:
    """Return the measuring commands that pages name, each once, in their order."""
    found: dict[Measurement, None] = {}
    for page in pages:
        for marker in MARKER.findall((PROJECT / page).read_text("utf-8")):
            words = tuple(shlex.split(marker))
            if not only or set(only) & set(words):
                found[Measurement(page, words)] = None
    return list(found)


def busy_for_long(pause: Callable[[float], None] = sleep) -> str:
    """Wait until the machine is idle; return why nothing can be measured if it stays busy for ten minutes."""
    said = ""
    for _ in range(WAITS):
        try:
            return check_idle(busy_is_fine=False)
        except InputError as error:
            said = str(error)
            pause(WAIT_SECONDS)
    return said


def outcome_of(each: Measurement, *, commit: str, listed: bool, has_gpu: bool) -> tuple[str, str]:
    """Return the outcome of a measurement in words, and the time that it took."""
    reason = each.left_out(has_gpu=has_gpu)
    if reason:
        return f"left out: {reason}", ""
    if listed:
        return "not run", ""
    if busy := busy_for_long():
        return f"left out: {busy}", ""
    started = perf_counter()
    with CONSOLE.status(each.command):
        error = each.run(commit)
    took = duration(perf_counter() - started)
    outcome = f"FAILED: {error}" if error else "measured"
    CONSOLE.print(f"{each.command}: {outcome}, {took}", soft_wrap=True, markup=False)
    return outcome, took


def main(has_gpu: Callable[[], bool] = torch.cuda.is_available) -> None:
    """Run the measuring commands one after the other, and show what became of each."""
    options = read_options(__doc__, overrides=False, pages=PAGES, only="", list=False)
    chosen = measurements_of(options.pages, options.only.split())
    # Tables that are written change the files, and are not what was measured.
    act = partial(outcome_of, commit=present_commit(), listed=options.list, has_gpu=has_gpu())
    rows = [(Path(each.page).name, each.command, *act(each)) for each in chosen]
    publish(
        [Table("Tables of the pages on speed", ("page", "command", "outcome", "took"), rows)], options.write
    )
    if any(row[2].startswith(("FAILED", "left out: the CPUs")) for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
