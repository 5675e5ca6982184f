"""Drafts the YAML declaration of a table: the kinds of its columns and, only if asked for, their ranges.

What a range is takes knowledge that is not in the table. Ranges and values that are computed from rows belong
to the patients in them: the highest age is one patient's, and no budget covers that it is published.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from gdpfed.decimal_numbers import decimal_number
from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import ALWAYS_MISSING, DAYS_SINCE, DatedAs, nearest_column
from gdpfed.learning.data.file_form import FileForm, own_form
from gdpfed.learning.data.number_cells import has_days
from gdpfed.learning.data.persons import PERSON
from gdpfed.learning.data.pipes import refuse_pipe
from gdpfed.learning.data.repeats import CODE, MOST_ROWS
from gdpfed.learning.data.table_file import TABLE_REMEDY, TableForm, open_table
from gdpfed.learning.data.text_cells import texts_of
from gdpfed.learning.data.written_dates import written_date

MOST_VALUES = 20
"""A column of more texts than these is none of categories."""
ENOUGH = 0.8
"""Of the values of a column, to tell its kind: the others are faults, which gdpfed check lists."""
MARKS = ("?", "-", ".", "n/a", "N/A", "null", "NULL")
ISO = ""
"""Stands for dates that need no declared form."""
DATE_FORMS = (
    *(ISO, "%d.%m.%Y"),
    *(
        f"{day}{time}"
        for time in ("", " %H:%M", " %H:%M:%S")
        for day in ("%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
    ),
)
"""Forms of dates: the one that most cells have, or else the first."""
ANY_DAY = date(2000, 1, 1)
EMPTY, MOSTLY_DIFFERENT, MANY = (
    "empty",
    "mostly different from row to row",
    f"with more than {MOST_VALUES} different values",
)
"""Why a column is not declared."""
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
    """A table as texts by column, each with how often it is there, read in a format that was guessed.

    Attributes:
        columns: without missing values.
        days: columns whose type in the file is one of dates, or of dates with times.
        dates: the form that the site says of dates.
        missing: texts that stand for a missing value.
    """

    columns: dict[str, Counter[str]]
    days: frozenset[str]
    decimal: str
    dates: str | None
    missing: tuple[str, ...]


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
        near = nearest_column(label, names)
        hint = f" (did you mean '{near}'?)" if near else ""
        raise LearningError(f"{path} has no column '{label}'{hint}; it has {', '.join(names)}")
    found = dict[str, dict[str, str]](numeric={}, categorical={})
    reasons = dict[str, list[str]]()
    for name in (each for each in names if each != label):
        kind, text = _declared(name, table, from_data=from_data)
        if kind in found:
            found[kind][name] = text.replace(OPEN, COARSE) if coarse else text
        else:
            reasons.setdefault(text, []).append(name)
    head = FROM_DATA if from_data else COARSE_TO_DO if coarse else TO_DO
    labels = table.columns.get(label or "", Counter())
    if len(labels) > MOST_VALUES and _kind(label or "", table) == "number":
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
    lines += _left_out(reasons, table)
    if table.missing and from_data:
        lines.append(f"missing: [{', '.join(map(_quoted, table.missing))}]")
    return "\n".join([*lines, ""])


def _declared(name: str, table: _Table, *, from_data: bool) -> tuple[str, str]:
    """Return a column's YAML section (numeric or categorical) and entry, or "" and why it has none."""
    kind, present = _kind(name, table), table.columns[name]
    if kind == "number":
        return "numeric", _range(present, table.decimal, from_data=from_data)
    if kind == "categories":
        return "categorical", _values(present, from_data=from_data)
    if kind in (EMPTY, MOSTLY_DIFFERENT, MANY):
        return "", kind
    form = "" if kind == ISO else f', format: "{kind}"'
    return "numeric", f"{{range: {OPEN}, age_on: DAY{form}}}"


def _left_out(reasons: Mapping[str, list[str]], table: _Table) -> Iterator[str]:
    """Yield a comment for each reason why columns are not declared, and the ones that may name persons."""
    for reason in (each for each in (MANY, EMPTY, MOSTLY_DIFFERENT) if each in reasons):
        persons = [name for name in reasons[reason] if _may_name_persons(name, table.columns[name])]
        said = " or ".join(f"person: {_in_comment(name)}" for name in persons)
        names = ", ".join(map(_in_comment, reasons[reason]))
        yield f"# Not declared, {reason}: {names}{said and f'. If it says whose row it is: {said}'}"


def _may_name_persons(name: str, present: Counter[str]) -> bool:
    """Whether a column may say which person a row is about, by its name or by its values, as P00012."""
    if not present or PERSON.fullmatch(name):
        return bool(present)
    return all(map(CODE.fullmatch, present)) and present.total() <= MOST_ROWS * len(present)


def check_is_table(path: Path) -> None:
    """Raise LearningError if a path does not lead to a file: a folder, a pipe, a device or nothing."""
    if path.is_dir():
        raise LearningError(f"{path} is a folder: name one table in it, whose columns the others have too")
    if not path.exists():
        raise LearningError(f"{path} cannot be read: there is no such file")
    refuse_pipe(path, str(path), TABLE_REMEDY)


def _read_table(path: Path) -> _Table:
    """Read all cells of a table as texts, and detect the table's decimal mark."""
    check_is_table(path)
    file = open_table(path, str(path), TableForm(own_form(path)))
    twice = [name for name in file.names if file.names.count(name) > 1]
    if twice:
        raise LearningError(f"{path} has the column '{twice[0]}' twice: rename one")
    found = {name: Counter[str]() for name in file.names}
    days = set[str]()
    for batch in file.batches(file.names, lambda line, values: None):
        for name, texts in found.items():
            texts.update(texts_of(batch.cells[name], name, str(path), exact=False).texts.tolist())
            days |= {name} if _holds_days(batch.cells[name].type) else set()
    if not any(found.values()):
        raise LearningError(f"{path} has no rows, so nothing can be said of its columns: give it some")
    marks = tuple(mark for mark in MARKS if any(mark in texts for texts in found.values()))
    for texts in found.values():
        for gone in (*marks, *ALWAYS_MISSING):
            del texts[gone]
    commas = [texts for texts in found.values() if any("," in text for text in texts)]
    decimal = "," if any(_are_numbers(texts, ",") for texts in commas) else "."
    own: FileForm = file.own
    return _Table(found, frozenset(days), own.decimal or decimal, own.dates, marks)


def _holds_days(kind: Any) -> bool:
    """Whether an Arrow type, or the type of the values of a dictionary, is one of dates."""
    return has_days(getattr(kind, "value_type", kind))


def _kind(name: str, table: _Table) -> str:
    """Return the kind of a column: ``number``, a form of dates, ``categories``, or why it has none."""
    present = table.columns[name]
    distinct, count = len(present), present.total()
    if not distinct:
        return EMPTY
    form = ISO if name in table.days else _form_of_dates(present, table.dates)
    if form is not None:
        return form
    numbered = distinct > MOST_VALUES and all(re.fullmatch("[0-9]+", each) for each in present)
    names_rows = numbered and (distinct == count or bool(PERSON.fullmatch(name)))
    if _are_numbers(present, table.decimal) and not names_rows:
        return "number"
    if distinct <= MOST_VALUES and distinct < count:
        return "categories"
    return MOSTLY_DIFFERENT if 2 * distinct > count else MANY


def _form_of_dates(present: Counter[str], own: str | None) -> str | None:
    """Return the form of a column's dates: ISO if none need be declared, None if most cells are not dates.

    A cell is a date if the reader of tables takes it for one. `own`: the form that the site says.
    """

    def has(form: str) -> Callable[[str], bool]:
        return lambda text: _read_as(text, form, own) in ("", "ISO 8601")

    counts = {form: _count_of(present, has(form)) for form in DATE_FORMS}
    best = max(DATE_FORMS, key=counts.__getitem__)
    if counts[best]:
        return best
    return ISO if _count_of(present, lambda text: _read_as(text, ISO, own) is not None) else None


def _count_of(present: Counter[str], is_one: Callable[[str], bool]) -> int:
    """Return how many cells are of a kind; 0 as soon as they cannot be enough, to save time."""
    count = total = present.total()
    for text, times in present.items():
        if not is_one(text):
            count -= times
            if count < ENOUGH * total:
                return 0
    return count


def _read_as(text: str, form: str, own: str | None) -> str | None:
    """Return the notation in which a date is read: "" for a declared form, None if the text is not a date."""
    try:
        return written_date(text, DatedAs(DAYS_SINCE, ANY_DAY, form or None), own)[1]
    except (ValueError, OverflowError):
        return None


def _are_numbers(present: Counter[str], decimal: str) -> bool:
    numbers = sum(count for text, count in present.items() if _is_number(text, decimal))
    return numbers >= ENOUGH * present.total()


def _is_number(text: str, decimal: str) -> bool:
    try:
        decimal_number(text.replace(decimal, "."))
    except ValueError:
        return False
    return True


def _range(present: Counter[str], decimal: str, *, from_data: bool) -> str:
    if not from_data:
        return OPEN
    numbers = [float(text.replace(decimal, ".")) for text in present if _is_number(text, decimal)]
    return f"[{min(numbers):g}, {max(numbers):g}]"


def _values(present: Counter[str], *, from_data: bool) -> str:
    found = sorted(present) if from_data else ["VALUE", "VALUE"]
    return f"[{', '.join(map(_quoted, found))}]"


def _in_comment(name: str) -> str:
    """Write a column's name in YAML on one line, whatever it holds."""
    return " ".join(_quoted(name).split())


def _quoted(text: str) -> str:
    """Write a text in YAML, with quotes if YAML would read it as something else."""
    written: str = yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10**6)
    return written.strip()[1:-1]
