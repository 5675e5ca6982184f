"""Measures the first minutes of a new user: from an empty folder to a private model and its picture.

Each step is a command as a shell would run it, in a process of its own and in a new folder. With
``--environment`` the checkout is cloned there and its environment made first, as `make venv` does it, which
needs a package index or a cache of one; without it the commands are those of the environment at hand.

    python -m benchmarks.first_minutes [--environment] [--write docs/running.md]
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.harness import CONSOLE, PROJECT, publish, read_options
from gdpfed.errors import RunError
from gdpfed.report.console import Table

STEPS = (
    ("a first private model", ("gdpfed", "demo", "--private-only")),
    ("settings of one's own", ("gdpfed", "new", "mine.yaml", "--yes", "--clients", "60", "--budgets", "1,3")),
    ("what they promise", ("gdpfed", "plan", "mine.yaml")),
    ("the model trained with them", ("gdpfed", "simulate", "mine.yaml", "secagg=off")),
    ("both side by side, with pictures", ("gdpfed", "report", "runs", "--output", "comparison")),
)
"""What is done, and the command."""
PICTURES = ("accuracy.png", "epsilon.png")


@dataclass(frozen=True)
class Step:
    """One step of a new user: description, command, wall seconds and processor seconds."""

    words: str
    command: str
    seconds: float
    processor_seconds: float


def carry_out(words: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> Step:
    """Run one command in a folder and time it.

    Raises RunError: it failed; the end of what it said is in the text.
    """
    CONSOLE.print(f"{words}: {' '.join(command)}")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    done = subprocess.run(  # noqa: S603 - our own commands
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise RunError(f"{' '.join(command)} ended with {done.returncode}: {''.join(said)}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Step(words, " ".join(command), seconds, used)


def make_environment(folder: Path) -> tuple[list[Step], Path]:
    """Clone the repository and make its environment; return both steps and the environment's bin folder."""
    clone = ("git", "clone", "--quiet", str(PROJECT), "gdpfed")
    environment = dict(os.environ)
    steps = [carry_out("the checkout", clone, folder, environment)]
    steps.append(carry_out("its environment", ("make", "venv"), folder / "gdpfed", environment))
    return steps, folder / "gdpfed" / ".venv" / "bin"


def first_minutes(folder: Path, *, with_environment: bool) -> list[Step]:
    """Carry out all steps of a new user in an empty folder, one after the other.

    Raises RunError: a step failed, or there is no picture at the end.
    """
    steps, commands = make_environment(folder) if with_environment else ([], Path(sys.executable).parent)
    paths = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    steps += [carry_out(words, command, folder, os.environ | paths) for words, command in STEPS]
    missing = [name for name in PICTURES if not (folder / "comparison" / name).is_file()]
    if missing:
        raise RunError(f"after all steps there is no comparison/{missing[0]} in {folder}")
    return steps


def table_of(steps: Sequence[Step]) -> Table:
    """Make a table with a row for each step of a new user, and the time since the beginning."""
    rows, total = [], 0.0
    for step in steps:
        total += step.seconds
        figures = (f"{each:.1f}" for each in (step.seconds, step.processor_seconds, total))
        rows.append((step.words, step.command, *figures))
    headings = ("step", "command", "seconds", "processor seconds", "since the beginning")
    return Table("The first minutes, from an empty folder", headings, rows)


def main() -> None:
    """Carry out a new user's steps in a temporary folder, and show their times."""
    options = read_options(__doc__, overrides=False, environment=False)
    with tempfile.TemporaryDirectory() as folder:
        steps = first_minutes(Path(folder), with_environment=options.environment)
    publish([table_of(steps)], options.write)


if __name__ == "__main__":
    main()
