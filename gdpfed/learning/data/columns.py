"""The declaration of a table: what its columns are, which ranges and values they have.

It is public and says everything that a table is read by. So nothing is computed from the rows, which would
have to be charged, and a record becomes the same numbers whatever the other records are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from gdpfed.errors import LearningError

COLUMNS_FILE = "columns.yaml"
SEPARATORS = (",", ";", "\t", "|")
KEEP, DROP = "keep", "drop"


@dataclass(frozen=True)
class Numeric:
    """A column of numbers; ``low`` becomes -1 and ``high`` 1, and what lies beyond becomes the nearer end.

    Attributes:
        missing: what stands for a missing number, in the column's unit; None for the middle of the range.
    """

    name: str
    low: float
    high: float
    missing: float | None = None


@dataclass(frozen=True)
class Categorical:
    """A column of values; every value is an input that is 1 where a record has it and else 0.

    Attributes:
        other: the value that stands for one that is not declared; None where there may be none.
        missing: the value that stands for a missing one; None where all inputs are 0 then.
    """

    name: str
    values: tuple[str, ...]
    other: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Named:
    """A column that says where a record belongs, with its values in the order of their numbers."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """The declared columns of a table.

    Attributes:
        label: the column with the labels.
        classes: the values that make each class, in the order of class numbers; empty for a number.
        class_names: what each class is called.
        label_range: what -1 and 1 stand for where a label is a number; None for classes.
        numeric, categorical: inputs of the model, in this order.
        party: whose a record is.
        record_group: which group of records it belongs to, whose budget is its own.
        test: the column that says what is for testing, with the values that do.
        missing: texts that stand for a missing value, besides an empty one.
        missing_labels: ``error``, or ``drop`` for leaving out records without a label.
        incomplete_rows: ``keep``, or ``drop`` for leaving out records with any value missing.
        separator: of a CSV file.
    """

    label: str
    classes: tuple[tuple[str, ...], ...]
    class_names: tuple[str, ...]
    label_range: tuple[float, float] | None
    numeric: tuple[Numeric, ...]
    categorical: tuple[Categorical, ...]
    party: Named | None = None
    record_group: Named | None = None
    test: Named | None = None
    missing: tuple[str, ...] = ()
    missing_labels: str = "error"
    incomplete_rows: str = KEEP
    separator: str = ","

    @property
    def num_inputs(self) -> int:
        """How many numbers a record becomes."""
        return len(self.numeric) + sum(len(column.values) for column in self.categorical)

    @property
    def inputs(self) -> list[str]:
        """The columns that the model sees, by name."""
        return [*(each.name for each in self.numeric), *(each.name for each in self.categorical)]

    @property
    def num_classes(self) -> int:
        """How many classes there are; 1 where a label is a number."""
        return len(self.classes) or 1

    @property
    def digest(self) -> str:
        """SHA-256 of everything declared, in hexadecimal: tables of one digest are read alike."""
        return sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()

    def names(self, *, for_training: bool = False) -> list[str]:
        """The columns that a table must have; without those that share it out where a party reads its own."""
        sharing = [self.test] if for_training else [self.party, self.test]
        placed = [column.name for column in (*sharing, self.record_group) if column is not None]
        return [self.label, *self.inputs, *placed]


def plain(value: object) -> str:
    """A value as declarations and tables are compared: without space around it, and 1 for 1.0."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return f"{number:.15g}" if isfinite(number) else text


def read_columns(path: Path) -> Columns:
    """Read a declaration, a file in YAML.

    Raises:
        LearningError: no such file, no YAML, or no declaration; one line that names what is wrong.
    """
    try:
        # Every scalar stays a text: YAML takes a value "no" for false.
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - as safe
    except OSError as error:
        raise LearningError(
            f"{path} cannot be read ({error.strerror}): it must declare the columns"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LearningError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    return columns_of(values, str(path))


def columns_of(values: Any, place: str) -> Columns:
    """The declaration that plain data makes.

    Args:
        values: by key, as :func:`read_columns` reads it.
        place: what errors call it.

    Raises:
        LearningError: it is none.
    """
    found = _Reader(place, values, "").mapping(
        required=("label",),
        allowed=(
            *("numeric", "categorical", "party", "record_group", "test", "missing"),
            *("missing_labels", "incomplete_rows", "separator"),
        ),
    )
    label = found["label"].mapping(required=("column",), allowed=("classes", "range"))
    if ("classes" in label) == ("range" in label):
        raise LearningError(f"{place}: label must have classes, or a range where it is a number")
    names, classes = _classes(label["classes"]) if "classes" in label else ((), ())
    columns = Columns(
        label=label["column"].text(),
        classes=classes,
        class_names=names,
        label_range=label["range"].range() if "range" in label else None,
        numeric=tuple(map(_numeric, found["numeric"].items())) if "numeric" in found else (),
        categorical=tuple(map(_categorical, found["categorical"].items())) if "categorical" in found else (),
        party=_named(found.get("party")),
        record_group=_named(found.get("record_group")),
        test=_named(found.get("test")),
        missing=tuple(each.text(empty=True) for each in found["missing"].list())
        if "missing" in found
        else (),
        missing_labels=_word(found.get("missing_labels"), ("error", DROP)),
        incomplete_rows=_word(found.get("incomplete_rows"), (KEEP, DROP)),
        separator=_word(found.get("separator"), SEPARATORS),
    )
    if columns.num_inputs == 0:
        raise LearningError(f"{place} declares no column under numeric or categorical: a model needs inputs")
    everything = columns.names()
    twice = [name for name in everything if everything.count(name) > 1]
    if twice:
        raise LearningError(f"{place} declares the column '{twice[0]}' twice: declare it once")
    return columns


@dataclass(frozen=True)
class _Reader:
    """A part of a declaration, with its place for an error."""

    place: str
    values: Any
    key: str

    def wrong(self, wanted: str) -> LearningError:
        shown = f"'{self.values}'" if isinstance(self.values, str) else repr(self.values)
        return LearningError(f"{self.place}: {self.key or 'the file'} is {shown[:80]}; it must be {wanted}")

    def mapping(self, *, required: Sequence[str], allowed: Sequence[str]) -> dict[str, "_Reader"]:
        known = (*required, *allowed)
        if not isinstance(self.values, Mapping):
            raise self.wrong(f"keys with values: {', '.join(known)}")
        for key in self.values:
            if key not in known:
                raise LearningError(
                    f"{self.place}: there is no key '{_joined(self.key, key)}'; choose of {', '.join(known)}"
                )
        for key in required:
            if key not in self.values:
                raise LearningError(f"{self.place} lacks the key '{_joined(self.key, key)}'")
        return {key: _Reader(self.place, value, _joined(self.key, key)) for key, value in self.values.items()}

    def items(self) -> Iterator[tuple[str, "_Reader"]]:
        if not isinstance(self.values, Mapping) or not self.values:
            raise self.wrong("columns by name")
        for key, value in self.values.items():
            yield str(key), _Reader(self.place, value, _joined(self.key, str(key)))

    def list(self) -> list["_Reader"]:
        if not isinstance(self.values, list) or not self.values:
            raise self.wrong("a list, as in [a, b]")
        return [_Reader(self.place, value, self.key) for value in self.values]

    def text(self, *, empty: bool = False) -> str:
        if not isinstance(self.values, str) or not (self.values.strip() or empty):
            raise self.wrong("a text")
        return self.values.strip()

    def number(self) -> float:
        try:
            number = float(self.text())
        except ValueError:
            raise self.wrong("a number") from None
        if not isfinite(number):
            raise self.wrong("a finite number")
        return number

    def range(self) -> tuple[float, float]:
        bounds = [each.number() for each in self.list()]
        if len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise self.wrong("two numbers, the lower first, as in [0, 100]")
        return bounds[0], bounds[1]

    def values_once(self) -> tuple[str, ...]:
        texts = tuple(plain(each.text()) for each in self.list())
        if len(set(texts)) < len(texts):
            raise self.wrong("different values")
        return texts


def _joined(key: str, part: str) -> str:
    return f"{key}.{part}" if key else part


def _classes(reader: _Reader) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Names of the classes, and the values that make each."""
    if isinstance(reader.values, Mapping):
        made = {name: each.values_once() for name, each in reader.items()}
    else:
        made = {value: (value,) for value in reader.values_once()}
    values = [value for each in made.values() for value in each]
    if len(made) < 2 or len(set(values)) < len(values):
        raise reader.wrong("two classes or more, each of values of its own")
    return tuple(made), tuple(made.values())


def _numeric(item: tuple[str, _Reader]) -> Numeric:
    name, reader = item
    if isinstance(reader.values, list):
        return Numeric(name, *reader.range())
    found = reader.mapping(required=("range",), allowed=("missing",))
    return Numeric(name, *found["range"].range(), found["missing"].number() if "missing" in found else None)


def _categorical(item: tuple[str, _Reader]) -> Categorical:
    name, reader = item
    if isinstance(reader.values, list):
        return Categorical(name, reader.values_once())
    found = reader.mapping(required=("values",), allowed=("other", "missing"))
    values = found["values"].values_once()
    stand_ins = {key: plain(found[key].text()) for key in ("other", "missing") if key in found}
    for key, value in stand_ins.items():
        if value not in values:
            raise found[key].wrong(f"one of {', '.join(values)}")
    return Categorical(name, values, **stand_ins)


def _marks(reader: _Reader | None) -> tuple[str, ...]:
    return () if reader is None else tuple(each.text(empty=True) for each in reader.list())


def _named(reader: _Reader | None) -> Named | None:
    if reader is None:
        return None
    found = reader.mapping(required=("column", "values"), allowed=())
    return Named(found["column"].text(), found["values"].values_once())


def _word(reader: _Reader | None, words: Sequence[str]) -> str:
    """One of these words; the first where nothing is said."""
    if reader is None:
        return words[0]
    if reader.values not in words:
        raise reader.wrong(f"one of {', '.join(map(repr, words))}")
    return str(reader.values)
