"""The YAML declaration of a table: its columns, their ranges and values, and how dates become numbers.

It is public and says everything that a table is read by. So nothing is computed from the rows, which would
have to be charged, and a record becomes the same numbers whatever the other records are.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from difflib import get_close_matches
from hashlib import sha256
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gdpfed.errors import either
from gdpfed.learning.data.times_to_event import TimesToEvent

AGE_ON, DAYS_SINCE = "age_on", "days_since"
DAYS_A_YEAR = 365.25
Days = TypeVar("Days", float, npt.NDArray[np.float64])


@dataclass(frozen=True)
class DatedAs:
    """How a column's dates become numbers: as ages on a declared day, or as days since that day.

    Attributes:
        unit: ``age_on``, years from the date to ``day``, or ``days_since``, days from ``day`` to the date.
        day: declared, so that the number of a record depends on no other record.
        form: of a date, as :meth:`datetime.datetime.strptime` reads it; None for ISO 8601.
    """

    unit: str
    day: date
    form: str | None = None

    def of_days(self, days: Days) -> Days:
        """Convert days after the declared day to the declared unit: the same days, or the age on that day."""
        return -days / DAYS_A_YEAR if self.unit == AGE_ON else days


ALWAYS_MISSING = ("", "NaN", "nan", "NA")
"""Texts that stand for a missing value in any column that does not declare them as values of its own."""
KEEP, DROP = "keep", "drop"
PERSON_ROWS = 64
"""How many rows of one person are trained on unless a declaration says another number."""


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, scaled from its declared range to [-1, 1]; values outside are clipped.

    `missing`: what stands for a missing number, in the column's unit; None for the middle of the range.
    `dated`: how its dates become numbers; None where it holds numbers. `missing_marks`: texts that stand for
    a missing value in this column.
    """

    name: str
    low: float
    high: float
    missing: float | None = None
    dated: DatedAs | None = None
    missing_marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Categorical:
    """A column of named values, one-hot encoded: one input for each value, 1 if a record has it.

    `other`: the value that stands for one that is not declared; None where there may be none. `missing`: the
    value that stands for a missing one; None where all inputs are 0 then. `missing_marks`: texts that stand
    for a missing value in this column.
    """

    name: str
    values: tuple[str, ...]
    other: str | None = None
    missing: str | None = None
    missing_marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Named:
    """A column with a declared list of values, such as the column of each record's data owner (party)."""

    name: str
    values: tuple[str, ...]


def without_tests(test: Named) -> str:
    """Return an error text: no row of the table has a value that marks it as test data."""
    return f"no row has {either(map(repr, test.values))} in the column '{test.name}', which are for testing"


@dataclass(frozen=True)
class Columns:
    """The declared columns of a table.

    Attributes:
        label: the column with the labels; empty where a label is of several columns.
        classes: the values that make each class, in the order of class numbers; empty of other labels.
        class_names: what each class is called, or each label of a set; of times the ends of the intervals.
        label_range: what -1 and 1 stand for where a label is a number; None of other labels.
        numeric, categorical: inputs of the model, in this order.
        party: whose a record is.
        record_group: which group of records it belongs to, whose budget is its own.
        test: the column that says what is for testing, with the values that do.
        person: the column that says which person a row is about; None where every row is one's own.
        person_parties: at how many parties one person may have rows at most; nobody links them.
        person_rows: how many rows of one person a party trains on at most, the first ones of its table.
        label_set: the columns of a label that is a set, each with its value for 0 and that for 1.
        times: the two columns of a label that is a time to an event.
        missing: texts that stand for a missing value in every column that does not have them as values,
            besides :data:`ALWAYS_MISSING`.
        missing_labels: ``error``, or ``drop`` for leaving out records without a label.
        incomplete_rows: ``keep``, or ``drop`` for leaving out records with any value missing.
        missing_parties: ``drop`` for leaving out records of a shared table without a party; else "".
        separator, decimal, encoding: of a CSV file.
        purpose: what the model is for, in a sentence; empty where nothing is said.
        period: when the records are from.
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
    decimal: str = "."
    encoding: str = "utf-8"
    purpose: str = ""
    period: str = ""
    person: str | None = None
    person_parties: int = 1
    person_rows: int = PERSON_ROWS
    label_set: tuple[Named, ...] = ()
    missing_parties: str = ""
    times: TimesToEvent | None = None

    @property
    def label_kind(self) -> str:
        """The name of the kind of labels: classes, numbers, label_sets or times_to_event."""
        if self.times is not None:
            return "times_to_event"
        return "label_sets" if self.label_set else "classes" if self.classes else "numbers"

    @property
    def label_names(self) -> list[str]:
        """The names of the label columns."""
        if self.times is not None:
            return [self.times.time, self.times.event]
        return [each.name for each in self.label_set] or [self.label]

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one record's label."""
        return (2,) if self.times is not None else (len(self.label_set),) if self.label_set else ()

    @property
    def num_inputs(self) -> int:
        """The number of inputs of one record."""
        return len(self.numeric) + sum(len(column.values) for column in self.categorical)

    @property
    def inputs(self) -> list[str]:
        """The names of the columns that the model sees."""
        return [*(each.name for each in self.numeric), *(each.name for each in self.categorical)]

    @property
    def input_names(self) -> list[str]:
        """The name of each input of a record: a column, or ``column=value``."""
        values = [f"{column.name}={value}" for column in self.categorical for value in column.values]
        return [*(each.name for each in self.numeric), *values]

    def number(self, name: str) -> Numeric | None:
        """Return the declaration of the numeric input or label with this name; None if there is none."""
        if name == self.label and self.label_range is not None:
            return Numeric(name, *self.label_range)
        if self.times is not None and name == self.times.time:
            return Numeric(name, 0.0, self.times.horizon)
        return next((each for each in self.numeric if each.name == name), None)

    def values(self, name: str) -> tuple[str, ...]:
        """Return the declared values of a column; empty for numbers and undeclared columns."""
        if name == self.label:
            return tuple(value for values in self.classes for value in values)
        if self.times is not None and name == self.times.event:
            return (*self.times.censored, *self.times.happened)
        named = (*self.label_set, *self.categorical, self.party, self.record_group, self.test)
        return next((each.values for each in named if each is not None and each.name == name), ())

    def marks(self, name: str) -> tuple[str, ...]:
        """Return the texts that, by the declaration, mean a missing value in this column only."""
        inputs: tuple[Numeric | Categorical, ...] = (*self.numeric, *self.categorical)
        return next((each.missing_marks for each in inputs if each.name == name), ())

    @property
    def num_classes(self) -> int:
        """The number of classes, of labels in a set, or of time intervals; 1 for numeric labels."""
        return len(self.classes) or len(self.label_set) or (len(self.times.edges) if self.times else 1)

    @property
    def digest(self) -> str:
        """SHA-256 of a table's declaration, in hexadecimal; equal hashes mean that tables are read alike."""
        # Without what is new where it says nothing, so that models of earlier versions are still read.
        usual = ("person_rows", PERSON_ROWS)
        declared = asdict(
            self,
            dict_factory=lambda fields: {
                key: value for key, value in fields if (value or key not in NEW) and (key, value) != usual
            },
        )
        return sha256(repr(sorted(declared.items())).encode()).hexdigest()

    def names(self, *, for_training: bool = False) -> list[str]:
        """Return the names of all declared columns; `for_training` leaves out the column of data owners."""
        sharing = [self.test] if for_training else [self.party, self.test]
        placed = [column.name for column in (*sharing, self.record_group) if column is not None]
        return [*self.label_names, *self.inputs, *placed, *([] if self.person is None else [self.person])]


NEW = ("label_set", "missing_marks", "missing_parties", "times")
"""Fields that a declaration has had from the start only where they say something."""


def whole(text: str) -> str:
    """Write a whole number without zeros after its point (7.0 becomes 7); return any other text unchanged."""
    return text.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0+", text) else text


COPY = re.compile(r"( ?\(\d+\)| ?- ?(copy|kopie|copie|copia)|[ _](copy|kopie|copie|copia))+$")
"""What file managers add to the name of a copy."""


def bare_name(name: str) -> str:
    """Normalise a data owner's name (case, digits, spaces, endings such as "- copy"), to find equal names."""
    plain = unicodedata.normalize("NFKC", name).casefold().strip()
    digits = "".join(str(unicodedata.decimal(each)) if each.isdecimal() else each for each in plain)
    return COPY.sub("", digits.removeprefix("copy of ")).strip()


def nearest_column(name: str, others: Iterable[str]) -> str | None:
    """Return the column whose name differs by case or spaces alone, or else the most similar one, if any."""
    names = list(others)
    folded = {each.strip().casefold(): each for each in names}
    return folded.get(name.strip().casefold()) or next(iter(get_close_matches(name, names, n=1)), None)
