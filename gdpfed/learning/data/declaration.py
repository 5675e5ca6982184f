"""Reads and writes the YAML declaration of a table's columns; errors are one line with the fault."""

from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml

from gdpfed.errors import LearningError, not_known
from gdpfed.learning.data.columns import (
    AGE_ON,
    DAYS_SINCE,
    DROP,
    KEEP,
    PERSON_ROWS,
    Categorical,
    Columns,
    DatedAs,
    Named,
    Numeric,
    bare_name,
    whole,
)
from gdpfed.learning.data.file_form import DECIMALS, ENCODINGS, SEPARATORS
from gdpfed.learning.data.times_to_event import read_times
from gdpfed.learning.data.yaml_parts import Part, read_parts

COLUMNS_FILE = "columns.yaml"
PUBLISHED = "published:"
"""How a declaration is named that comes with the project, as in ``published:eicu``."""
ABOUT = ("purpose", "period")
PERSON_LIMITS = {
    "parties": "the most parties that one person has rows at",
    "rows": "the most rows of one person that a party trains on",
}
MARKS = "missing_marks"
ABSENT_PRESENT = ("0", "1")
"""The values of a column of a set of labels, where no others are declared."""


def read_columns(path: Path) -> Columns:
    """Read a declaration of columns from a YAML file, or a published one by name, as in ``published:eicu``.

    Raises LearningError: no such file or name, no YAML, or no declaration; one line that names what is wrong.
    """
    return columns_of(*read_declaration(path))


def read_declaration(path: Path) -> tuple[Any, str]:
    """Read the mappings, lists and texts of a declaration, and what errors call it, as `columns_of` has them.

    Raises LearningError: no such file or name, or no YAML.
    """
    if not str(path).startswith(PUBLISHED):
        return read_parts(path, "declare the columns").values, str(path)
    name = str(path).removeprefix(PUBLISHED)
    with as_file(files("conf") / "dataset" / "columns") as folder:
        known = sorted(each.stem for each in folder.glob("*.yaml"))
        if name not in known:
            words = f"the declaration {PUBLISHED}{name}"
            raise LearningError(not_known(words, [f"{PUBLISHED}{each}" for each in known]))
        return read_declaration(folder / f"{name}.yaml")


def columns_of(values: Any, place: str) -> Columns:
    """Make a declaration of columns from mappings, lists and texts, as they are read from YAML.

    `values`: by key, as :func:`read_columns` reads it. `place`: what errors call it.

    Raises LearningError: it is none.
    """
    _refuse_unfinished(values, place)
    found = Part(place, values, "").mapping(
        required=("label",),
        allowed=(
            *("numeric", "categorical", "party", "record_group", "test", "person", "missing"),
            *("missing_labels", "missing_parties", "incomplete_rows", "separator", "decimal", "encoding"),
            *("purpose", "period"),
        ),
    )
    columns = Columns(
        **_label(found["label"]),
        numeric=tuple(map(_numeric, found["numeric"].items())) if "numeric" in found else (),
        categorical=tuple(map(_categorical, found["categorical"].items())) if "categorical" in found else (),
        party=_parties(found.get("party")),
        record_group=_named(found.get("record_group")),
        test=_named(found.get("test")),
        missing=_marks(found.get("missing")),
        missing_labels=_word(found.get("missing_labels"), ("error", DROP)),
        missing_parties=_word(found.get("missing_parties"), ("error", DROP)).removeprefix("error"),
        incomplete_rows=_word(found.get("incomplete_rows"), (KEEP, DROP)),
        separator=_word(found.get("separator"), SEPARATORS),
        decimal=_word(found.get("decimal"), DECIMALS),
        encoding=_word(found.get("encoding"), ENCODINGS),
        purpose=found["purpose"].text() if "purpose" in found else "",
        period=found["period"].text() if "period" in found else "",
        **_person(found.get("person")),
    )
    if columns.missing_parties and columns.party is None:
        raise LearningError(f"{place}: missing_parties says what to do without a party: declare party, too")
    if columns.num_inputs == 0:
        raise LearningError(f"{place} declares no column under numeric or categorical: a model needs inputs")
    everything = columns.names()
    twice = [name for name in everything if everything.count(name) > 1]
    if twice:
        raise LearningError(f"{place} declares the column '{twice[0]}' twice: declare it once")
    return columns


def _refuse_unfinished(values: Any, place: str) -> None:
    """Raise LearningError, naming the columns, if a declaration still has placeholders LOW, HIGH or VALUE."""
    parts = values if isinstance(values, Mapping) else {}
    numeric, label = parts.get("numeric"), parts.get("label")
    categorical = parts.get("categorical")
    ranges = [*numeric.items()] if isinstance(numeric, Mapping) else []
    lists = [*categorical.items()] if isinstance(categorical, Mapping) else []
    if isinstance(label, Mapping):
        ranges, lists = [*ranges, ("label", label.get("range"))], [*lists, ("label", label)]
    without_ends = [str(name) for name, said in ranges if _entries(said, "range") & {"LOW", "HIGH"}]
    if without_ends:
        raise LearningError(
            f"{place}: LOW and HIGH of {', '.join(without_ends)} are to be replaced by numbers: write "
            "what is known, or ranges that are surely wide enough, as gdpfed columns --coarse does, and let "
            "gdpfed stats --fill find narrower ones by noised counts"
        )
    unnamed = [str(name) for name, said in lists if _entries(said, "classes") == {"VALUE"}]
    if unnamed:
        raise LearningError(
            f"{place}: VALUE of {', '.join(unnamed)} is to be replaced by the values that there may be, as "
            "in [female, male]: take them from how the data are recorded, not from the rows"
        )


def _entries(said: Any, key: str) -> set[str]:
    """Return the entries of a list as a set of texts; if `said` is a mapping, use its list under `key`."""
    entries = said.get(key) if isinstance(said, Mapping) else said
    return {*map(str, entries)} if isinstance(entries, list) else set()


def _label(reader: Part) -> dict[str, Any]:
    """Read the declaration of labels: classes, a range, a set of columns, or a time to an event."""
    nothing: dict[str, Any] = {"label": "", "classes": (), "class_names": (), "label_range": None}
    if isinstance(reader.values, Mapping) and "time" in reader.values:
        times = read_times(reader)
        return nothing | {"class_names": times.interval_names, "times": times}
    if isinstance(reader.values, Mapping) and "columns" in reader.values:
        columns = reader.mapping(required=("columns",), allowed=())["columns"]
        if isinstance(columns.values, Mapping):
            found = tuple(Named(name, each.values_once()) for name, each in columns.items())
        else:
            found = tuple(Named(each.text(), ABSENT_PRESENT) for each in columns.list())
        if len(found) < 2 or any(len(each.values) != 2 for each in found):
            raise columns.wrong(
                "two columns or more, as in [stroke, sepsis] of values 0 and 1, or each with its value for "
                "absent and that for present, as in {stroke: [no, yes], sepsis: [no, yes]}"
            )
        return nothing | {"class_names": tuple(each.name for each in found), "label_set": found}
    label = reader.mapping(required=("column",), allowed=("classes", "range"))
    if ("classes" in label) == ("range" in label):
        raise LearningError(f"{reader.place}: label must have classes, or a range where it is a number")
    if "range" in label:
        return nothing | {"label": label["column"].text(), "label_range": label["range"].range()}
    # By the name of each class, the values of the label that belong to it.
    classes = label["classes"]
    if isinstance(classes.values, Mapping):
        made = {name: each.values_once() for name, each in classes.items()}
    else:
        made = {value: (value,) for value in classes.values_once()}
    values = [value for each in made.values() for value in each]
    if len(made) < 2 or len(set(map(whole, values))) < len(values):
        raise classes.wrong("two classes or more, each of values of its own")
    return nothing | {
        "label": label["column"].text(),
        "classes": tuple(made.values()),
        "class_names": tuple(made),
    }


def _numeric(item: tuple[str, Part]) -> Numeric:
    name, reader = item
    if isinstance(reader.values, list):
        return Numeric(name, *reader.range())
    found = reader.mapping(
        required=("range",), allowed=("missing", AGE_ON, DAYS_SINCE, "format", MARKS), usual="[0, 100]"
    )
    missing = found["missing"].number() if "missing" in found else None
    low, high = found["range"].range()
    units = [key for key in (AGE_ON, DAYS_SINCE) if key in found]
    if len(units) > 1 or ("format" in found and not units):
        raise reader.wrong(
            f"a range, and for dates one of {AGE_ON} and {DAYS_SINCE}, with or without a format"
        )
    dated = None
    if units:
        try:
            day = date.fromisoformat(found[units[0]].text())
        except ValueError:
            raise found[units[0]].wrong("a day, as in 2024-12-31") from None
        dated = DatedAs(units[0], day, found["format"].date_form() if "format" in found else None)
    return Numeric(name, low, high, missing, dated, _marks(found.get(MARKS)))


def _categorical(item: tuple[str, Part]) -> Categorical:
    name, reader = item
    if isinstance(reader.values, list):
        return Categorical(name, reader.values_once())
    found = reader.mapping(required=("values",), allowed=("other", "missing", MARKS), usual="[a, b]")
    values = found["values"].values_once()
    stand_ins = {key: found[key].text() for key in ("other", "missing") if key in found}
    for key, value in stand_ins.items():
        if value not in values:
            raise found[key].wrong(f"one of {', '.join(values)}")
    return Categorical(name, values, **stand_ins, missing_marks=_marks(found.get(MARKS)))


def _person(reader: Part | None) -> dict[str, Any]:
    """Read the column that identifies persons, and the limits on each person's data owners and rows."""
    if reader is None or isinstance(reader.values, str):
        return {} if reader is None else {"person": reader.text()}
    found = reader.mapping(required=("column",), allowed=tuple(PERSON_LIMITS))
    limits = {}
    for key in found:
        if key != "column":
            number = found[key].number()
            if number < 1 or number % 1:
                raise found[key].wrong(f"a whole number from 1: {PERSON_LIMITS[key]}")
            limits[f"person_{key}"] = int(number)
    return {"person": found["column"].text(), **limits}


def _marks(reader: Part | None) -> tuple[str, ...]:
    return () if reader is None else tuple(each.text(empty=True) for each in reader.list())


def _named(reader: Part | None) -> Named | None:
    if reader is None:
        return None
    found = reader.mapping(required=("column", "values"), allowed=())
    return Named(found["column"].text(), found["values"].values_once())


def _parties(reader: Part | None) -> Named | None:
    """Read the column of data owners; raise LearningError if two names differ only by case or spaces."""
    column, first = _named(reader), dict[str, str]()
    if column is None or reader is None:
        return None
    for name in column.values:
        if (other := first.setdefault(bare_name(name), name)) != name:
            raise LearningError(
                f"{reader.place}: party has the values '{other}' and '{name}', which name one party: leave "
                "one out"
            )
    return column


def _word(reader: Part | None, words: Sequence[str]) -> str:
    """Read an entry of a declaration that must be one of `words`; a missing entry means the first word."""
    if reader is None:
        return words[0]
    if reader.values not in words:
        raise reader.wrong(f"one of {', '.join(map(repr, words))}")
    return str(reader.values)


def to_yaml(columns: Columns) -> str:
    """Write a declaration as YAML; :func:`read_columns` reads it back with the same hash."""
    label: dict[str, Any] = {"column": columns.label}
    if columns.label_set:
        label = {"columns": {each.name: list(each.values) for each in columns.label_set}}
    elif columns.times is not None:
        label = columns.times.to_values()
    elif columns.label_range is None:
        label["classes"] = dict(zip(columns.class_names, map(list, columns.classes), strict=True))
    else:
        label["range"] = list(columns.label_range)
    numeric = {}
    for column in columns.numeric:
        dated = column.dated
        days = {} if dated is None else _filled(**{dated.unit: str(dated.day)}, format=dated.form)
        marks = [*column.missing_marks] or None
        ends = [column.low, column.high]
        numeric[column.name] = _filled(range=ends, missing=column.missing, missing_marks=marks) | days
    written: dict[str, Any] = {
        "label": label,
        "numeric": numeric,
        "categorical": {
            each.name: _filled(
                values=list(each.values),
                other=each.other,
                missing=each.missing,
                missing_marks=[*each.missing_marks] or None,
            )
            for each in columns.categorical
        },
    }
    for key in ("party", "record_group", "test"):
        named: Named | None = getattr(columns, key)
        written[key] = named and {"column": named.name, "values": list(named.values)}
    of_rows = ("person", "missing", "missing_labels", "missing_parties", "incomplete_rows")
    for key in (*of_rows, "separator", "decimal", "encoding", *ABOUT):
        value = getattr(columns, key)
        written[key] = list(value) if isinstance(value, tuple) else value
    limits = {"parties": (columns.person_parties, 1), "rows": (columns.person_rows, PERSON_ROWS)}
    if said := {key: value for key, (value, usual) in limits.items() if value != usual}:
        written["person"] = {"column": columns.person, **said}
    present = {key: value for key, value in written.items() if value}
    return yaml.safe_dump(present, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _filled(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
