"""What the cells of a table mean: each column as its declaration says, numbers and dates or texts."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpfed.decimal_numbers import NUMBER
from gdpfed.errors import LearningError
from gdpfed.late_import import packages_needed
from gdpfed.learning.data.columns import ALWAYS_MISSING, Columns, whole
from gdpfed.learning.data.number_cells import NumberCells, date_number, numbers_of
from gdpfed.learning.data.text_cells import TextCells, texts_of, without

if TYPE_CHECKING:
    import pyarrow as pa

Cells = NumberCells | TextCells
Table = dict[str, Cells]


def table_of(cells: Mapping[str, "pa.Array"], columns: Columns, place: str, *, written: bool) -> Table:
    """Columns as they are declared.

    `cells`: of Arrow, by name. `written`: whether they are texts with the declared decimal mark, and no
    values of a program. Columns that are not declared are texts.

    Raises LearningError: values of a type that is neither a text, a number nor a date, or names as numbers in
    which some are one.
    """
    table: Table = {}
    for name, values in cells.items():
        number = columns.number(name)
        if number is None:
            marks = _text_marks(columns, name)
            table[name] = without(texts_of(values, name, place), marks)
        else:
            table[name] = numbers_of(values, number, columns, place, written=written)
    return table


def arrow_table(data: Any, place: str) -> "pa.Table":
    """A table of Arrow, of one of pandas', polars' or Arrow's, or of columns by name; `place`: for errors.

    Raises LearningError: no table, or a column that is there twice; InputError: a package that is missing.
    """
    with packages_needed():
        import pyarrow as pa

        try:
            # The index of a data frame is no column of it.
            table = pa.table(data.reset_index(drop=True) if hasattr(data, "reset_index") else data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise LearningError(f"{place} are no table: {' '.join(str(error).split())}") from None
    found = table.column_names
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise LearningError(f"{place} have the column '{twice[0]}' twice")
    return table


def _text_marks(columns: Columns, name: str) -> frozenset[str]:
    """Texts that mean that a value of a column is missing, but for those that it declares as values."""
    own = {*columns.values(name), *map(whole, columns.values(name))}
    general = {
        mark for mark in (*columns.missing, *ALWAYS_MISSING) if mark not in own and whole(mark) not in own
    }
    declared = name in columns.names() and name != columns.person
    return frozenset({*(general if declared else {""}), *columns.marks(name)})


def row_test(columns: Columns) -> Callable[[Sequence[str]], Callable[[list[str]], bool]]:
    """From the names of a table's columns to a function that says whether fields read as a row of it.

    They do where half or more of the declared columns hold what is declared, at least one of them a value.
    """

    def of(names: Sequence[str]) -> Callable[[list[str]], bool]:
        tests = [(at, _cell_test(columns, name)) for at, name in enumerate(names)]
        known = [(at, test) for at, test in tests if test is not None]

        def reads(fields: list[str]) -> bool:
            if len(fields) != len(names):
                return False
            said = [(fields[at], test(fields[at])) for at, test in known]
            fit = sum(fits or not text for text, fits in said)
            return not known or (2 * fit >= len(known) and any(fits for _, fits in said))

        return reads

    return of


def _cell_test(columns: Columns, name: str) -> Callable[[str], bool] | None:
    """Whether a text is a value of a declared column; None of one that may hold any text."""
    number, values = columns.number(name), {*columns.values(name)}
    if number is None:
        return (lambda text: whole(text) in values or text in values) if values else None
    if number.dated is not None:
        dated = number.dated
        return lambda text: not np.isnan(date_number(text, dated))
    return lambda text: re.fullmatch(NUMBER, text.replace(columns.decimal, ".")) is not None
