"""Drafts the YAML declaration of a table: the kinds of its columns and, only if asked for, their ranges.

What a range is takes knowledge that is not in the table. Ranges and values that are computed from rows belong
to the patients in them: the highest age is one patient's, and no budget covers that it is published.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml

from gdpfed.decimal_numbers import decimal_number, has_other_digits
from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import ALWAYS_MISSING
from gdpfed.learning.data.file_form import own_form
from gdpfed.learning.data.table_file import TableForm, open_table
from gdpfed.learning.data.text_cells import texts_of

MOST_VALUES = 20
"""A column of more texts than these is none of categories."""
ENOUGH = 0.8
"""Of the values of a column, to tell its kind: the others are faults, which gdpfed check lists."""
MARKS = ("?", "-", ".", "n/a", "N/A", "null", "NULL")
DATE_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
TO_DO = """\
# A first declaration of {name}, made by gdpfed columns. Complete it:
# LOW, HIGH, VALUE and DAY are to be replaced, and nothing is trained before they are. Take ranges and values
# from medicine or a published study, not from the rows; one declaration is for all parties.
# Where a text stands for a missing value, add it, as in missing: ['?'].
"""
OPEN, COARSE = "[LOW, HIGH]", "[-1000000, 1000000]"
COARSE_TO_DO = """\
# A first declaration of {name}, made by gdpfed columns --coarse. VALUE and DAY are to be replaced.
# Its ranges are wide and come from no row: gdpfed stats finds narrower ones by noised counts.
"""
FROM_DATA = """\
# A first declaration of {name}, made by gdpfed columns --from-data.
# Its ranges and values are those of the rows: each end of a range is the figure of a patient, and no privacy
# budget covers that this file, which is public, tells it. Replace them by what is known without the rows.
"""


@dataclass(frozen=True)
class _Table:
    """A table as texts by column, read in a format that was guessed; a missing value is an empty text."""

    columns: dict[str, list[str]]
    decimal: str = "."
    missing: tuple[str, ...] = ()


def first_columns(path: Path, label: str | None, *, from_data: bool, coarse: bool = False) -> str:
    """Draft the declaration of a table's columns, as YAML text.

    `label`: the name of the column that is to be predicted; None leaves it open. `from_data`: whether ranges
    and values are those of the rows, which is not private. `coarse`: whether ranges that are open are wide
    ones, of a million to both sides.

    Raises LearningError: no such file, one that is not a table, one without names, or without the label.
    """
    table = _read_table(path)
    names = [*table.columns]
    # Names such as 0, 1, 2 and so on, or 1, 2, 3 and so on, are no row.
    counted = any(names == [str(first + place) for place in range(len(names))] for first in (0, 1))
    if all(_is_number(name, table.decimal) for name in names) and not counted:
        raise LearningError(
            f"the first line of {path} has numbers in place of names: write one above it with the names of "
            "the columns"
        )
    if label is not None and label not in table.columns:
        raise LearningError(f"{path} has no column '{label}'; it has {', '.join(table.columns)}")
    found, others = dict[str, dict[str, str]](numeric={}, categorical={}), list[str]()
    for name, texts in table.columns.items():
        kind, text = _declared([each for each in texts if each], table.decimal, from_data=from_data)
        if name != label:
            found.get(kind, {})[name] = text.replace(OPEN, COARSE) if coarse else text
            others += [name] * (kind not in found)
    head = FROM_DATA if from_data else COARSE_TO_DO if coarse else TO_DO
    labels = [text for text in table.columns.get(label or "", ()) if text]
    if len(set(labels)) > MOST_VALUES and _kind(labels, table.decimal) == "number":
        classes = f"range: {_range(labels, table.decimal, from_data=from_data)}"
    else:
        classes = f"classes: {_values(labels, from_data=from_data)}"
    classes = classes.replace(OPEN, COARSE) if coarse else classes
    lines = [head.format(name=path.name).rstrip()]
    lines.append(f"label: {{column: {_quoted(label or 'LABEL')}, {classes}}}")
    for key, columns in found.items():
        lines += [f"{key}:"] * bool(columns) + [
            f"  {_quoted(name)}: {text}" for name, text in columns.items()
        ]
    if others:
        lines.append(f"# Not declared, as each row has a text or a number of its own: {', '.join(others)}")
    if table.missing and from_data:
        lines.append(f"missing: [{', '.join(map(_quoted, table.missing))}]")
    return "\n".join([*lines, ""])


def _declared(present: Sequence[str], decimal: str, *, from_data: bool) -> tuple[str, str]:
    """Return a column's YAML section (numeric or categorical) and entry; both are empty for free text."""
    kind = _kind(present, decimal)
    if kind == "number":
        return "numeric", _range(present, decimal, from_data=from_data)
    if kind == "categories":
        return "categorical", _values(present, from_data=from_data)
    form = "" if kind == DATE_FORMS[0] else f', format: "{kind}"'
    return ("", "") if kind == "text" else ("numeric", f"{{range: {OPEN}, age_on: DAY{form}}}")


def _read_table(path: Path) -> _Table:
    """Read all cells of a table as texts, and detect the table's decimal mark."""
    if path.is_dir():
        raise LearningError(f"{path} is a folder: name one table in it, whose columns the others have too")
    if not path.is_file():
        raise LearningError(f"{path} cannot be read: there is no such file")
    file = open_table(path, str(path), TableForm(own_form(path)))
    twice = [name for name in file.names if file.names.count(name) > 1]
    if twice:
        raise LearningError(f"{path} has the column '{twice[0]}' twice: rename one")
    found: dict[str, list[str]] = {name: [] for name in file.names}
    for batch in file.batches(file.names, lambda line, values: None):
        for name, texts in found.items():
            texts += texts_of(batch.cells[name], name, str(path), exact=False).texts.tolist()
    if not any(found.values()):
        raise LearningError(f"{path} has no rows, so nothing can be said of its columns: give it some")
    marks = tuple(mark for mark in MARKS if any(mark in texts for texts in found.values()))
    gone = {*marks, *ALWAYS_MISSING}
    kept = {name: ["" if text in gone else text for text in texts] for name, texts in found.items()}
    commas = [
        [text for text in texts if text] for texts in kept.values() if any("," in text for text in texts)
    ]
    decimal = "," if any(_kind(texts, ",") == "number" for texts in commas) else "."
    return _Table(kept, file.own.decimal or decimal, marks)


def _kind(present: Sequence[str], decimal: str) -> str:
    """Return the kind of a column: ``number``, a form of dates, ``categories``, or free ``text``."""
    distinct = len(set(present))
    if not distinct:
        return "text"
    enough = ENOUGH * len(present)
    form = next(
        (each for each in DATE_FORMS if sum(_is_date(text, each) for text in present) >= enough), None
    )
    if form is not None:
        return form
    if sum(_is_number(text, decimal) for text in present) >= enough:
        numbered = distinct == len(present) > MOST_VALUES and all(
            re.fullmatch("[0-9]+", each) for each in present
        )
        return "text" if numbered else "number"
    return "categories" if distinct <= MOST_VALUES and distinct < len(present) else "text"


def _is_number(text: str, decimal: str) -> bool:
    try:
        decimal_number(text.replace(decimal, "."))
    except ValueError:
        return False
    return True


def _is_date(text: str, form: str) -> bool:
    try:
        return not has_other_digits(text) and bool(datetime.strptime(text, form))
    except ValueError:
        return False


def _range(present: Sequence[str], decimal: str, *, from_data: bool) -> str:
    if not from_data:
        return OPEN
    numbers = [float(text.replace(decimal, ".")) for text in present if _is_number(text, decimal)]
    return f"[{min(numbers):g}, {max(numbers):g}]"


def _values(present: Sequence[str], *, from_data: bool) -> str:
    found = sorted(set(present)) if from_data else ["VALUE", "VALUE"]
    return f"[{', '.join(map(_quoted, found))}]"


def _quoted(text: str) -> str:
    """Write a text in YAML, with quotes if YAML would read it as something else."""
    written: str = yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10**6)
    return written.strip()[1:-1]
