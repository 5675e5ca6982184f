"""What all benchmarks share: options, timing, medians, and writing tables into documents.

A table in a document lies between two lines, and only the command named there replaces it::

    <!-- measured by: python -m benchmarks.exchanges --nodes 6 -->
    <!-- end -->

``--write docs/secagg.md`` does so. A command that makes several tables fills one such place for each, in
order.
"""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from matplotlib.ticker import NullLocator
from rich.console import Console

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load
from gdpfed.errors import InputError, RunError
from gdpfed.launch.flower_run import FlowerRun, Launch
from gdpfed.report.console import Table
from gdpfed.report.plots import line_style, new_figure, new_panels, save, shared_legend, styled
from gdpfed.runs.round_log import RoundLogEntry, read_rounds

PROJECT = Path(__file__).resolve().parents[1]
DOC_COLUMNS = 120
# Above it something else runs: what is measured then says nothing.
MOST_BUSY_PERCENT = 12.5
LOOKED_SECONDS = 3.0
CONSOLE = Console(stderr=True)


@dataclass(frozen=True)
class Measured:
    """The seconds of every measured round of one program, and further values for the program's table row.

    `facts`: what else its row shows, in the order of the table's columns. `peak_mb`: the most memory of all
    its processes, 0 if it was not measured.
    """

    name: str
    seconds: Sequence[float]
    facts: tuple[str, ...] = ()
    peak_mb: float = 0.0

    @property
    def median(self) -> float:
        """The median seconds of a round."""
        return statistics.median(self.seconds)

    def spread(self) -> str:
        """Return the median, smallest and largest seconds as text."""
        return f"{three(self.median)} ({three(min(self.seconds))}, {three(max(self.seconds))})"


def three(value: float) -> str:
    """Format a number with about three digits and without an exponent."""
    return f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3}f}"


def measure(contenders: Iterable[Callable[[], Measured]]) -> list[Measured]:
    """Time programs one after the other; print each result with the machine's load."""
    measured = []
    for contender in contenders:
        with CONSOLE.status("measuring ..."):
            each = contender()
        CONSOLE.print(
            f"{each.name}: {each.spread()} s, load average {os.getloadavg()[0]:.1f}", soft_wrap=True
        )
        measured.append(each)
    return measured


def comparison(
    title: str, measured: Sequence[Measured], floor: Callable[[Measured], Measured], *headings: str
) -> Table:
    """Make a table of programs: seconds per round, the ratio to a reference program's, and other facts.

    The last two headings are those of the seconds and of the ratio, those before them belong to the facts.
    """
    rows = [(m.name, *m.facts, m.spread(), f"{m.median / floor(m).median:.2f}") for m in measured]
    return Table(title, ("", *headings), rows)


def fastest(repeats: int, /, **contenders: Callable[[], object]) -> dict[str, float]:
    """Run the functions in turn, `repeats` times each; return the seconds of each function's fastest run.

    Taking turns makes other load on the machine affect all functions alike.
    """
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, act in contenders.items():
            best[name] = min(best[name], seconds(act))
    return best


def seconds(act: Callable[[], object], repeats: int = 1) -> float:
    """Return the seconds of the fastest of `repeats` calls of a function."""
    times: list[float] = []
    for _ in range(repeats):
        with noted(times):
            act()
    return min(times)


@contextmanager
def noted(times: list[float]) -> Iterator[None]:
    """Append the seconds of the ``with`` block to a list."""
    started = perf_counter()
    yield
    times.append(perf_counter() - started)


def check_idle(busy_is_fine: bool, busy_percent: Callable[[float], float] = psutil.cpu_percent) -> str:
    """Return "" if the CPUs are idle; if not, return a remark if `busy_is_fine`, or else raise InputError.

    How busy its CPUs are is measured over three seconds: a load average still shows, for minutes, what has
    ended.

    `busy_is_fine`: whether figures that are marked will do. `busy_percent`: how busy all CPUs are over some
    seconds, in percent.

    Returns:
        The mark; empty on an idle machine.
    """
    busy = busy_percent(LOOKED_SECONDS)
    if busy <= MOST_BUSY_PERCENT:
        return ""
    if busy_is_fine:
        return f"Measured on a busy machine (CPUs {busy:.0f} % busy before it began): indicative only."
    raise InputError(
        f"the CPUs are {busy:.0f} % busy, above {MOST_BUSY_PERCENT} %: wait until nothing else runs, or "
        "measure with --busy, which marks the figures"
    )


def follow(run: FlowerRun | Launch) -> str:
    """Wait until a Flower run ends, and return Flower's log."""
    while run.running():
        pass
    return run.check()


def train_over_flower(overrides: Sequence[str]) -> list[RoundLogEntry]:
    """Train with ``flwr run`` on the simulation backend; return the log entries of the rounds."""
    with tempfile.TemporaryDirectory() as parent:
        run, clients = Path(parent) / "run", load(overrides).dataset.num_clients
        with Launch.training(overrides, num_clients=clients, directory=run, resuming=False) as launch:
            follow(launch)
        return read_rounds(run)


def steady_seconds(records: Sequence[RoundLogEntry]) -> list[float]:
    """Return the training seconds of every round except the first, in which programs load libraries."""
    return [record.training_seconds for record in records[1:]]


def written_seconds(file: Path, rounds: int, log: str) -> list[float]:
    """Read the seconds of every round except the first from a file that a Flower app wrote.

    Flower's log can end before a run's last lines have reached it. Raises RunError: rounds are missing.
    """
    seconds: list[float] = json.loads(file.read_text("utf-8")) if file.exists() else []
    if len(seconds) < rounds:
        raise RunError(f"the app ended after {len(seconds)} of {rounds} rounds; its log:\n{log[-2000:]}")
    return seconds[1:]


def read_options(description: str | None, *, overrides: bool, **defaults: Any) -> argparse.Namespace:
    """Read the command line: the named options, ``--write``, and key=value settings if they are allowed.

    False stands for a flag, and a tuple for some of the choices in it.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=layout)
    parser.add_argument(
        "--write", type=Path, metavar="DOC", help="replace this command's tables in a document"
    )
    if overrides:
        parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="settings beside its own")
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(f"--{name}", nargs="+", choices=default, default=default)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args()


def over_seeds(count: int) -> str:
    """Return what the figures of a table are, for a title: those that `Spread.with_interval` writes."""
    return "one seed" if count == 1 else f"mean ± half of its 95 % interval (Student's t), {count} seeds"


def publish(tables: Sequence[Table], document: Path | None, mark: str = "") -> None:
    """Print measured tables with machine and commit, and write them into a document if one is given.

    Args:
        tables: in the order of their places.
        document: what to write them into.
        mark: what else is to be said of where they were measured.
    """
    for table in tables:
        Console(width=DOC_COLUMNS).print(table.to_rich())
    stamp = f"{provenance()} {mark}".rstrip()
    print(stamp)
    if document is not None:
        stamp = textwrap.fill(stamp, DOC_COLUMNS)
        texts = [f"{_wrapped(table).to_markdown()}\n{stamp}" for table in tables]
        document.write_text(with_tables(document.read_text("utf-8"), present_command(), texts), "utf-8")


def _wrapped(table: Table) -> Table:
    """Return a copy of the table, with the lines of its note wrapped to a document's width."""
    lines = (textwrap.fill(line, DOC_COLUMNS) for line in table.note.splitlines())
    return replace(table, note="\n".join(lines))


def with_tables(text: str, command: str, tables: Sequence[str]) -> str:
    """Return a document's text with this command's tables replaced by new ones.

    Raises InputError: the document has not as many places for this command as there are tables.
    """
    marker = f"<!-- measured by: {command} -->"
    # A long one may be wrapped.
    found_marker = r"\s".join(map(re.escape, marker.split()))
    pattern = rf"({found_marker}\n)(?:(?!<!-- measured by: ).)*?^<!-- end -->$"
    places = re.compile(pattern, re.DOTALL | re.MULTILINE)
    if (found := len(places.findall(text))) != len(tables):
        raise InputError(
            f"{found} of {len(tables)} places for tables: put `{marker}` and `<!-- end -->` where each goes"
        )
    remaining = iter(tables)
    return places.sub(lambda found: f"{found[1]}\n{next(remaining)}\n\n<!-- end -->", text)


def present_command() -> str:
    """Return the command line of this process without ``--write`` and ``--busy``."""
    words = [word for word in sys.orig_argv[1:] if word != "--busy"]
    if "--write" in words:
        at = words.index("--write")
        del words[at : at + 2]
    return shlex.join(["python", *words])


COMMIT = "GDPFED_COMMIT"
"""Names the commit, where the files are a copy without their history or change while they are measured."""


def present_commit() -> str:
    """Return the commit in the environment variable GDPFED_COMMIT or, if unset, the checked-out commit.

    The checked-out commit ends in ``-dirty`` if files differ from it; "unknown": git does not name it.
    """
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    describe = ("git", "describe", "--always", "--dirty", "--exclude=*")
    done = subprocess.run(describe, cwd=PROJECT, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def provenance() -> str:
    """Return a sentence that names the machine and commit of a measurement."""
    processor = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return (
        f"Measured by `{present_command()}` at commit {present_commit()} on "
        f"{len(os.sched_getaffinity(0))} cores of {processor[1] if processor else platform.machine()}, "
        f"load average {os.getloadavg()[0]:.1f} at the end."
    )


# A vertical axis is logarithmic if its largest value is this many times the smallest.
LOGARITHMIC_FROM = 3
HEADROOM = 1.15
Lines = Mapping[str, Sequence[tuple[float, float]]]


@styled
def draw_growth(path: Path, size: str, panels: Mapping[str, Lines]) -> None:
    """Draw each quantity over a size, such as the number of clients: one panel each, one line per program."""
    figure = new_figure(4.0 * len(panels) + 1, 3.4)
    all_axes = new_panels(figure, len(panels), columns=len(panels))
    for axes, (quantity, lines) in zip(all_axes, panels.items(), strict=True):
        for index, (label, points) in enumerate(lines.items()):
            axes.plot(*zip(*points, strict=True), label=label, **line_style(index))
        sizes = sorted({point for point, _ in chain.from_iterable(lines.values())})
        heights = [height for _, height in chain.from_iterable(lines.values())]
        axes.set(xscale="log", xlabel=size, ylabel=quantity)
        axes.set_xticks(sizes, [f"{each:,.0f}" for each in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        if max(heights) > LOGARITHMIC_FROM * min(heights):
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, HEADROOM * max(heights))
        axes.grid(alpha=0.3)
    shared_legend(figure, all_axes)
    save(figure, path)
