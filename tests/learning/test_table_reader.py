"""Tests of the reader of tables: it reads every row of a file, or a one-line error says why it cannot."""

import csv
import gzip
import random
from datetime import date
from io import StringIO

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from conf.load import load
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset, text_files
from gdpfed.learning.data.columns import DAYS_SINCE, DatedAs, bare_name
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.table_file import TableForm, open_table
from gdpfed.learning.data.written_dates import written_date
from gdpfed.learning.data_warnings import data_warnings
from gdpfed.learning.training.evaluate import central_evaluation

COLUMNS = "label: {column: y, classes: ['0', '1']}\nnumeric: {age: [0, 110]}\ncategorical: {sex: [M, F]}\n"
ROWS = [(20 + number % 60, "MF"[number % 2], number % 2) for number in range(100)]


def written(folder, text, columns=COLUMNS, name="t.csv"):
    (folder / "columns.yaml").write_text(columns)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def table(notes=None, rows=ROWS):
    lines = [
        f"{age},{sex},{y},{(notes or {}).get(number, 'ok')}" for number, (age, sex, y) in enumerate(rows)
    ]
    return "\n".join(["age,sex,y,note", *lines, ""])


def loaded(path):
    return load_dataset(DataSource("csv", path=str(path)))


def refused_by_all(path, words, capsys):
    """Check that training, a node and `gdpfed check` all refuse a file, with the same one-line error."""
    for read in (loaded, read_own):
        with pytest.raises(LearningError, match=words) as raised:
            read(path)
        assert "\n" not in str(raised.value)
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert any(word in said for word in (words, words.partition(": ")[2]))


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({30: '"sent home'}, "quote in line 32, column 'note', is not closed: 69 lines are inside it"),
        (
            {30: '"sent home', 60: 'fine"'},
            "quote in line 32, column 'note', is closed in line 62 only: 30 lines are inside it, and read",
        ),
        ({30: '"sent', 31: 'home"'}, "quote in line 32, column 'note', is closed in line 33 only: 1 lines"),
        ({30: '"a', 40: '"b'}, "quote in line 32, column 'note', is closed in line 42 only: 10 lines"),
    ],
    ids=["open", "closed far below", "closed in the next row", "two that open"],
)
def test_a_stray_quote_swallows_no_row(tmp_path, capsys, notes, words):
    refused_by_all(written(tmp_path, table(notes)), words, capsys)


def test_texts_of_several_lines_are_read_and_keep_their_lines(tmp_path, capsys):
    note = '"one, said\n""two"" ' + "x" * 12_000 + '\n\nthree"'
    path = written(tmp_path, table(dict.fromkeys(range(100), note)))
    with path.open("a") as file:
        file.write("\n" * 3 + table({0: note}, ROWS * 100).partition("\n")[2])
    assert path.stat().st_size > 2**20
    data = loaded(path)
    assert len(data.train) + len(data.test) == 10_100
    assert main(["check", str(path)]) == 0
    path.write_text(path.read_text() + "x,M,1,\n")
    assert main(["check", str(path)]) == 1
    assert "line 10408: column 'age' holds 'x'" in capsys.readouterr().out


def test_the_parser_and_the_lines_agree_with_python_on_any_text(tmp_path, monkeypatch):
    """On random texts of quotes, separators and line ends, the reader finds the rows of Python's reader."""
    rng, path, compared, refusals = random.Random(0), tmp_path / "t.csv", 0, []
    for _ in range(300):
        monkeypatch.setattr(text_files, "BLOCK", rng.choice([1, 2, 3, 7, 64]))
        letters = rng.choice(['ab,"\n\r', 'ab"\n', 'é,"\n \r'])
        text = "a,b,c\n" + "".join(rng.choices(letters, k=rng.randint(0, 40)))
        path.write_bytes(text.encode())
        reader, begins, expected = csv.reader(StringIO(text, newline="")), 1, []
        for row in reader:
            expected += [(begins, row)] if row else []
            begins = reader.line_num + 1
        found: list[tuple[int, list[str]]] = []
        uneven: list[tuple[int, int]] = []
        try:
            file = open_table(path, "t", TableForm(row_test=lambda names: lambda fields: False))
            for batch in file.batches(file.names, lambda line, values: uneven.append((line, values))):  # noqa: B023
                columns = [batch.cells[name].to_pylist() for name in file.names]
                found += zip(batch.lines.tolist(), map(list, zip(*columns, strict=True)), strict=True)
        except LearningError as error:
            refusals.append(str(error))
            continue
        if len(file.names) > 3:
            continue  # Rows of these letters end in a separator.
        compared += 1
        assert found == [(line, row) for line, row in expected[1:] if len(row) == 3]
        assert uneven == [(line, len(row)) for line, row in expected[1:] if len(row) != 3]
    assert compared > 100
    assert all("is not closed" in each or "a text follows it" in each for each in refusals)


def test_a_parser_that_loses_a_row_is_found_out(tmp_path, monkeypatch):
    from gdpfed.learning.data import table_file

    read = table_file._read
    monkeypatch.setattr(table_file, "_read", lambda *given: read(*given)[: 99 if len(given) == 5 else None])
    with pytest.raises(
        LearningError, match="the parser finds 99 rows in lines 2 to 101, and lines .* say 100"
    ):
        loaded(written(tmp_path, table()))


def test_long_cells_other_encodings_and_capital_endings_are_read(tmp_path):
    text = table({3: "x" * 200_000})
    for name, data, more in (
        ("long.CSV", text.encode(), ""),
        ("wide.csv", text.encode("utf-16"), "encoding: utf-16\n"),
        ("marked.csv", text.encode("utf-8-sig"), ""),
        ("old.csv", text.replace("\n", "\r").encode(), ""),
    ):
        data = loaded(written(tmp_path, data, COLUMNS + more, name))
        assert len(data.train) + len(data.test) == 100


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        (gzip.compress(table().encode())[:-20], "", "cannot be unpacked .*: pack it again"),
        (b"\xd0\xcf\x11\xe0" + bytes(range(256)), "", "an old Excel file: save it as CSV"),
        (table().replace("M,", "M\0,", 1).encode(), "", "byte 0 in line 2"),
        (
            table().replace("ok", "\x81", 1).encode("latin-1"),
            "",
            "byte 0x81 in line 2 is neither utf-8 nor cp",
        ),
        (table().partition("\n")[2].encode(), "", "Is line 1 a row\\? Say header: "),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_kind(tmp_path, data, more, words):
    with pytest.raises(LearningError, match=words):
        loaded(written(tmp_path, data, COLUMNS + more))


def test_the_line_that_tells_excel_the_separator_is_passed_over(tmp_path, capsys):
    path = written(tmp_path, "sep=;\n" + table().replace(",", ";"), COLUMNS + "separator: ;\n")
    assert len(loaded(path).test) == 20
    assert main(["check", str(path)]) == 0
    assert "note: line 1 is Excel's sep=;: it is passed over" in capsys.readouterr().out
    first = tmp_path / "first.yaml"
    assert main(["columns", str(path), "--output", str(first)]) == 0
    assert "age: [LOW, HIGH]" in first.read_text()


NAMES = ["110105195003071001", "110105195003071002", "7", "007", "1e2", "100", "0x7", " 7 "]


@pytest.mark.parametrize("kind", ["csv", "texts", "numbers"])
def test_names_are_told_apart_by_every_letter(tmp_path, kind):
    names = ["110105195003071001", "110105195003071002", "7", "8"] if kind == "numbers" else NAMES
    rows = [(*row, names[number % len(names)]) for number, row in enumerate(ROWS[:80])]
    path = written(tmp_path, "", COLUMNS + "person: pid\n", "t.csv" if kind == "csv" else "t.parquet")
    age, sex, y, pid = map(list, zip(*rows, strict=True))
    if kind == "csv":
        path.write_text("age,sex,y,pid\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    else:
        own = [int(name) for name in pid] if kind == "numbers" else pid
        parquet.write_table(pa.table({"age": age, "sex": sex, "y": y, "pid": own}), path)
    *_, persons = read_own(path)
    assert len(np.unique(np.asarray(persons))) == len({name.strip() for name in names})


def test_names_as_numbers_that_are_not_told_apart_are_refused(tmp_path):
    path = written(tmp_path, "", COLUMNS + "person: pid\n", "t.parquet")
    cells = {"age": [1, 2], "sex": ["M", "F"], "y": [0, 1]}
    parquet.write_table(pa.table({**cells, "pid": [110105195003071001.0, 2.0]}), path)
    with pytest.raises(LearningError, match="'pid' holds 1.1010519500307.* as a floating-point number"):
        read_own(path)
    parquet.write_table(pa.table({**cells, "pid": [7.0, 2.0]}), path)
    in_csv = written(tmp_path, "age,sex,y,pid\n1,M,0,7\n2,F,1,2\n", COLUMNS + "person: pid\n")
    np.testing.assert_array_equal(np.asarray(read_own(path)[3]), np.asarray(read_own(in_csv)[3]))


def test_codes_that_look_like_numbers_are_values_of_their_own(tmp_path):
    columns = COLUMNS.replace("sex: [M, F]", "code: [12E4, '120000', '007', '7', '250', '250.0']")
    codes = ["12E4", "120000", "007", "7", "250", "250.0", "250.00", "7.0"]
    path = written(
        tmp_path, "age,y,code\n" + "".join(f"5,{at % 2},{code}\n" for at, code in enumerate(codes)), columns
    )
    found = np.asarray(read_own(path)[0])[:, 1:].argmax(axis=1).tolist()
    assert found[:6] == [0, 1, 2, 3, 4, 5]
    assert found[7] == 3


def test_dates_and_names_have_digits_of_one_script():
    form = DatedAs(DAYS_SINCE, date(1990, 1, 1), "%Y-%m-%d")
    assert written_date("1990-01-02", form) == (1, "")
    with pytest.raises(ValueError, match="digits that are not 0 to 9"):
        written_date("١٩٩٠-01-02", form)
    assert bare_name("Site ٧") == bare_name("site 7 (2)") != bare_name("site 8")


@pytest.mark.parametrize("text", ["4_5", "٤٥", "0x1F", "1e999", "infinity", "1.2.3", "--5"])
def test_numbers_are_in_the_grammar_of_decimal_numbers(tmp_path, text):
    with pytest.raises(LearningError, match="in row 1, which is not a number"):
        loaded(written(tmp_path, f"age,sex,y\n{text},M,1\n5,F,0\n"))


def test_numbers_are_read_as_python_reads_them(tmp_path):
    rng = random.Random(1)
    texts = [f"{rng.uniform(-200, 200):.{rng.randint(0, 17)}g}" for _ in range(500)] + [
        "+5",
        "5.",
        ".5",
        " 7 ",
        "",
    ]
    columns = COLUMNS.replace("[0, 110]", "[-200, 200]")
    path = written(tmp_path, "age,sex,y\n" + "".join(f"{each},M,1\n" for each in texts), columns)
    wanted = np.array([float(each or 0) / 200 for each in texts])
    np.testing.assert_allclose(np.asarray(read_own(path)[0])[:, 0], wanted.astype(np.float32), atol=1e-7)


def test_a_mark_of_missing_values_is_none_where_it_is_a_value(tmp_path, capsys):
    columns = (
        "label: {column: y, classes: ['0', '1']}\nmissing: ['0']\n"
        "numeric: {preg: [0, 17], glucose: [40, 200], bmi: {range: [-10, 60], missing_marks: ['0', '-9']}}\n"
    )
    path = written(tmp_path, "preg,glucose,bmi,y\n" + "0,0,0,0\n17,200,-9.0,1\n" * 5, columns)
    data = loaded(path)
    assert sorted(set(map(tuple, data.train.take(np.arange(8)).x.tolist()))) == [(-1, 0, 0), (1, 1, 0)]
    assert main(["check", str(path)]) == 0
    words = "column 'preg': 0 lies in its range, so it is a number there and not a missing value"
    assert words in capsys.readouterr().out
    task = task_of(load(["dataset=csv", f"dataset.path={path}", "dataset.num_clients=1"]))
    assert any(words in line for line in data_warnings(task))


def test_errors_are_against_labels_as_they_are(tmp_path):
    """Labels beyond their declared range enter the measured error with the values that the file states."""
    columns = "label: {column: los, range: [0, 30]}\nnumeric: {age: [0, 110]}\n"
    hours = [24 * (2 + number % 25) for number in range(100)]
    text = "age,los\n" + "".join(f"{number % 90},{los}\n" for number, los in enumerate(hours))
    path = written(tmp_path, text, columns)
    said = ["dataset=csv", f"dataset.path={path}", "dataset.num_clients=1", "dataset.loss=squared_error"]
    task = task_of(load([*said, "dataset.partition=iid"]))
    data = task.load()
    assert set(data.train.y.tolist()) == {1.0}
    assert (data.cut_labels, int(data.beyond_range.sum()), len(data.test)) == (80, 20, 20)
    (said_of_it,) = [line for line in data_warnings(task) if "beyond their range" in line]
    assert "80 of 80 labels to train on and 20 of 20 to test on lie beyond their range, 0 to 30" in said_of_it
    theta = np.zeros(task.dimension, np.float32)
    theta[-1] = 1.0
    measured = central_evaluation(task, "cpu")(theta).metrics["mean_absolute_error"]
    tested = (data.test.y + 1) / 2 * 30
    assert measured is not None
    assert measured == pytest.approx(np.abs(30 - tested).mean(), rel=1e-5)
    assert measured > 200


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("us", "Asia/Tokyo"), pa.date64()])
def test_a_day_beyond_the_calendar_is_a_fault_of_its_row(tmp_path, capsys, kind):
    columns = COLUMNS.replace("age: [0, 110]", "age: {range: [0, 110], age_on: 2026-01-01}")
    path = written(tmp_path, "", columns, "t.parquet")
    milliseconds = pa.array([0, 0, 2**49 // 86_400_000 * 86_400_000])
    days = milliseconds.cast(pa.timestamp("ms")).cast(kind)
    cells = {"age": days, "sex": ["M", "F", "M"], "y": [0, 1, 1]}
    parquet.write_table(pa.table(cells), path)
    with pytest.raises(
        LearningError, match=r"'age' holds 'day \d+ since 1970' in row 3, .* the years 1 to 9999"
    ):
        loaded(path)
    assert main(["check", str(path)]) == 1
    assert "line 3: column 'age' holds 'day" in capsys.readouterr().out
    assert main(["columns", str(path), "--output", str(tmp_path / "first.yaml")]) == 0


def test_days_are_the_same_numbers_in_every_type(tmp_path):
    columns = COLUMNS.replace("age: [0, 110]", "age: {range: [0, 110], age_on: 2026-01-01}")
    born = [date(1955, 3, 1), date(1969, 12, 31), date(2001, 2, 28), None]
    shown = [each.isoformat() if each else "" for each in born]
    found = []
    for name, ages in (
        ("a.parquet", pa.array(born)),
        ("b.parquet", pa.array(born).cast(pa.timestamp("ns"))),
        ("c.parquet", pa.array(shown)),
        ("d.csv", shown),
    ):
        path = written(tmp_path, "", columns, name)
        if name.endswith("csv"):
            path.write_text("age,sex,y\n" + "".join(f"{each},M,1\n" for each in shown))
        else:
            parquet.write_table(pa.table({"age": ages, "sex": ["M"] * 4, "y": [1] * 4}), path)
        found.append(np.asarray(read_own(path)[0])[:, 0].tolist())
    assert found == [found[0]] * 4


@pytest.mark.parametrize(
    "other", ["bonn.parquet", "Bonn.csv", "bonn (1).csv", "bonn - Copy.csv", "bonn .CSV"]
)
def test_two_files_of_one_party_are_refused(tmp_path, other):
    written(tmp_path, table(), COLUMNS, "bonn.csv")
    written(tmp_path, table(), COLUMNS, other)
    with pytest.raises(LearningError, match="name the same party: remove or rename one"):
        loaded(tmp_path)
    plan = ["plan", "dataset=csv", f"dataset.path={tmp_path}", "dataset.partition=natural"]
    budgets = ["privacy.budgets=clients", "privacy.client_budgets={bonn: 1}"]
    records = ["privacy=record_level", "method=dp_sum", "dataset.num_clients=2"]
    assert main([*plan, *records, *budgets]) == 2


def test_two_values_of_one_party_are_refused(tmp_path):
    columns = COLUMNS + "party: {column: site, values: [Bonn, bonn]}\n"
    with pytest.raises(LearningError, match="party has the values 'Bonn' and 'bonn', which name one party"):
        loaded(written(tmp_path, table(), columns))


def test_a_key_that_is_said_twice_is_named_with_its_lines(tmp_path, capsys):
    columns = COLUMNS + "numeric: {bmi: [10, 60]}\n"
    path = written(tmp_path, table(), columns)
    words = "columns.yaml: the key 'numeric' is there twice, in lines 2 and 4: say it once"
    with pytest.raises(LearningError, match=words):
        loaded(path)
    assert main(["check", str(path)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    with pytest.raises(LearningError, match="the key 'age' is there twice, in line 2"):
        loaded(written(tmp_path, table(), COLUMNS.replace("{age:", "{age: [0, 1], age:")))


AN_INDEX = "label: {column: y, range: [0, 10]}\nnumeric: {a: {range: [0, 10]}, b: {range: [0, 10]}}\n"
SEMICOLONS = "y;a;b\n"
NO_NAMES = "label: {column: a, range: [0, 10]}\ncategorical: {c: {values: [u, v], other: v}}\n"
A_PARTY = (
    'label: {column: y, classes: ["0", "1"]}\nnumeric: {a: {range: [0, 10]}}\n'
    "party: {column: site, values: [p, q]}\n"
)
A_NOTE = 'label: {column: y, classes: ["0", "1"]}\nnumeric: {a: {range: [0, 10]}}\n'


TWO_NOTES = "label: {column: y, range: [0, 10]}\nnumeric: {a: {range: [0, 10]}}\n"
MEASURES = (
    "label: {column: dia, range: [40, 200]}\nnumeric: {sys: {range: [40, 250]}, hr: {range: [40, 250]}}\n"
)


@pytest.mark.parametrize(
    ("declared", "files", "head", "rows", "first", "read"),
    [
        (
            AN_INDEX,
            "",
            '"y";"a";"b"\n',
            [f"{i};{i % 3};{9 - i};{i}" for i in range(2, 9)],
            ["1;1;3;4", "1;1;3;", "2;1;3;4"],
            1,
        ),
        (
            AN_INDEX,
            "",
            '"y";"a";"b"\n',
            [f'"{i}";{i % 3};4;2' for i in range(2, 9)],
            ['"1";1;3;4', '"1";1;3;'],
            1,
        ),
        (
            AN_INDEX,
            "",
            "y;a;b\n",
            [f"{2 * i};{i % 3};4;" for i in range(2, 6)],
            ["9;1;3;", "1;1;3;", '"1";1;3;', "1;2;3;4"],
            3,
        ),
        (
            AN_INDEX,
            "t: {unnamed: first}\n",
            "y;a;b\n",
            [f"{i};{i % 3};4;" for i in range(2, 6)],
            ["1;1;3;", "7;2;3;4", "x;2;3;4"],
            3,
        ),
        (
            NO_NAMES,
            "t: {header: [a, c]}\n",
            "",
            [f"{i},5;u" for i in range(1, 6)],
            ["2;u", "2,0;u", "2,0", "sep=,", "sep=;"],
            2,
        ),
        (
            NO_NAMES,
            "t: {header: [a, c]}\n",
            "",
            ["\ufeff1;u", "2;u"],
            ["\ufeff3;u", "3;u"],
            0,
        ),
        (A_PARTY, "", "a,y,note\n", [f"{i},{i % 2},n" for i in range(8)], ["8,0,n", "y,a,site"], 1),
        (
            TWO_NOTES,
            "",
            'y,"note\n(free)",a\n',
            [f"{i},n,{9 - i}" for i in range(6)],
            ["3,q,4", "y,q,a"],
            1,
        ),
        (A_NOTE, "", "a,y,note\n", ["5,1,5'10\"", "3,1,x"], ["4,0,tall", '4,0,"tall, thin'], 1),
        (TWO_NOTES, "", "a,y,n,m\n", ['5,1,z,", b"', "6,2,k,k"], ["4,0,z,x", '4,0,"x', '4,0,"x '], 1),
    ],
    ids=[
        *("index", "quoted index", "ends in a separator", "unnamed index", "no names"),
        *("byte order mark", "names of a party"),
        *("name of two lines", "stray quote", "quoted separator"),
    ],
)
def test_no_record_changes_how_the_head_of_a_file_and_the_other_rows_are_read(
    tmp_path, declared, files, head, rows, first, read
):
    (tmp_path / "columns.yaml").write_text(declared)
    if files:
        (tmp_path / "files.yaml").write_text(files)
    found = []
    for each in first:
        (tmp_path / "t.csv").write_text(head + "\n".join([each, *rows, ""]))
        try:
            x, y, *_ = read_own(tmp_path / "t.csv")
        except LearningError:
            continue
        assert x is not None
        assert y is not None
        found.append((x[1:], y[1:]))
    assert len(found) == read
    for x, y in found[1:]:
        assert np.array_equal(x, found[0][0])
        assert np.array_equal(y, found[0][1])


@pytest.mark.parametrize("start", [1, 101])
def test_a_running_number_in_rows_that_end_in_a_separator_is_refused_unless_the_site_says_what_it_is(
    tmp_path, start
):
    (tmp_path / "columns.yaml").write_text(MEASURES)
    rows = [f"{start + i};{70 + i};{120 + i};{60 + i};" for i in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["id;dia;sys;hr", *rows, ""]))
    with pytest.raises(
        LearningError, match="say in files.yaml which has no name, as in t: {unnamed: last}, or first"
    ):
        read_own(tmp_path / "t.csv")
    (tmp_path / "files.yaml").write_text("t: {unnamed: last}\n")
    np.testing.assert_allclose(np.asarray(read_own(tmp_path / "t.csv")[1]), (np.arange(70, 75) - 120) / 80)
    (tmp_path / "files.yaml").write_text("t: {unnamed: middle}\n")
    with pytest.raises(LearningError, match="'first', 'last'"):
        read_own(tmp_path / "t.csv")
