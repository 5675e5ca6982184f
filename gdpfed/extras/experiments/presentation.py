"""The output files of an experiment: Markdown, CSV, pictures, and every cell's configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import relpath
from pathlib import Path
from typing import Any

import yaml

from gdpfed.errors import ExperimentError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import BENCHMARK, Experiment
from gdpfed.extras.experiments.runs import Outcome
from gdpfed.files import PUBLIC_MODE, save_whole
from gdpfed.report.console import Table
from gdpfed.runs.file_formats import CONFIG_FILE

TABLE_FILE = "table.md"
FIGURES_FILE = "figures.csv"
PICTURE_FILE = "picture.png"
TRAFFIC_FILE = "traffic.png"
CELLS_FILE = "cells.yaml"


@dataclass(frozen=True)
class Presentation:
    """The tables of an experiment, the same results as numbers, and its pictures.

    `tables`: for the terminal and Markdown. `figures`: one figure a row, for CSV. `draw`: writes the picture
    as PNG. `more`: writes more pictures, by the names of their files.
    """

    tables: Sequence[Table]
    figures: Table
    draw: Callable[[Path], None]
    more: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


class Footnotes:
    """Gives each reason for an empty table cell a footnote number; equal reasons share a number."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def mark(self, reason: str) -> str:
        """Return the text of a table cell without a result, with the number of its footnote."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return f"missing ({self._reasons.index(reason) + 1})"

    def text(self) -> str:
        """Return all footnotes, one line each."""
        return "\n".join(f"({number}) {reason}" for number, reason in enumerate(self._reasons, start=1))


def write_experiment(
    directory: Path,
    experiment: Experiment,
    presentation: Presentation,
    cells: Sequence[dict[str, Any]],
    *,
    changes: str,
    command: str,
) -> None:
    """Write an experiment's tables, pictures and configurations into a directory.

    Args:
        directory: where to.
        experiment: for its title and text.
        presentation: tables, figures and picture.
        cells: one entry a cell, from :func:`planned_entry` or :func:`trained_entry`.
        changes: what differs from the paper's setting; empty if nothing does.
        command: the command line that makes all this.

    Raises ExperimentError, RunError: the file system refuses.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, draw in {PICTURE_FILE: presentation.draw, **presentation.more}.items():
            draft = directory / f".{name}"
            draw(draft)
            draft.replace(directory / name)
        parts = [f"# {experiment.title}", *(text.strip() for text in experiment.text)]
        if changes:
            parts.append(changes_note(experiment, changes))
        parts += [table.to_markdown().strip() for table in presentation.tables]
        parts += [
            *(f"![{experiment.title}]({name})" for name in (PICTURE_FILE, *presentation.more)),
            f"Made with `{command}`; the configuration of every cell is in [{CELLS_FILE}]({CELLS_FILE}), the "
            f"figures to compute with are in [{FIGURES_FILE}]({FIGURES_FILE}).",
        ]
        texts = {
            FIGURES_FILE: presentation.figures.to_csv(),
            CELLS_FILE: yaml.safe_dump(list(cells), sort_keys=False, allow_unicode=True),
            TABLE_FILE: "\n\n".join(parts) + "\n",
        }
        for name, text in texts.items():
            save_whole(directory / name, text.encode(), mode=PUBLIC_MODE)
    except OSError as error:
        raise ExperimentError(
            f"{directory} cannot be written: {error.strerror}; name another --output"
        ) from None


def changes_note(experiment: Experiment, changes: str) -> str:
    """Return a warning that settings differ from the paper's or benchmark's, with the changes."""
    whose = "benchmark" if experiment.quantity == BENCHMARK else "paper"
    return (
        f"**Not the {whose}'s setting**, so its figures are not a yardstick for these. Changed in every cell:"
        f" {changes}."
    )


def planned_entry(cell: Cell) -> dict[str, Any]:
    """Return the data set, row, column and settings (key=value) of a planned table cell, as JSON."""
    entry = {
        "dataset": cell.dataset,
        "row": cell.row,
        "column": cell.column,
        "overrides": list(cell.overrides),
    }
    return {key: value for key, value in entry.items() if value}


def trained_entry(outcome: Outcome, directory: Path) -> dict[str, Any]:
    """Return what describes a trained table cell: data set, row, column, settings (key=value) and runs."""
    runs = [
        {"seed": run.seed, "config": relpath(run.path / CONFIG_FILE, directory), "finished": run.finished}
        for run in outcome.runs
        if run.path.is_dir()
    ]
    missing = {} if outcome.reason is None else {"missing": outcome.reason}
    return {**planned_entry(outcome.cell), "runs": runs, **missing}
