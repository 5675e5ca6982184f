"""What a run's command prints at its end: result, spent budgets as bars, and files to open."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from gdpfed.decimal_numbers import counted
from gdpfed.report.chance import AtChance, base_rate_on_card
from gdpfed.report.comparison import computed_settings
from gdpfed.report.evaluated import Result
from gdpfed.report.facts import Fact, FactLines
from gdpfed.report.finished_run import Settings, read_plan, read_settings
from gdpfed.report.mechanism_reports import MECHANISM_REPORTS
from gdpfed.runs.file_formats import (
    ACCURACY_PICTURE,
    CONFIG_FILE,
    MODEL_CARD_FILE,
    MODEL_FILE,
)
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from gdpfed.runs.run_end import RunEnd

BAR = 20
"""Characters of a bar that is full."""
MOST_BARS = 8
MOST_BESIDE = 500
"""Runs beside this one, among which the one without privacy is looked for."""
TO_OPEN = (
    (MODEL_CARD_FILE, "what was trained and what it promises whom, in plain words"),
    (ACCURACY_PICTURE, "the result over the rounds; budget.png has the budgets"),
    ("model/", "the model, for gdpfed predict"),
)
WITHOUT_PRIVACY = "fedavg"
PRIVATE_SECTIONS = ("method.", "privacy.", "secagg.")
"""Settings in which a run without privacy may differ and still be the same training."""


def show_ending(console: Console, directory: Path) -> None:
    """Print the results of a run, read from its files.

    Raises RunError: a file of another format.
    """
    records = read_rounds(directory)
    settings = read_settings(directory)
    if records and settings is not None:
        spent = _spent_bars(read_plan(directory), records[-1])
        console.print(FactLines([*_result_facts(directory, records, settings), *spent]), highlight=False)
    console.print(f"The run's files are in {directory}", soft_wrap=True)
    there = [Fact(f"  {name}", words) for name, words in TO_OPEN if (directory / name).exists()]
    if there:
        console.print(FactLines(there), highlight=False)
    if (found := AtChance.read(directory)) is not None:
        console.print(found.line, soft_wrap=True)


def _result_facts(directory: Path, records: list[RoundLogEntry], settings: Settings) -> Iterator[Fact]:
    done, planned = len(records), settings["run"]["num_rounds"]
    result = Result.of(directory, records[-1])
    comma = "," if result.note else ""
    yield Fact("result", f"{result}{comma} after {done} of {counted(planned, 'round')}")
    if early := RunEnd.read(directory).early:
        yield Fact("ended", early)
    if (rate := base_rate_on_card(directory)) is not None:
        yield Fact("without a model", rate)
    if settings["method"]["name"] == WITHOUT_PRIVACY:
        return
    beside = run_without_privacy(directory, settings)
    if beside is None:
        same = "with the same rounds and step says it"
        yield Fact("without privacy", f"not known: method={WITHOUT_PRIVACY} {same}")
    else:
        known = Result.of(beside, read_rounds(beside)[-1])
        yield Fact("without privacy", f"{known}, as in {beside.name}; no budget covers it")


def run_without_privacy(directory: Path, settings: Settings) -> Path | None:
    """Find a run in the same folder that trained the same model without privacy; None if there is none.

    It has the same data, model, training, rounds and seed; only what privacy is about may differ.
    """
    configs = sorted(directory.parent.glob(f"*/{CONFIG_FILE}"))[-MOST_BESIDE:]
    for config in configs:
        path = config.parent
        # A file is parsed only if its text names the method without privacy.
        try:
            text = config.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        other = read_settings(path) if f"name: {WITHOUT_PRIVACY}\n" in text else None
        if other is not None and (path / MODEL_FILE).is_file() and _trained(other) == _trained(settings):
            return path
    return None


def _trained(settings: Settings) -> Mapping[str, Any]:
    """Return the settings, seed included, that determine the result of training without privacy."""
    followed = computed_settings(settings).items()
    kept = {key: value for key, value in followed if not key.startswith(PRIVATE_SECTIONS)}
    return {**kept, "seed": settings["run"]["seed"]}


def _spent_bars(plan: Mapping[str, Any], record: RoundLogEntry) -> Iterator[Fact]:
    """Yield, for each group, a bar that shows how much of its budget is spent."""
    report = MECHANISM_REPORTS.get(plan["mechanism"])()
    groups = list(zip(plan["groups"], report.spent(record), strict=True))
    bounded = [(index, group, spent) for index, (group, spent) in enumerate(groups) if group["epsilon"]]
    for index, group, spent in bounded[:MOST_BARS]:
        if spent is not None:
            share = min(1.0, spent / group["epsilon"])
            full = round(BAR * share)
            bar = f"{'█' * full}{'░' * (BAR - full)}"
            words = report.spent_in_short(spent, group["epsilon"], group["clients"])
            yield Fact(f"spent, group {index}", f"{bar} {words}")
    if len(bounded) > MOST_BARS:
        yield Fact("spent, others", f"{len(bounded) - MOST_BARS} groups more are in the model card")
