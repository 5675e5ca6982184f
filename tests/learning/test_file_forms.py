"""Tests of tables in different file formats: under one declaration they give the same numbers."""

import bz2
import gzip
import lzma
import os
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gdpfed.cli import main
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset, text_files
from gdpfed.learning.data.declaration import read_columns
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.table_rows import open_declared

COLUMNS = """\
label: {column: y, classes: ['0', '1']}
numeric: {age: [0, 110], pay scale: [0, 50000], born: {range: [0, 110], age_on: 2026-01-01}}
categorical: {sex: [männlich, weiblich]}
"""
NAMES = ["age", "pay scale", "born", "sex", "y"]
ROWS = [
    (20 + at, 1000.5 + at, date(1950 + at, 4, 13), ("männlich", "weiblich")[at % 2], at % 2)
    for at in range(40)
]


def text(rows=ROWS, *, separator=",", decimal=".", dates="%Y-%m-%d", header=True, names=NAMES):
    lines = [separator.join(names)] * header
    for age, pay, born, sex, y in rows:
        shown = (str(age), f"{pay:.2f}".replace(".", decimal), born.strftime(dates), sex, str(y))
        lines.append(separator.join(f'"{each}"' if separator in each else each for each in shown))
    return "\n".join([*lines, ""])


def written(folder, data, name="bonn.csv", files=None, columns=COLUMNS):
    folder.mkdir(exist_ok=True)
    (folder / "columns.yaml").write_text(columns)
    if files is not None:
        (folder / "files.yaml").write_text(files)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder / name


def notes(path):
    rows, found = check_table(path, read_columns(path.with_name("columns.yaml")))
    assert not [each.words for each in found if each.is_fault]
    return rows, [each.words for each in found]


GERMAN = text(separator=";", decimal=",", dates="%d.%m.%Y")
FORMS = {
    "semicolons, decimal commas and dotted days": (
        GERMAN,
        ["separated by ';'", "40 numbers are", "40 dates are"],
    ),
    "Windows-1252": (GERMAN.encode("cp1252"), ["20 lines are not UTF-8, and read as cp1252"]),
    "UTF-16 with its mark": (text().encode("utf-16"), ["read as utf-16-le"]),
    "UTF-16 without its mark": (text().encode("utf-16-be"), ["read as utf-16-be"]),
    "UTF-8 with a mark": (text().encode("utf-8-sig"), []),
    "Excel's line of the separator": ("sep=;\n" + GERMAN, ["line 1 is Excel's sep=;: it is passed over"]),
    "lines above the names": (
        "Report of Bonn,,\nprinted,on Monday\n" + text(),
        ["lines 1 to 2 are above the names of the columns, and passed over"],
    ),
    "a first line of other names": (
        "X1,X2,X3,X4,X5\n" + text(),
        ["line 1 is above the names of the columns, and passed over"],
    ),
    "names with space around them": (text(names=[f" {name} " for name in NAMES]), []),
    "a separator at the end of rows": (
        text().replace("\n", ",\n").replace(",\n", "\n", 1),
        ["rows end in a"],
    ),
    "a separator at the end of the names": (
        text().replace("y\n", "y,\n", 1),
        ["the line of names ends in a"],
    ),
    "R's running number": (
        "\n".join(line if at == 0 else f'"{at}",{line}' for at, line in enumerate(text().splitlines())),
        ["rows begin with an index that has no name"],
    ),
    "a running number from 0 without quotes": (
        "\n".join(line if at == 0 else f"{at - 1},{line}" for at, line in enumerate(text().splitlines())),
        ["rows begin with an index that has no name"],
    ),
    "a running number from 1 before semicolons": (
        "\n".join(line if at == 0 else f"{at};{line}" for at, line in enumerate(GERMAN.splitlines())),
        ["rows begin with an index that has no name"],
    ),
    "R's names of rows": (
        "\n".join(line if at == 0 else f'"p {at}",{line}' for at, line in enumerate(text().splitlines())),
        ["rows begin with an index that has no name"],
    ),
    "an index with an empty name": (
        "\n".join(f"{at - 1 if at else ''},{line}" for at, line in enumerate(text().splitlines())),
        ["not declared, and not read: one without a name"],
    ),
    "months by name": (text(dates="%d-%b-%Y"), ["40 dates are written as day, name of the month, year"]),
    "days with a slash that are beyond 12": (text(dates="%m/%d/%Y"), ["written as month/day/year"]),
    "thousands with a comma": (
        text(decimal=".").replace(",10", ',"1,0').replace(".50,", '.50",'),
        ["thousands"],
    ),
    "classes with a fraction": (
        "\n".join([*GERMAN.splitlines()[:1], *(f"{line},0" for line in GERMAN.splitlines()[1:])]),
        [],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_in_any_form_is_the_same_table(tmp_path, form):
    data, words = FORMS[form]
    plain = read_own(written(tmp_path / "plain", text()))
    path = written(tmp_path / "own", data)
    for mine, theirs in zip(read_own(path)[:2], plain[:2], strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    rows, found = notes(path)
    assert rows == 40
    for part in words:
        assert any(part in line for line in found), found


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_tables_are_read_and_named_without_their_endings(tmp_path, ending, pack, monkeypatch):
    written(tmp_path, pack(GERMAN.encode("cp1252")), f"bonn.csv{ending}")
    written(tmp_path, text(separator="\t"), "ulm.tsv")
    data = load_dataset(DataSource("csv", path=str(tmp_path)))
    assert data.owner_names == ("bonn", "ulm")
    assert len(data.train) + len(data.test) == 80
    monkeypatch.setattr(text_files, "BLOCK", 2**16)
    monkeypatch.setattr(text_files, "MOST_TIMES", 100)
    monkeypatch.setattr("gdpfed.learning.data.unpacked.ANY_SIZE", 2**17)
    bomb = written(tmp_path, pack(text().encode() + b"\n" * 10**7), f"bonn.csv{ending}")
    with pytest.raises(LearningError, match="data are seldom packed to less than a 100th"):
        read_own(bomb)


def test_sites_of_one_declaration_write_as_they_like_and_have_one_hash(tmp_path):
    """Sites whose files have different formats share one declaration, whose hash does not change."""
    written(tmp_path, text(), "bonn.csv")
    before = read_columns(tmp_path / "columns.yaml").digest
    written(tmp_path, GERMAN.encode("cp1252"), "fulda.csv")
    us = [(age, pay, born.replace(day=3), sex, y) for age, pay, born, sex, y in ROWS]
    files = (
        "kiel: {dates: '%m/%d/%Y', decimal: ',', header: [age, pay scale, born, sex, y], missing: ['-9'], "
        "separator: '|'}\n"
    )
    lines = text(us, dates="%m/%d/%Y", separator="|", decimal=",", header=False).replace(
        "20|1000,50", "-9|1.000,50"
    )
    written(tmp_path, lines, "kiel.csv", files)
    data = load_dataset(DataSource("csv", path=str(tmp_path)))
    assert data.owner_names == ("bonn", "fulda", "kiel")
    assert data.columns is not None
    assert data.columns.digest == before
    x = np.asarray(read_own(tmp_path / "kiel.csv")[0])
    np.testing.assert_allclose(x[:2, 1], [2 * 1000 / 50000 - 1 + 0.00002, 2 * 1001.5 / 50000 - 1], atol=1e-4)
    assert x[0, 0] == 0.0
    assert main(["check", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("cell", "column", "words"),
    [
        (
            "30,500",
            "pay scale",
            "holds '30,500' in row 1, which is a thousand times as much if its mark groups",
        ),
        ("03/04/1990", "born", "holds '03/04/1990' in row 1, which may be two days: say dates of the file"),
        ("4_5", "age", "holds '4_5' in row 1, which is not a number"),
        ("1,2,3", "age", "holds '1,2,3' in row 1, which is not a number"),
        ("31.02.1990", "born", "holds '31.02.1990' in row 1, which is not a date"),
        ("03.04.90", "born", "holds '03.04.90' in row 1, which is not a date"),
    ],
)
def test_a_cell_that_may_be_two_things_is_refused_and_never_guessed(tmp_path, capsys, cell, column, words):
    rows = [dict(zip(NAMES, line.split(";"), strict=True)) for line in text(separator=";").splitlines()[1:]]
    rows[0][column] = cell
    lines = [";".join(NAMES), *(";".join(row.values()) for row in rows)]
    path = written(tmp_path, "\n".join(lines))
    with pytest.raises(LearningError, match=words):
        read_own(path)
    assert main(["check", str(path)]) == 1
    assert words.partition(" in row")[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("age", "decimal", "pay"), [("20,5", ",", 1200), ("20", ",", 1200), ("20", ".", 1.2), ("20.5", ".", 1.2)]
)
def test_a_full_stop_that_may_group_thousands_is_refused_unless_the_site_says(tmp_path, age, decimal, pay):
    """In a file with semicolons, 1.200 is refused unless the site declares the decimal separator."""
    lines = ["age;pay scale;born;sex;y", *(f"{age};1.200;1990-01-01;weiblich;{at % 2}" for at in range(9))]
    path = written(tmp_path, "\n".join(lines))
    with pytest.raises(LearningError, match="'pay scale' holds '1.200' in row 1, which is a thousand times"):
        read_own(path)
    said = written(tmp_path, "\n".join(lines), files=f"bonn: {{decimal: '{decimal}'}}\n")
    x = np.asarray(read_own(said)[0])
    np.testing.assert_allclose(x[:, 1], 2 * pay / 50000 - 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("ulm: {decimal: ','}\n", "there is no table 'ulm' beside it"),
        ("bonn: {comma: ','}\n", "key 'bonn.comma' is not known: use separator, encoding, decimal"),
        ("bonn: {decimal: x}\n", "bonn.decimal is 'x'; it must be one of '.', ','"),
        ("bonn: {encoding: utf-16}\nbonn: {}\n", "the key 'bonn' is there twice"),
        ("[]\n", "it must be tables by name"),
        ("", "the file is empty; it must be tables by name"),
        ("bonn: {missing: {glu: ['0']}}\n", "missing: column 'glu' is not known: use"),
        ("bonn: {missing: '-9'}\n", "it must be a list of texts"),
        ("bonn: {values: {sx: {M: weiblich}}}\n", "values: column 'sx' is not known"),
        ("bonn: {values: {age: {old: '80'}}}\n", "'age' has no declared values for which texts could stand"),
        (
            "bonn: {values: {sex: {M: male}}}\n",
            "'sex': 'M' stands for 'male', which is not one of männlich, weiblich: name a declared value",
        ),
        ("bonn: {values: {sex: [M]}}\n", "it must be declared values by texts of the file, as in {M: male}"),
        ("bonn: {sheet: q}\n", "sheet is for a workbook, and bonn.csv is not a workbook: leave it out"),
        ("bonn: {dates: dd/mm}\n", "it must be the form of a date with its day, month and year"),
        ("bonn: {dates: '%d/%m'}\n", "it must be the form of a date with its day, month and year"),
    ],
)
def test_what_a_site_says_of_its_files_is_checked(tmp_path, files, words):
    with pytest.raises(LearningError, match=words):
        read_own(written(tmp_path, text(), files=files))


def test_marks_of_missing_values_are_found_or_said_by_the_site_for_a_column(tmp_path):
    columns = (
        "label: {column: y, classes: ['0', '1']}\nnumeric: {preg: [0, 17], glucose: [40, 200]}\n"
        "categorical: {ward: [a, None], port: {values: [c, q], other: q}}\n"
    )
    lines = "preg,glucose,ward,port,y\n0,0,n/a,-,0\n17,?,None,c,1\n" * 1
    path = written(tmp_path, lines, files="bonn: {missing: {glucose: ['0']}}\n", columns=columns)
    x = np.asarray(read_own(path)[0])
    # Where None is a value it is one, and where others are declared a dash is one of them.
    np.testing.assert_array_equal(x, [[-1, 0, 0, 0, 0, 1], [1, 0, 0, 1, 1, 0]])
    _, found = notes(path)
    assert "column 'glucose': '?' stands for a missing value in 1 row" in found
    assert "column 'ward': 'n/a' stands for a missing value in 1 row" in found


CODED = "age,pay scale,born,sex,y\n36,1,1990-04-13,M,n\n40,2,1980-04-13,W,j\n41,3,1970-04-13,W,1.0\n"
WORDS = (
    CODED.replace(",M,", ",männlich,")
    .replace(",W,", ",weiblich,")
    .replace(",n\n", ",0\n")
    .replace(",j\n", ",1\n")
)
SAID = "bonn: {values: {sex: {M: männlich, W: weiblich}, y: {n: '0', j: '1'}}}\n"


@pytest.mark.parametrize("above", ["", "Report of Bonn,,\n"])
def test_a_sites_own_texts_stand_for_declared_values(tmp_path, above):
    said = written(tmp_path / "said", above + CODED, files=SAID)
    for ours, theirs in zip(read_own(said), read_own(written(tmp_path / "words", WORDS)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    _, found = notes(said)
    assert "column 'sex': 3 texts are read as the value that files.yaml says" in found
    assert "column 'y': 2 texts are read as the value that files.yaml says" in found


def test_texts_may_change_places_and_a_mark_of_the_site_may_be_a_value(tmp_path):
    files = "bonn: {values: {sex: {weiblich: männlich, männlich: weiblich, '-': weiblich}}, missing: ['-']}\n"
    turned = CODED.replace("M", "männlich").replace("W", "weiblich", 1).replace("W", "-")
    turned = turned.replace(",n\n", ",0\n").replace(",j\n", ",1\n")
    x = np.asarray(read_own(written(tmp_path, turned, files=files))[0])
    np.testing.assert_array_equal(x[:, -2:], [[0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("rows", "ages"),
    [
        (["1,36,6,yes", "2,40,1,no", "3,41,2,no"], None),
        (["0,7,36,yes", "1,8,40,no", "2,9,41,no"], None),
        (["1,a7,36,yes", "2,a8,40,no", "3,a9,41,no"], [36, 40, 41]),
        (["1,7,36.6,yes", "2,8,40.1,no", "3,9,41.2,no"], [36.6, 40.1, 41.2]),
        (["1,7,36,yes", "2,8,40.5,no", "3,9,41,no"], [36, 40.5, 41]),
        (['"1",7,36,yes', '"2",8,40,no', '"3",9,41,no'], [36, 40, 41]),
        (['"p",7,36,yes', '"q",8,40,no', '"r",9,41,no'], [36, 40, 41]),
    ],
)
def test_a_running_number_is_none_where_decimal_commas_would_explain_the_rows_too(tmp_path, rows, ages):
    columns = "label: {column: stays, classes: ['no', 'yes']}\nnumeric: {age: [0, 100]}\n"
    path = written(tmp_path, "\n".join(["patient,age,stays", *rows]), columns=columns)
    if ages is None:
        words = f"line 1 names 3 columns, and rows have 4 values, as in {rows[0]}: a running number, or a "
        with pytest.raises(LearningError, match=words):
            read_own(path)
        assert check_table(path, read_columns(tmp_path / "columns.yaml"))[1][0].words.startswith(words)
    else:
        np.testing.assert_allclose(np.asarray(read_own(path)[0])[:, 0], np.array(ages) / 50 - 1, rtol=1e-5)


PARQUET = {
    "booleans": ({"y": pa.array([at % 2 == 1 for at in range(40)])}, ""),
    "booleans as declared words": ({"y": pa.array([at % 2 == 1 for at in range(40)])}, "['false', 'true']"),
    "bytes": ({"sex": pa.array([row[3].encode() for row in ROWS])}, ""),
    "32 bits": ({"age": pa.array([row[0] for row in ROWS], pa.float32())}, ""),
    "whole numbers that may be missing": ({"age": pa.array([row[0] for row in ROWS], pa.uint8())}, ""),
    "categoricals of numbers": ({"y": pa.array([row[4] for row in ROWS]).dictionary_encode()}, ""),
    "categoricals of days": ({"born": pa.array([row[2] for row in ROWS]).dictionary_encode()}, ""),
    "decimals": (
        {"pay scale": pa.array([Decimal(f"{row[1]:.2f}") for row in ROWS], pa.decimal256(70, 2))},
        "",
    ),
    "categoricals": ({"sex": pa.array([row[3] for row in ROWS]).dictionary_encode()}, ""),
    "a time zone": ({"born": pa.array([row[2] for row in ROWS]).cast(pa.timestamp("us", "Asia/Tokyo"))}, ""),
    "texts with commas": ({"pay scale": pa.array([f"{row[1]:.2f}".replace(".", ",") for row in ROWS])}, ""),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_of_any_type_is_the_same_table(tmp_path, kind):
    cells, classes = PARQUET[kind]
    plain = read_own(written(tmp_path / "plain", text()))
    path = written(
        tmp_path / "own", b"", "t.parquet", columns=COLUMNS.replace("['0', '1']", classes or "['0', '1']")
    )
    columns = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    parquet.write_table(pa.table(columns | cells), path)
    for mine, theirs in zip(read_own(path)[:2], plain[:2], strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_what_parquet_holds_that_is_no_value_is_one_line(tmp_path):
    columns = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    path = written(tmp_path, b"", "t.parquet")
    for cells, words in (
        ({"sex": pa.array([b"\xff"] * 40)}, "'sex' holds bytes that are not a text in UTF-8"),
        (
            {"age": pa.array([3] * 40, pa.duration("s"))},
            r"holds duration\[\w+\], whose unit is not declared: write",
        ),
        ({"sex": pa.array([[1]] * 40)}, r"'sex' holds list<\w+: int64>, which is not a text, number or date"),
        (
            {"age": pa.array([1.5] * 40, pa.float32()), "sex": pa.array([0.1] * 40, pa.float32())},
            "holds '0.1'",
        ),
    ):
        parquet.write_table(pa.table(columns | cells), path)
        with pytest.raises(LearningError, match=words):
            read_own(path)


def test_an_undeclared_column_may_hold_anything(tmp_path):
    columns = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    path = written(tmp_path, b"", "t.parquet")
    others = {
        "notes": pa.array([[1]] * 40),
        "scan": pa.array([b"\xff"] * 40),
        "mrn": pa.array([{"a": 1}] * 40),
    }
    parquet.write_table(pa.table(columns | others), path)
    assert notes(path)[1][0] == "not declared, and not read: notes, scan, mrn"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.xlsx"])
def test_a_pipe_in_place_of_a_table_is_not_waited_for(tmp_path, name):
    written(tmp_path, "")
    os.mkfifo(tmp_path / name)
    with pytest.raises(LearningError, match=f"{name} is a pipe or a device: write the table into a file"):
        read_own(tmp_path / name)


@pytest.mark.parametrize("path", [Path(), Path("/")])
def test_a_folder_without_a_name_is_refused_as_a_table(path):
    with pytest.raises(LearningError, match=f"^{path} is a folder, and one table is needed: name a file"):
        open_declared(path, read_columns(Path("published:eicu-stays")), str(path))


@pytest.mark.parametrize("name", ["columns.yaml", "files.yaml"])
def test_a_pipe_beside_a_table_is_not_waited_for(tmp_path, name):
    path = written(tmp_path, "age;sick\n1;yes\n")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(LearningError, match=f"{name} is a pipe or a device: write a file, which must "):
        read_own(path)


def test_tables_of_other_programs_are_called_by_their_kind(tmp_path):
    for name, words in (
        ("t.xls", "this is another kind of workbook: save it as .xlsx"),
        ("t.zip", "unpack it"),
    ):
        path = written(tmp_path, b"PK\x03\x04", name)
        with pytest.raises(LearningError, match=words):
            load_dataset(DataSource("csv", path=str(path)))
