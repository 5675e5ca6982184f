"""Tests of Excel workbooks as tables: the same rows as from a CSV file, and one-line errors."""

import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from gdpfed.errors import InputError, LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data import DataSource, load_dataset, workbook_file
from gdpfed.learning.data.declaration import read_columns
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.table_check import check_table

COLUMNS = """\
label: {column: y, classes: [0, 1]}
numeric: {age: [0, 100], born: {range: [0, 110], age_on: 2026-01-01}}
categorical: {sex: [M, F], smokes: ['True', 'False']}
"""
NAMES = ("age", "born", "sex", "smokes", "y")
ROWS = [
    (20 + at + 0.5 * (at % 3), datetime(1950 + at, 4, 13), ("M", "F")[at % 2], at % 3 == 0, at % 2)
    for at in range(30)
]


def declared(folder, files=None):
    folder.mkdir(exist_ok=True)
    (folder / "columns.yaml").write_text(COLUMNS)
    if files:
        (folder / "files.yaml").write_text(files)


def workbook(folder, sheets, change=None, name="bonn.xlsx", files=None):
    """Write a workbook of these sheets; `change` is a function that gets the workbook before it is saved."""
    openpyxl = pytest.importorskip("openpyxl")
    declared(folder, files)
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    if change is not None:
        change(book)
    book.save(folder / name)
    return folder / name


def as_csv(folder):
    declared(folder)
    lines = [
        ",".join(f"{each:%Y-%m-%d}" if at == 1 else str(each) for at, each in enumerate(row)) for row in ROWS
    ]
    (folder / "bonn.csv").write_text("\n".join([",".join(NAMES), *lines, ""]))
    return folder / "bonn.csv"


def notes(path):
    rows, found = check_table(path, read_columns(path.with_name("columns.yaml")))
    return (
        rows,
        [each.words for each in found if each.is_fault],
        [each.words for each in found if not each.is_fault],
    )


TITLED = [("cell samples, March",), (), NAMES, *ROWS, (), ()]
FORMS = {
    "one sheet": ({"Data": [NAMES, *ROWS]}, None, []),
    "a title above, and empty rows": (
        {"Data": TITLED},
        None,
        ["lines 1 to 2 are above the names of the columns, and passed over"],
    ),
    "another sheet": (
        {"Read me": [("age is in years",)], "Data": [NAMES, *ROWS]},
        None,
        ["of the sheets Read me, Data 'Data' is read"],
    ),
    "the site's choice": (
        {"old": [NAMES, *ROWS[:3]], "new": [NAMES, *ROWS]},
        "bonn: {sheet: new}",
        ["of the sheets old, new 'new' is read"],
    ),
    "no names": ({"Data": ROWS}, f"bonn: {{header: [{', '.join(NAMES)}]}}", []),
    "numbers as texts": (
        {"Data": [NAMES, *((str(age).replace(".", ","), *others) for age, *others in ROWS)]},
        None,
        ["column 'age': 30 numbers are written with a decimal comma"],
    ),
    "texts and numbers": (
        {"Data": [NAMES, *((str(row[0]), *row[1:]) if at < 5 else row for at, row in enumerate(ROWS))]},
        None,
        [],
    ),
    "days as texts": (
        {"Data": [NAMES, *((row[0], f"{row[1]:%d.%m.%Y}", *row[2:]) for row in ROWS)]},
        None,
        ["30 dates"],
    ),
    "durations": (
        {
            "Data": [(*NAMES, "stay"), *((*row, timedelta(hours=30)) for row in ROWS)],
            "Legend": [(timedelta(1),)],
        },
        None,
        ["read: stay", "of the sheets Data, Legend 'Data' is read"],
    ),
    "further columns": (
        {"Data": [(*NAMES, "note"), *((*row, "x" * (at % 2)) for at, row in enumerate(ROWS))]},
        None,
        ["read: note"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_workbook_is_the_same_table_as_its_csv(tmp_path, form):
    sheets, files, words = FORMS[form]
    plain, path = as_csv(tmp_path / "plain"), workbook(tmp_path / "own", sheets, files=files)
    for mine, theirs in zip(read_own(path)[:2], read_own(plain)[:2], strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    rows, faults, found = notes(path)
    assert (rows, faults) == (30, [])
    assert [part for part in words if not any(part in each for each in found)] == []


def merge(book):
    book["Data"].merge_cells("A3:A5")


def uncomputed(book):
    book["Data"]["A7"] = "=A6+1"


@pytest.mark.parametrize(
    ("sheets", "change", "words"),
    [
        (
            {"Data": [NAMES, *ROWS]},
            merge,
            "bonn.xlsx: lines 3 to 5 have merged cells: unmerge them, and fill each in",
        ),
        (
            {"Data": [NAMES, *ROWS]},
            uncomputed,
            "a formula in line 7 was saved without its value: open the workbook",
        ),
        (
            {"a": [NAMES, *ROWS], "b": [NAMES, *ROWS]},
            None,
            "has the sheets a, b, of which 2 have the declared",
        ),
        (
            {"a": [("x",)], "b": [("x",)]},
            None,
            "has the sheets a, b, of which none have the declared columns: set sheet",
        ),
        ({"Data": [NAMES, *ROWS, (1, 2, 3, 4, 5, 6, 7)]}, None, "line 32 has 7 values, and the header has 5"),
        ({"Data": [NAMES[1:], *(row[1:] for row in ROWS)]}, None, "lacks the column 'age'; it has born, sex"),
        (
            {"Data": [NAMES, *ROWS, ("x", *ROWS[0][1:])]},
            None,
            "column 'age' holds 'x' in row 31, which is not a number",
        ),
    ],
)
def test_what_no_table_holds_is_one_line(tmp_path, sheets, change, words):
    path = workbook(tmp_path, sheets, change)
    with pytest.raises(LearningError, match=words):
        read_own(path)


@pytest.mark.parametrize("first", ["M", "age"])
def test_no_record_chooses_the_sheet(tmp_path, first):
    """With `header` all rows are records; a record that holds the name of a column is one as well."""
    rows = [(*ROWS[0][:2], first, *ROWS[0][3:]), *ROWS[1:]]
    header = "header: [age, born, sex, smokes, y]"
    sheets = {"Data": rows, "Legend": [("x is the age",)]}
    path = workbook(tmp_path, sheets, files=f"bonn: {{{header}}}\n")
    with pytest.raises(LearningError, match="has the sheets Data, Legend, of which none .*: set sheet in"):
        read_own(path)
    if first == "M":
        (tmp_path / "files.yaml").write_text(f"bonn: {{{header}, sheet: Data}}\n")
        assert len(read_own(path)[1]) == 30  # type: ignore[arg-type]


def test_a_computed_formula_is_its_value(tmp_path):
    """A cell with a formula is read as the value that Excel has saved with the formula."""
    path = workbook(tmp_path, {"Data": [NAMES, *ROWS]}, uncomputed)
    with ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, re.sub(rb"<f>A6\+1</f><v ?/?>(</v>)?", b"<f>A6+1</f><v>50</v>", data))
    x = np.asarray(read_own(path)[0])
    assert x[5, 0] == 0.0


def test_a_folder_of_workbooks_and_tables_is_one_of_parties(tmp_path):
    workbook(tmp_path, {"Data": [NAMES, *ROWS]})
    workbook(tmp_path, {"Data": [NAMES, *ROWS]}, name="ulm.XLSX")
    (tmp_path / "~$ulm.xlsx").write_bytes(b"open in Excel")
    data = load_dataset(DataSource("csv", str(tmp_path)))
    assert data.owner_names == ("bonn", "ulm")
    assert len(data.train) + len(data.test) == 60


def test_files_that_are_no_workbooks_and_a_missing_package_are_one_line(tmp_path, monkeypatch):
    declared(tmp_path)
    for data, words in (
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
            "an old Excel file, or one with a password: save it as .xlsx",
        ),
        (b"age,y\n1,0\n", "cannot be read as a workbook: File is not a zip file"),
    ):
        (tmp_path / "bonn.xlsx").write_bytes(data)
        with pytest.raises(LearningError, match=words):
            read_own(tmp_path / "bonn.xlsx")
    with ZipFile(tmp_path / "bonn.xlsx", "w") as archive:
        archive.writestr("a", "b")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    monkeypatch.setattr(workbook_file, "openpyxl", late_import("openpyxl"))
    with pytest.raises(InputError, match=r"needs the package openpyxl, .* install 'openpyxl>=3.1'"):
        read_own(tmp_path / "bonn.xlsx")
    (tmp_path / "bonn.ods").write_bytes(b"")
    with pytest.raises(
        LearningError, match="another kind of workbook: save it as .xlsx, or its sheet as CSV"
    ):
        load_dataset(DataSource("csv", str(Path(tmp_path / "bonn.ods"))))
