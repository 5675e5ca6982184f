"""Tests of columns of Python values: what a cell is read as follows from that cell alone."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data.cells import table_of
from gdpfed.learning.data.columns import Columns, DatedAs, Numeric
from gdpfed.learning.data.file_form import FileForm, Found
from gdpfed.learning.data.number_cells import numbers_of
from gdpfed.learning.data.object_cells import column_of, key_column, number_column, plain_column, text_column
from gdpfed.learning.data.table_file import TableForm
from gdpfed.learning.data.text_cells import texts_of

COLUMNS = Columns("stays", (("no",), ("yes",)), ("no", "yes"), None, (), ())
CELLS = [
    (7, "7"),
    (7.0, "7"),
    (Decimal("7.00"), "7"),
    (Decimal("1.50"), "1.5"),
    (1.5, "1.5"),
    (0.1, "0.1"),
    (Decimal("1E+3"), "1000"),
    (Decimal(10**32 + 1), f"1{'0' * 31}1"),
    (Decimal("-0.0"), "0"),
    (True, "True"),
    ("x ", "x"),
    (b"x", "x"),
    (date(1950, 3, 4), "1950-03-04"),
    (datetime(1950, 3, 4), "1950-03-04"),
    (datetime(1950, 3, 4, 5, 6), "1950-03-04 05:06:00"),
    (float("nan"), ""),
    (None, ""),
]


@pytest.mark.parametrize(("value", "text"), CELLS)
def test_the_text_of_a_cell_is_the_same_beside_any_other_cell(value, text):
    for beside, _ in CELLS:
        column = text_column([value, beside], "ward", "t")
        assert texts_of(column, "ward", "t").texts[0] == text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1e17, "column 'ward' holds 1e\\+17 as a floating-point number"),
        (b"\xff", "column 'ward' holds bytes that are not a text in UTF-8"),
        ([1, 2], "column 'ward' holds a list, which is not a text, number or date"),
    ],
)
def test_what_is_not_a_name_is_refused(value, words):
    with pytest.raises(LearningError, match=words):
        text_column(["x", value], "ward", "t")


def test_keys_of_any_kind_tell_rows_apart():
    keys = [
        b"\xff\x00",
        b"\xff\x01",
        2**60,
        2**60 + 1,
        float(2**60),
        7,
        7.0,
        datetime(2020, 1, 1, 0, 0, 0, 5),
        "7",
        b"7",
        "37",
        None,
    ]
    column = key_column(keys, "id", "t").to_pylist()
    assert column[4] == column[2]
    assert column[5] == column[6]
    assert column[-1] is None
    assert len({*column}) == 10
    with pytest.raises(LearningError, match="t: column 'id' holds a list, which is not a text"):
        key_column([1, [1]], "id", "t")


def test_an_undeclared_column_may_hold_anything():
    form = TableForm(wanted=("age",), numbers=frozenset({"age"}))
    assert column_of([b"\xff", [1], 7.0], "note", form, "t").to_pylist() == ["b'\\xff'", "[1]", "7"]
    with pytest.raises(LearningError, match="column 'age' holds a list"):
        column_of([[1], "7"], "age", form, "t")


def test_times_and_decimals_of_arrow_are_the_texts_that_other_databases_give():
    times = [datetime(1950, 3, 4), datetime(1950, 3, 4, 5, 6), datetime(1950, 3, 4, 0, 0, 0, 70), None]
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        zone = "" if kind.tz is None else "Z"
        found = plain_column(pa.array(times, kind), "born", "t").to_pylist()
        assert found == [
            "1950-03-04",
            f"1950-03-04 05:06:00{zone}",
            f"1950-03-04 00:00:00.000070{zone}",
            None,
        ]
    numbers = [Decimal("7.00"), Decimal("1.50"), Decimal("100.00"), None]
    assert plain_column(pa.array(numbers), "dose", "t").to_pylist() == ["7", "1.5", "100", None]
    assert plain_column(pa.array([7.5]), "dose", "t").to_pylist() == [7.5]


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("beside", [3, 2.5, Decimal("2.500"), True, None, "", "NA", "12"])
@pytest.mark.parametrize(
    ("value", "number"),
    [
        (12, 12.0),
        (12.1, 12.1),
        (3.456, 3.456),
        (Decimal("-3.456"), -3.456),
        (Decimal("1.500"), 1.5),
        (Decimal("0.1"), 0.1),
        (True, 1.0),
    ],
)
def test_a_number_is_the_same_beside_any_other_cell(value, number, beside, decimal):
    column = number_column([value, beside], "age", "t", decimal)
    read = numbers_of(column, Numeric("age", 0.0, 100.0), COLUMNS, FileForm(decimal=decimal), Found(), "t")
    assert read.numbers[0] == number
    assert not read.wrong.any()


def test_no_decimal_comma_in_another_cell_makes_a_number_unclear():
    column = number_column([3.456, "2,5"], "age", "t")
    table = table_of({"age": column}, replace(COLUMNS, numeric=(Numeric("age", 0.0, 100.0),)), "t")
    assert table["age"].numbers.tolist() == [3.456, 2.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("form", [None, "%d.%m.%Y", "%Y-%d-%m"])
@pytest.mark.parametrize("beside", [date(2001, 1, 1), datetime(2001, 1, 1, 12), "NA", None, "12.01.2001"])
def test_a_day_is_the_same_beside_any_other_cell(form, beside):
    column = number_column([datetime(1950, 3, 4, 5), beside], "born", "t")
    born = Numeric("born", 0.0, 100.0, dated=DatedAs("days", date(1950, 3, 1), form))
    read = numbers_of(column, born, COLUMNS, FileForm(), Found(), "t")
    assert read.numbers[0] == 3.0
    assert not read.wrong[0]
    assert np.isfinite(read.numbers[1]) or beside in ("NA", None) or form == "%Y-%d-%m"
