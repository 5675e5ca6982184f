"""``gdpfed audit --canaries``: measure epsilon on simulated runs, and compare it with what is stated."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from conf.load import load
from conf.schema import Config
from gdpfed.canaries.measure import Measurement, Settings, measure
from gdpfed.canaries.picture import epsilon_over_rounds
from gdpfed.cli.audit_command import without_infinity
from gdpfed.cli.command import make_console, user_path
from gdpfed.errors import ReportError
from gdpfed.report.console import Fitted
from gdpfed.runs.resume import load_run

MARKS_IN_PICTURE = 8
SEEN_BY = {
    "sums": "all sums",
    "server": "server",
    "everyone": "everyone",
    "updates": "every update",
    "model": "last model",
}
JSON_FILE, PICTURE_FILE = "canaries.json", "canaries.png"


def measure_canaries(options: argparse.Namespace) -> int:
    """Carry out the command; exit status 0 where nothing above what is stated was measured, else 1."""
    config = _configuration(options.overrides)
    settings = Settings(
        kind=options.kind,
        num_runs=options.runs,
        confidence=options.confidence,
        marks=1 if options.output is None else MARKS_IN_PICTURE,
    )
    if options.output is not None:
        # Before the measurement, which takes minutes.
        with _writing(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=options.output).close()
    console = Console(stderr=True) if options.json else make_console()
    with Progress(
        TextColumn("simulated runs"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=settings.num_runs)
        measurement = measure(config, settings, announce=lambda done: progress.update(task, completed=done))
    if options.output is not None:
        with _writing(options.output):
            (options.output / JSON_FILE).write_text(_as_json(measurement), encoding="utf-8")
            epsilon_over_rounds(measurement, options.output / PICTURE_FILE)
    if options.json:
        print(_as_json(measurement))
    else:
        _show(console, measurement, options.output)
    return 0 if measurement.passed else 1


def _configuration(words: Sequence[str]) -> Config:
    """The configuration of a run that is there, or the one that the overrides ask for."""
    if not words or "=" in words[0] or not user_path(words[0]).is_dir():
        return load(words)
    begun = load_run([f"run.resume={words[0]}", *words[1:]])
    return replace(begun, run=replace(begun.run, resume=None))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say in one line that the file system refuses."""
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"--output {folder} cannot be written ({error.strerror}): name another folder"
        ) from None


def _as_json(measurement: Measurement) -> str:
    figures = [asdict(each) | {"held": each.held} for each in measurement.figures]
    whole = asdict(measurement) | {
        "figures": figures,
        "passed": measurement.passed,
        "found_below": measurement.found_below,
    }
    return json.dumps(without_infinity(whole), indent=2, allow_nan=False)


def _found(measurement: Measurement) -> str:
    """What a test that has passed would have found."""
    below = measurement.found_below
    if below <= 0.0:
        return "With these canaries it would not have found missing noise either: give more --runs."
    return (
        f"With these canaries it would have found noise below about {below:.2f} of the plan's in every group."
    )


def _show(console: Console, measurement: Measurement, output: Path | None) -> None:
    settings = measurement.settings
    console.print(
        f"{measurement.method}: {settings.num_runs} simulated runs of {measurement.num_rounds} rounds, "
        f"{settings.kind} canaries, {measurement.sums_revealed} sums revealed",
        highlight=False,
    )
    table = Table(
        title=f"epsilon at delta {measurement.delta:.3g}, per {measurement.unit}", title_justify="left"
    )
    for heading in ("group", "seen by", "stated", "measured", "of it", "any law", "canaries", "held"):
        table.add_column(heading, justify="left" if heading == "seen by" else "right")
    for each in measurement.final:
        seen_by = SEEN_BY[each.view]
        table.add_row(
            str(each.group),
            seen_by if each.participations is None else f"{seen_by}, K={each.participations}",
            f"{each.stated:.3g}",
            f"{each.measured:.3g}",
            f"{100 * each.measured / each.stated:.0f} %",
            f"{each.any_law:.3g}",
            str(each.num_canaries),
            "yes" if each.held else "NO",
        )
    console.print(Fitted(table))
    console.print(
        f"measured: less is ruled out, with confidence {100 * settings.confidence:g} % of all figures. Far "
        "below what is stated it says that the test was weak (give more --runs), not that privacy is better. "
        "any law: the same without the shape of the plan's losses.",
        highlight=False,
    )
    if output is not None:
        console.print(f"The figures and a picture are in {output}", soft_wrap=True, highlight=False)
    if not measurement.sums_revealed:
        console.print("No sum was revealed, so nothing was measured. The statement is NOT confirmed.")
    elif measurement.passed:
        console.print("Nothing above what is stated was measured.")
        console.print(_found(measurement), highlight=False)
    else:
        console.print("More was measured than is stated: the statement does NOT hold.")
