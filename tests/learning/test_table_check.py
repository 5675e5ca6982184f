"""Tests of `gdpfed check`: it lists all faults of a table, or proposes the columns.yaml of a new table."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from conf.load import load
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, first_columns, load_dataset
from gdpfed.learning.data.declaration import columns_of, read_columns
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.table_rows import open_declared
from gdpfed.learning.data_warnings import data_warnings

COLUMNS = """\
label: {column: stays, classes: [no, yes]}
numeric: {age: [0, 100], pressure: [0, 1.0e+19], born: {range: [0, 100], age_on: 2026-01-01}}
categorical: {arrival: [walk, ambulance]}
separator: ";"
"""
TABLE = """\
stays;Age;pressure;arrival;id;born
yes;71;160,5;ambulance;1;1955-01-01
no;34;120;walk;2;2001-02-01

Yes;3o;1.2.2001;wak;3;2001-03-01
no;25;?;walk;4;01/04/2001
no
;66;150;unknown;6;x
"""


def found_in(folder, table=TABLE, columns=COLUMNS, encoding="utf-8"):
    (folder / "table.csv").write_bytes(table.encode(encoding))
    (folder / "columns.yaml").write_text(columns)
    rows, found = check_table(folder / "table.csv", read_columns(folder / "columns.yaml"))
    return (
        rows,
        [(each.lines, each.words) for each in found if each.is_fault],
        [each.words for each in found if not each.is_fault],
    )


def test_all_faults_come_at_once_by_line_with_likely_causes(tmp_path):
    rows, faults, notes = found_in(tmp_path)
    expected = [
        (
            (1,),
            "there is no column 'age' (did you mean 'Age'? rename it in the file if it means the same, in "
            "the same unit if it has one)",
        ),
        ((5,), "'pressure' holds '1.2.2001', which is not a number (a date? declare age_on or days_since)"),
        ((5,), "say values in files.yaml, declare it, or other: VALUE for all others (did you mean 'walk'?)"),
        ((5,), "holds 'Yes', which is not one of no, yes: correct it, or declare it (did you mean 'yes'?)"),
        ((6,), "'born' holds '01/04/2001', which may be two days: say dates of the file in files.yaml"),
        (
            (7,),
            "1 value, and the header has 6 (no row of the table, or a line break in a text without quotes",
        ),
        ((8,), "'born' holds 'x', which is not a date"),
        ((8,), "'arrival' holds 'unknown', which is not one of walk, ambulance"),
        (
            (8,),
            "is empty, which is not one of no, yes: correct it, or declare it (declare missing_labels: drop",
        ),
    ]
    assert rows == 5
    assert [lines for lines, _ in faults] == [lines for lines, _ in expected]
    for (_, words), (_, part) in zip(faults, expected, strict=True):
        assert part in words
    assert notes == [
        "not declared, and not read: Age, id",
        "column 'pressure': 1 number is written with a decimal comma",
        "column 'pressure': '?' stands for a missing value in 1 row",
        "column 'pressure': all lie within 1 % of 0 to 1e+19: is the range too wide?",
    ]


@pytest.mark.parametrize(
    ("table", "encoding", "fault"),
    [
        (TABLE.replace("stays", "other").replace("Age", "b"), "utf-8", "there is no column 'stays'"),
        ("a;b\n1;2\n", "utf-8", "there is no column 'stays'"),
        ("PK;b\n1;2\n", "utf-8", "there is no column 'stays'"),
        ("PK\x03\x04", "latin-1", "(an Excel file or a ZIP archive? save it as CSV, or unpack it)"),
        (TABLE, "utf-32", "this text is in UTF-32, which is not read: save it in UTF-8"),
        *(
            (TABLE.replace(";", mark), "utf-8", "(names must be separated by ',', ';', '\\t' or '|')")
            for mark in (" ", "#")
        ),
        (
            TABLE.replace("Age", "\u200bage"),
            "utf-8",
            "(there is 'age' with the invisible character U+200B: take",
        ),
        ("", "utf-8", "the file is empty"),
        (TABLE.splitlines()[0], "utf-8", "there are no rows with data"),
        (TABLE.replace("id", "stays"), "utf-8", "the column 'stays' is there twice"),
    ],
)
def test_a_file_of_another_form_is_named_as_such(tmp_path, table, encoding, fault):
    _, faults, _ = found_in(tmp_path, table, encoding=encoding)
    assert any(fault in words for _, words in faults)


def test_of_wrong_days_a_few_are_shown_and_of_wrong_values_many(tmp_path):
    """Days of another form all have one cause, and each value of a category may have its own."""
    columns = "label: {column: y, classes: [a, b]}\ncategorical: {ward: [u, v]}\n"
    columns += "numeric: {born: {range: [0, 100], age_on: 2026-01-01, format: '%d.%m.%Y'}}\n"
    rows = "".join(f"{10 + at % 3}/{13 + at}/2001,w{at},a\n" for at in range(8))
    _, faults, _ = found_in(tmp_path, table=f"born,ward,y\n{rows}", columns=columns)
    days, wards = ([each for each in faults if name in each[1]] for name in ("'born'", "'ward'"))
    assert [lines for lines, _ in days] == [(2,), (3,), (4,), (5,), (6,), (7, 8, 9)]
    assert "holds 3 more values, each of which is not a date of the form %d.%m.%Y" in days[-1][1]
    assert len(wards) == 8


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("<0.5", "beyond what can be measured? write the limit as a number, or leave the cell empty"),
        ("≥ 120", "beyond what can be measured?"),
        ("1,2 mg/dl", "a unit in the cell? write the number alone"),
        ("36.6 °C", "a unit in the cell?"),
        ("88 µmol/l", "a unit in the cell?"),
        ("97 %", "a unit in the cell?"),
    ],
)
def test_what_laboratories_write_beside_a_number_is_named(tmp_path, text, cause):
    columns = "label: {column: y, classes: [a, b]}\nnumeric: {crp: [0, 500]}\n"
    _, faults, _ = found_in(tmp_path, table=f"crp;y\n{text};a\n7;b\n", columns=columns)
    ((lines, words),) = faults
    assert lines == (2,)
    assert f"holds '{text}', which is not a number ({cause}" in words


def test_rows_are_no_copies_of_each_other_for_what_cannot_be_read(tmp_path):
    columns = "label: {column: y, classes: [a, b]}\nnumeric: {born: {range: [0, 100], age_on: 2026-01-01}}\n"
    days = ["1/2/2001", "2/3/2001", "2001-05-01", "2001-06-01", "2001-07-01", "2001-07-01"]
    table = "born,y\n" + "".join(f"{day},a\n" for day in days)
    _, faults, notes = found_in(tmp_path, table=table, columns=columns)
    assert len(faults) == 2
    (said,) = (each for each in notes if "in all declared columns" in each)
    assert said.startswith("1 of 4 rows repeats another row")


def test_a_table_without_columns_is_one_line(tmp_path):
    parquet.write_table(pa.table({}), tmp_path / "data.parquet")
    (tmp_path / "columns.yaml").write_text(COLUMNS.replace('separator: ";"\n', ""))
    rows, (finding,) = check_table(tmp_path / "data.parquet", read_columns(tmp_path / "columns.yaml"))
    assert rows == 0
    assert finding.words.startswith("has no columns: write the table again")


def test_faults_come_before_notes_where_there_are_no_rows(tmp_path):
    (tmp_path / "table.csv").write_text("id;stays;age;pressure;arrival;born\n")
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    _, found = check_table(tmp_path / "table.csv", read_columns(tmp_path / "columns.yaml"))
    assert [each.words for each in found] == ["there are no rows with data", "not declared, and not read: id"]


def test_a_long_name_is_shortened_in_a_note(tmp_path):
    _, _, notes = found_in(tmp_path, f"{'n' * 2000};stays;id\n1;yes;2\n")
    assert notes[0] == f"not declared, and not read: {'n' * 60}..., id"
    columns = read_columns(tmp_path / "columns.yaml")
    with pytest.raises(LearningError, match=f"lacks the column 'age'; it has {'n' * 60}..., stays, id"):
        next(open_declared(tmp_path / "table.csv", columns, "t.csv").batches(["age"]))


@pytest.mark.parametrize(
    ("arrival", "born", "words"),
    [
        ("x" * 200_000, "2001-03-01", f"holds '{'x' * 60}...', which is not one of walk"),
        ("walk\u200b", "2001-03-01", "holds 'walk ' (with the invisible character U+200B), which is"),
        ("zu fu\u00df", "2001-03-01", "holds 'zu fu\u00df', which is not one of"),
        (
            "cafe\u0301",
            "2001-03-01",
            "holds 'cafe\u0301' (in another Unicode form than NFC), which is not one",
        ),
        ("cafe\u0301", "2001-03-01", "('caf\u00e9' is declared in another Unicode form: write both in one)"),
        ("o\u0302te\u0301", "2001-03-01", "(in another Unicode form than NFC)"),
        (
            "t\u00e9l\u00e9",
            "2001-03-01",
            "('te\u0301le\u0301' is declared in another Unicode form: write both",
        ),
        ("walk", '"x\ny"', "holds 'x y' (with the invisible character U+000A), which is not a date"),
        ("walk", "31.02.2001", "which is not a date of the form ISO 8601 (there is no such day)"),
        ("walk", "2001-02-31", "(there is no such day)"),
        ("walk", "45000", "(Excel's number of a day? give the column the format of a date, and save"),
        ("walk", "04.13.2001", "which is not a date of the form ISO 8601 (say dates of the file"),
    ],
)
def test_a_value_that_looks_right_is_shown_with_what_is_wrong(tmp_path, arrival, born, words):
    table = f"stays;age;pressure;arrival;born\nno;12;1;walk;1955-01-01\nyes;50;1;{arrival};{born}\n"
    columns = COLUMNS.replace("[walk, ambulance]", '[walk, ambulance, "caf\u00e9", "te\u0301le\u0301"]')
    (fault,) = found_in(tmp_path, table, columns)[1]
    assert fault[0] == (3,)
    assert words in fault[1]
    assert fault[1].isprintable()
    assert len(fault[1]) < 400


def test_what_is_odd_is_said_and_no_fault(tmp_path):
    table = "stays;age;pressure;arrival;born\n" + "no;120;;walk;1955-01-01\n" * 3 + "no;50;;;1990-01-01\n"
    rows, faults, notes = found_in(tmp_path, table, COLUMNS + "incomplete_rows: drop\n")
    assert (rows, faults, notes) == (4, [], ["4 of 4 rows are left out, as declared"])
    _, faults, notes = found_in(tmp_path, table)
    assert faults == []
    assert notes == [
        "column 'pressure' is missing in all rows",
        "all labels are of the class 'no': of one class nothing is learnt",
        "column 'age': 3 of 4 lie beyond 0 to 100, and count as its end",
    ]


@pytest.mark.parametrize(
    ("ages", "fault"),
    [
        ([900] * 61, "all 61 numbers lie beyond 0 to 100, so the column says nothing here: is it in another"),
        ([900] * 9 + [50], "9 of 10 numbers lie beyond 0 to 100, so the column says almost nothing here: is"),
        ([900] * 9 + ["", 50, 50], None),
        ([900] * 9, None),
        ([900] * 80 + [50] * 20, None),
    ],
)
def test_a_column_of_another_unit_is_a_fault(tmp_path, capsys, ages, fault):
    rows = "".join(f"no;{age};1;walk;1955-01-01\nyes;;1;walk;1955-01-01\n" for age in ages)
    table = f"stays;age;pressure;arrival;born\n{rows}"
    _, faults, notes = found_in(tmp_path, table)
    assert [lines for lines, _ in faults] == [()] * (fault is not None)
    assert all(words.startswith(f"column 'age': {fault}") for _, words in faults)
    assert any("and count as its end" in note for note in notes) == (fault is None)
    assert main(["check", str(tmp_path / "table.csv")]) == (fault is not None)
    assert (", 1 fault\n  column 'age'" in capsys.readouterr().out) == (fault is not None)
    # No training refuses it.
    assert len(load_dataset(DataSource("csv", path=str(tmp_path / "table.csv"))).train)


def test_days_that_all_lie_beyond_their_range_are_a_fault(tmp_path):
    table = "stays;age;pressure;arrival;born\n" + "no;12;1;walk;2030-01-01\nyes;13;2;walk;2030-01-01\n" * 5
    (fault,) = found_in(tmp_path, table)[1]
    assert fault[1].endswith("says nothing here: is age_on: 2026-01-01 wrong, or the range?")


def test_a_column_that_makes_no_record_one_for_testing_is_told(tmp_path):
    table = "stays;age;pressure;arrival;born\n" + "no;12;1;walk;1955-01-01\nyes;50;1;walk;1990-01-01\n" * 3
    columns = COLUMNS.replace(
        "categorical: {arrival: [walk, ambulance]}", "test: {column: arrival, values: [night]}"
    )
    _, faults, notes = found_in(tmp_path, table, columns)
    words = "no row has 'night' in the column 'arrival', which are for testing"
    assert (faults, words in notes) == ([], True)
    with pytest.raises(LearningError, match=f"no records to test on: {words}"):
        load_dataset(DataSource("csv", path=str(tmp_path / "table.csv")))


def test_what_a_table_holds_gives_no_orders_to_a_terminal(tmp_path, capsys):
    (tmp_path / "a\x1b[31m.csv").write_text("stays;age;pressure;arrival;born\nno;\x1b]0;T\x07;1;walk;x\n")
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    main(["check", str(tmp_path)])
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_encodings_decimals_and_dates_are_read_as_declared(tmp_path):
    columns = (
        "label: {column: stays, classes: [no, yes]}\n"
        "numeric: {pressure: [0, 200], came: {range: [0, 100], days_since: 2001-01-01, format: '%d.%m.%Y'}}\n"
        "categorical: {arrival: [zu Fuß, NA]}\n"
        "separator: ';'\ndecimal: ','\nencoding: latin-1\nmissing: ['?']\n"
    )
    table = "stays;pressure;arrival;came\n" + "no;150,0;zu Fuß;20.02.2001\n" * 5 + "yes;?;NA;NaN\n" * 5
    assert found_in(tmp_path, table, columns, "latin-1") == (
        10,
        [],
        [
            "5 lines are not UTF-8, and read as latin-1",
            "column 'pressure': 5 numbers are written with a decimal comma",
        ],
    )
    data = load_dataset(DataSource("csv", path=str(tmp_path / "table.csv")))
    found = {tuple(each) for each in data.train.take(np.arange(8)).x.round(6).tolist()}
    # A category that is called NA is one, where it is declared.
    assert found == {(0.5, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)}


def test_files_beside_the_tables_are_said(tmp_path, capsys):
    for name in ("bonn.csv", "fulda.csv", "._bonn.csv", "kiel.CSV", "notes.txt"):
        (tmp_path / name).write_text("stays,age\nno,1\nyes,2\nno,3\nyes,4\nno,5\n")
    (tmp_path / "columns.yaml").write_text(
        "label: {column: stays, classes: [no, yes]}\nnumeric: {age: [0, 9]}\n"
    )
    assert main(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for name in ("._bonn.csv", "notes.txt"):
        assert f"{tmp_path / name}: this is not a table, and it is not read" in said
    task = task_of(load(["dataset=csv", f"dataset.path={tmp_path}", "dataset.num_clients=3"]))
    assert task.client_names == ("bonn", "fulda", "kiel")
    assert [line for line in data_warnings(task) if "holds ._bonn.csv, notes.txt" in line]
    task = task_of(load(["dataset=csv", f"dataset.path={tmp_path}", "dataset.num_clients=2"]))
    assert [line for line in data_warnings(task) if "leaves out 1 of 3 parties: kiel; set" in line]
    for number in range(9):
        (tmp_path / f"{number}.dcm").touch()
    assert [line for line in data_warnings(task) if "holds 11 files, .csv 1, .dcm 9, .txt 1: these" in line]
    (tmp_path / "fulda.csv").write_text("stays,age\nno,one\n")
    assert main(["check", str(tmp_path)]) == 1


def test_a_label_that_is_no_column_is_told_the_nearest_one(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("Verlauf,Alter\ngut,71\n")
    for said, hint in (
        ("verlauf", " (did you mean 'Verlauf'?)"),
        ("Altre", " (did you mean 'Alter'?)"),
        ("x", ""),
    ):
        assert main(["columns", str(tmp_path / "t.csv"), "--label", said]) == 2
        assert f"t.csv has no column '{said}'{hint}; it has Verlauf, Alter" in capsys.readouterr().err


def test_a_first_declaration_takes_no_range_from_the_rows_unless_asked(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(TABLE.replace("Yes", "yes").replace("1.2.2001", "130,5"))
    assert main(["columns", str(path), "--label", "stays"]) == 0
    text = (tmp_path / "columns.yaml").read_text()
    assert "numeric:\n  Age: [LOW, HIGH]\n  pressure: [LOW, HIGH]\n" in text
    assert "\nmissing" not in text
    assert not {"71", "160", "ambulance", "yes"} & {*text.replace(",", " ").replace("[", " ").split()}
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert "LOW and HIGH of Age, pressure, " in said
    assert "are to be replaced by numbers" in said
    (tmp_path / "columns.yaml").write_text(text.replace("[LOW, HIGH]", "[0, 200]"))
    assert main(["check", str(path)]) == 2
    assert "label is to be replaced by the values that there may be" in capsys.readouterr().err
    (tmp_path / "columns.yaml").write_text(text)
    assert main(["columns", str(path)]) == 2
    assert "exists: name another file with --output" in capsys.readouterr().err
    other = tmp_path / "from_data.yaml"
    assert main(["columns", str(path), "--label", "stays", "--from-data", "--output", str(other)]) == 0
    assert "the figure of a patient, and no budget covers it" in " ".join(capsys.readouterr().err.split())
    text = other.read_text()
    assert "pressure: [120, 160.5]" in text
    assert "classes: ['no', 'yes']" in text
    coarse = tmp_path / "coarse.yaml"
    words = ["columns", str(path), "--label", "stays", "--output", str(coarse), "--coarse"]
    assert main([*words, "--from-data"]) == 2
    assert "--coarse and --from-data both say what ranges are" in capsys.readouterr().err
    assert main(words) == 0
    assert "numeric:\n  Age: [-1000000, 1000000]\n" in coarse.read_text()
    assert "LOW" not in coarse.read_text()
    path.write_text("0,1,2\n71,3,1\n64,5,0\n")
    (tmp_path / "columns.yaml").unlink()
    assert main(["columns", str(path), "--label", "2"]) == 0
    path.write_text("71,3,1\n64,5,0\n")
    assert main(["columns", str(path), "--label", "1", "--output", str(tmp_path / "none.yaml")]) == 2
    assert "has numbers in place of names: write one above it" in " ".join(capsys.readouterr().err.split())


def drafted(path, *words):
    """Return the lines of the declaration that gdpfed columns drafts for a table."""
    output = path.with_suffix(".yaml")
    output.unlink(missing_ok=True)
    assert main(["columns", str(path), "--output", str(output), *words]) == 0
    return output.read_text().splitlines()


def of_columns(folder, **columns):
    path = folder / "drafted.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""]))
    return path


@pytest.mark.parametrize(
    ("days", "form"),
    [
        (["2024-03-05 13:45:10", "2024-03-06 00:00:00"], ""),
        (["2024-03-05T08:00", "2024-03-06"], ""),
        (["5 Mar 2024", "6 Mar 2024"], ""),
        (["2024/03/05", "2024/03/06 10:00"], ""),
        (["5.3.2024 13:45", "6.3.2024 13:46"], ""),
        (["31/12/2024 08:00", "05/03/2024 08:00"], '"%d/%m/%Y %H:%M"'),
        (["05.03.2024", "31.12.2024"], '"%d.%m.%Y"'),
        (["05/03/2024", "31/12/2024"], '"%d/%m/%Y"'),
        (["12/31/2024", "03/05/2024"], '"%m/%d/%Y"'),
        (["31-12-2024", "05-03-2024"], '"%d-%m-%Y"'),
    ],
)
def test_a_draft_takes_for_a_day_what_is_read_as_one(tmp_path, days, form):
    path = of_columns(tmp_path, stays=["no", "yes"] * 20, at=days * 20)
    lines = drafted(path, "--label", "stays")
    said = f", format: {form}" if form else ""
    assert f"  at: {{range: [LOW, HIGH], age_on: DAY{said}}}" in lines
    assert not any("Not declared" in line for line in lines)
    text = "\n".join(lines).replace("VALUE, VALUE", "'no', 'yes'").replace("LOW, HIGH", "0, 100")
    columns = path.with_suffix(".yaml")
    columns.write_text(text.replace("DAY", "2025-01-01"))
    rows, found = check_table(path, read_columns(columns))
    assert (rows, [each.words for each in found if each.is_fault]) == (40, [])


def test_a_draft_takes_the_form_that_most_days_have(tmp_path):
    days = [f"{1 + place % 12:02d}/{1 + place % 14:02d}/2024" for place in range(84)]
    assert '  at: {range: [LOW, HIGH], age_on: DAY, format: "%m/%d/%Y"}' in drafted(
        of_columns(tmp_path, at=days)
    )


def test_a_draft_tries_few_numbers_as_days(tmp_path, monkeypatch):
    """A column of numbers is no column of days as soon as a fifth of it is none."""
    tried = []

    def refusing(text, *_):
        tried.append(text)
        raise ValueError(text)

    monkeypatch.setattr(first_columns, "written_date", refusing)
    assert "  a: [LOW, HIGH]" in drafted(of_columns(tmp_path, a=[place + 0.5 for place in range(1000)]))
    forms = len(first_columns.DATE_FORMS) + 1
    assert forms <= len(tried) <= 0.21 * 1000 * forms


def test_a_draft_heeds_what_the_site_says_of_dates(tmp_path):
    path = of_columns(tmp_path, stays=["no", "yes"] * 20, at=["5|3|24", "6|3|24"] * 20)
    assert "  at: [VALUE, VALUE]" in drafted(path)
    (tmp_path / "files.yaml").write_text("drafted: {dates: '%d|%m|%y'}")
    assert "  at: {range: [LOW, HIGH], age_on: DAY}" in drafted(path)


def test_a_draft_finds_days_in_parquet(tmp_path):
    days = [datetime(2024, 3, day, hour) for day in range(1, 29) for hour in (0, 13)]
    table = pa.table(
        {
            "pandas": pa.array(days, pa.timestamp("ns")),
            "zone": pa.array(days, pa.timestamp("us", tz="Europe/Berlin")),
            "date": pa.array(days, pa.timestamp("s")).cast(pa.date32()),
            "named": pa.array(days, pa.timestamp("ns")).dictionary_encode(),
            "stays": [0, 1] * 28,
        }
    )
    parquet.write_table(table, tmp_path / "days.parquet")
    lines = drafted(tmp_path / "days.parquet", "--label", "stays")
    for name in table.column_names[:-1]:
        assert f"  {name}: {{range: [LOW, HIGH], age_on: DAY}}" in lines


def test_a_draft_says_why_a_column_is_not_declared(tmp_path):
    places = range(300)
    columns = {
        "stays": ["no", "yes"] * 150,
        "ward": [f"ward {place % 25}" for place in places],
        "left": [""] * 300,
        "Patienten-ID": [f"Kim {place % 240}" for place in places],
        "number": [1000 + place for place in places],
        "mrn": [500_000 + place % 100 for place in places],
        "told": [f"text {place % 290}" for place in places],
    }
    lines = drafted(of_columns(tmp_path, **columns), "--label", "stays")
    assert [line for line in lines if "Not declared" in line] == [
        "# Not declared, with more than 20 different values: ward, mrn. If it says whose row it is: "
        "person: mrn",
        "# Not declared, empty: left",
        "# Not declared, mostly different from row to row: Patienten-ID, number, told. If it says whose row "
        "it is: person: Patienten-ID or person: number",
    ]
    assert not any("Kim" in line or "ward 1" in line for line in lines)


def test_a_table_that_is_wide_or_packed_without_measure_is_one_line(tmp_path, monkeypatch):
    """The check gives one line for a table with too many columns or with too strong a compression."""
    declared = {"label": {"column": "y", "classes": ["0", "1"]}, "numeric": {"a": ["0", "1"]}}
    columns = columns_of(declared, "columns.yaml")
    wide, packed = tmp_path / "wide.csv", tmp_path / "packed.parquet"
    monkeypatch.setattr("gdpfed.learning.data.table_file.MOST_COLUMNS", 50)
    wide.write_text(",".join(f"c{number}" for number in range(51)) + "\n" + "," * 50)
    parquet.write_table(pa.table({"a": np.zeros(10**6), "y": ["1"] * 10**6}), packed, compression="zstd")
    monkeypatch.setattr("gdpfed.learning.data.unpacked.ANY_SIZE", 2**20)
    for path, refusal in (
        (wide, "has 51 columns or more, and a table may have 50"),
        (packed, "times its size, and data are seldom packed to less than a 1,000th"),
    ):
        (finding,) = check_table(path, columns)[1]
        assert refusal in finding.words
        with pytest.raises(LearningError, match=refusal):
            open_declared(path, columns, str(path))
