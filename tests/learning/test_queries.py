"""Tests of tables that a database query returns, from SQLite, DuckDB or PostgreSQL."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gdpfed.errors import InputError, LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data import DataSource, databases, load_dataset, query_file
from gdpfed.learning.data.declaration import read_columns
from gdpfed.learning.data.file_form import own_form
from gdpfed.learning.data.fingerprint import fingerprint
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.data.own_files import READERS, read_own
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.table_file import TableForm, open_table
from gdpfed.learning.data.text_cells import texts_of

DECLARED = 'label: {column: stays, classes: ["no", "yes"]}\nnumeric: {age: [0, 100]}\n'
QUERY = "-- of adults; all visits\nSELECT id, age, stays, note FROM visit WHERE age >= 18 ;\n"
VISITS = [
    (number, 10 + 5 * number % 80, "yes" if number % 3 else "no", f"it's {number};") for number in range(12)
]
COLUMNS = "id, age, stays, note"
PORT = 54329


def site(folder, database, query=QUERY, more=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "columns.yaml").write_text(DECLARED)
    (folder / "visits.sql").write_text(query)
    (folder / "files.yaml").write_text(f"visits: {{database: '{database}'{more}}}\n")
    return folder / "visits.sql"


def sqlite_file(folder, rows=VISITS, kind="integer"):
    with sqlite3.connect(folder / "clinic.sqlite") as connection:
        connection.execute(f"CREATE TABLE visit (id {kind}, age, stays text COLLATE NOCASE, note text)")
        connection.executemany("INSERT INTO visit VALUES (?, ?, ?, ?)", rows)
    connection.close()
    return "clinic.sqlite"


def parquet_folder(folder, rows=VISITS):
    (folder / "omop").mkdir(exist_ok=True)
    columns = dict(zip(COLUMNS.split(", "), zip(*rows, strict=True), strict=True))
    parquet.write_table(
        pa.table({name: list(values) for name, values in columns.items()}), folder / "omop/visit.parquet"
    )
    (folder / "omop/ward.csv").write_text("id;ward\n1;007\n2;8\n")
    return "omop"


def duckdb_file(folder, rows=VISITS):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(folder / "clinic.duckdb")) as connection:
        connection.execute("CREATE TABLE visit (id integer, age integer, stays text, note text)")
        connection.executemany("INSERT INTO visit VALUES (?, ?, ?, ?)", rows)
    return "clinic.duckdb"


DATABASES = [sqlite_file, parquet_folder, duckdb_file]


def refused(path, words):
    with pytest.raises(LearningError, match=words):
        read_own(path)


@pytest.mark.parametrize("database", DATABASES)
def test_rows_come_in_one_order_whatever_the_database_does(tmp_path, database):
    found = set()
    for place, rows in (("a", VISITS), ("b", VISITS[::-1])):
        (tmp_path / place).mkdir()
        x, y, *_ = read_own(site(tmp_path / place, database(tmp_path / place, rows)))
        adults = [visit for visit in VISITS if visit[1] >= 18]
        assert x is not None
        assert y is not None
        assert np.rint(50 * x[:, 0] + 50).tolist() == [age for _, age, _, _ in adults]
        assert y.tolist() == [int(stays == "yes") for _, _, stays, _ in adults]
        found.add(fingerprint(x, y))
    assert len(found) == 1


def test_a_query_is_a_table_wherever_one_is(tmp_path):
    """A run and `gdpfed check` read a query as a table; in a folder of tables, the query is one party."""
    assert "sql" in READERS.names()
    (tmp_path / "all").mkdir()
    path = site(tmp_path / "all", sqlite_file(tmp_path / "all"))
    data = load_dataset(DataSource("csv", str(path)))
    assert len(data.train) + len(data.test) == 10
    rows, findings = check_table(path, read_columns(path.with_name("columns.yaml")))
    assert (rows, [each.words for each in findings if each.is_fault]) == (10, [])
    assert "its rows are what SQLite answers, in the order of 'id'" in [each.words for each in findings]
    (path.parent / "ulm.csv").write_text("stays,age\nno,30\nyes,40\nno,50\nyes,60\nno,70\n")
    both = load_dataset(DataSource("csv", str(path.parent)))
    assert both.owner_names == ("ulm", "visits")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("DELETE FROM visit", "is 'DELETE': a query is one SELECT"),
        ("/* SELECT */ PRAGMA database_list", "is 'PRAGMA': a query is one SELECT"),
        ("ATTACH 'other.db' AS other", "is 'ATTACH'"),
        ("COPY visit TO 'out.csv'", "is 'COPY'"),
        ("SELECT 1 AS id; DROP TABLE visit", "is several statements"),
        ("SELECT 1) AS asked; DROP TABLE visit; SELECT * FROM (SELECT 2 AS id", "is several statements"),
        ("-- nothing", "is empty"),
        (
            "SELECT id, age, random() AS stays FROM visit",
            r"asks for random, which changes with every reading",
        ),
        ("SELECT id, date('now') AS age, stays FROM visit", "asks for 'now', which changes"),
        ("SELECT id, current_date - born AS age FROM visit", "asks for current_date, which changes"),
        ("SELECT id, age FROM visit", "lacks the column 'stays'"),
        ("SELECT id, note FROM visit", "lacks the column 'stays'; it has id, note$"),
        ("SELECT id, age, stays FROM visits", "cannot be answered: .*visits"),
        ("SELECT stays, age, id FROM visit", "the first column, 'stays', is the same in rows 1 and 2"),
        ("SELECT nullif(id, 3) AS id, age, stays FROM visit", "the first column, 'id', is empty in a row"),
        ("WITH x AS (DELETE FROM visit RETURNING *) SELECT * FROM x", "cannot be answered|is no query"),
    ],
)
@pytest.mark.parametrize("database", DATABASES)
def test_a_query_changes_nothing_and_says_what_rows_are(tmp_path, database, query, words):
    source = database(tmp_path)
    refused(site(tmp_path, source, query), words)
    assert len(read_own(site(tmp_path, source))[1]) == 10  # type: ignore[arg-type]


def test_a_query_that_looks_at_other_rows_is_noted(tmp_path):
    asked = "SELECT id, CAST(AVG(age) OVER (PARTITION BY stays) AS INT) AS age, stays FROM visit"
    notes = {}
    for query in (asked, QUERY.replace("note", "'over (x)'")):
        path = site(tmp_path, sqlite_file(tmp_path) if query == asked else "clinic.sqlite", query)
        rows, findings = check_table(path, read_columns(path.with_name("columns.yaml")))
        notes[query] = [each.words for each in findings]
        assert rows
    assert [any("looks at other rows (OVER)" in each for each in said) for said in notes.values()] == [
        True,
        False,
    ]


def test_words_in_texts_and_names_are_none(tmp_path):
    query = """SELECT id, age, stays, 'random(); now()' AS "current_date" FROM visit"""
    x, *_ = read_own(site(tmp_path, sqlite_file(tmp_path), query))
    assert len(x) == 12  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source",
    [
        "'{}/secret.csv'",
        "read_text('{}/secret.csv')",
        "glob('{}/*')",
        "read_csv('{}/secret.csv')",
        "(SELECT Delimiter AS id, Quote AS age, Escape AS stays FROM sniff_csv('{}/secret.csv'))",
    ],
)
@pytest.mark.parametrize("database", [parquet_folder, duckdb_file])
def test_a_query_reads_no_other_file(tmp_path, database, source):
    (tmp_path / "secret.csv").write_text("id,age,stays\n1,2,no\n")
    path = site(tmp_path, database(tmp_path), " ".join(("SELECT * FROM", source.format(tmp_path))))
    refused(path, "cannot be answered: Permission Error")


def test_sqlite_reads_no_other_file_and_calls_no_extension(tmp_path):
    path = site(tmp_path, sqlite_file(tmp_path), "SELECT load_extension('x') AS id, age, stays FROM visit")
    refused(path, "cannot be answered: not authorized")
    # What a query may do is asked for each of its parts, wherever the text hides it.
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE a (b)")
        connection.set_authorizer(databases._permission)
        for text in ("ATTACH 'x' AS y", "PRAGMA database_list", "DELETE FROM a", "CREATE TABLE c (d)"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                connection.execute(text)
        assert connection.execute("WITH x AS (SELECT 1) SELECT * FROM x").fetchall() == [(1,)]
    connection.close()


def test_csv_in_a_folder_is_text(tmp_path):
    query = "SELECT visit.id AS id, ward AS age, stays FROM visit JOIN ward ON ward.id = visit.id"
    path = site(tmp_path, parquet_folder(tmp_path), query)
    rows, findings = check_table(path, read_columns(path.with_name("columns.yaml")))
    assert rows == 2
    assert not [each for each in findings if each.is_fault]
    (tmp_path / "omop/visit.csv").write_text("id\n")
    refused(path, "omop has two files of the table visit: leave one out")
    shutil.rmtree(tmp_path / "omop")
    (tmp_path / "omop").mkdir()
    refused(path, "omop holds no Parquet and no CSV file for the query to read")


ROWS_OF_CSV = [
    f'{number},"{ward}",{20 + number % 50},{stays}'
    for number in range(60)
    for ward, stays in [("A", "no") if number % 2 else ("B", "yes")]
]


@pytest.mark.parametrize(
    "row", ['60,"C"x",50,no', '60,"C,50,no', "#60,C,50,no", '60,C"D,50,no', "60;C;50;no", "60,C,50,no"]
)
def test_no_row_of_a_csv_file_changes_how_a_query_reads_the_others(tmp_path, row):
    """The separator is that of the line of names, and quotes and comments are the same in any file."""
    (tmp_path / "omop").mkdir()
    path = site(tmp_path, "omop", "SELECT CAST(ltrim(id, '#') AS int) AS id, ward, age, stays FROM ward")
    declared = DECLARED + "categorical:\n  ward: {values: [A, B, others], other: others}\n"
    path.with_name("columns.yaml").write_text(declared)
    found: list[np.ndarray] = []
    for rows in (ROWS_OF_CSV, [*ROWS_OF_CSV, row]):
        (tmp_path / "omop/ward.csv").write_text("\n".join(["id,ward,age,stays", *rows, ""]))
        try:
            x, *_ = read_own(path)
        except LearningError:
            assert len(found) == 1
            assert row != "60,C,50,no"
            return
        assert x is not None
        found.append(x[: len(ROWS_OF_CSV)])
    before, after = found
    assert np.array_equal(before, after)


@pytest.mark.parametrize(
    "head",
    ["id;age;y", "id; age; y", "id ; age ; y", '"id"; "age"; "y"', "id; age (in years, whole ones); y"],
)
def test_the_separator_of_a_csv_file_may_stand_before_a_space(tmp_path, head):
    (tmp_path / "ward.csv").write_text(f"{head}\n1;20;0\n")
    assert databases._separator(tmp_path / "ward.csv") == ";"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [*ROWS_OF_CSV, "60,\xe4,30,no"],
            "CSV file ward.csv, line 62, which cannot be read: save it as UTF-8$",
        ),
        (
            [*ROWS_OF_CSV, "60,C,30"],
            "CSV file ward.csv which cannot be read: .*number of values in all lines",
        ),
        (ROWS_OF_CSV * 500 + ["60,C,30"], "ward.csv, line 30002, which cannot be .*number of values in all"),
        ([*ROWS_OF_CSV, "60,C\r,30"], "CSV file ward.csv which cannot be read: save it as UTF-8, with"),
    ],
)
def test_a_csv_file_of_a_query_that_cannot_be_read_says_why(tmp_path, rows, words):
    (tmp_path / "omop").mkdir()
    (tmp_path / "omop/ward.csv").write_bytes("\n".join(["id,ward,age,stays", *rows, ""]).encode("latin-1"))
    refused(site(tmp_path, "omop", "SELECT id, ward, age, stays FROM ward"), words)


def test_duckdb_names_a_person_as_the_other_databases_do(tmp_path):
    query = (
        "SELECT 1 AS id, CAST(7 AS DECIMAL(4, 2)) AS dose, TIMESTAMP '2020-03-01' AS day, "
        "CAST(30.5 AS DECIMAL(4, 2)) AS age"
    )
    path = site(tmp_path, parquet_folder(tmp_path), query)
    table = open_table(path, "t", TableForm(own_form(path), numbers=frozenset({"age"})))
    (batch,) = table.batches(["dose", "day", "age"])
    assert [batch.cells[name][0].as_py() for name in ("dose", "day")] == ["7", "2020-03-01"]
    assert float(batch.cells["age"][0].as_py()) == 30.5


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("[id]", "the first column, 'id', holds list<.*>, which cannot be compared: rows"),
        ("CAST('nan' AS DOUBLE) + id", "the first column, 'id', is empty in a row"),
    ],
)
def test_a_key_of_duckdb_that_tells_no_rows_apart_is_one_line(tmp_path, key, words):
    query = f"SELECT {key} AS id, age, stays FROM visit"  # noqa: S608
    refused(site(tmp_path, parquet_folder(tmp_path), query), words)


def test_keys_of_two_types_are_two(tmp_path):
    rows = [(7, 20, "no", ""), ("7", 30, "no", ""), (6.5, 40, "no", ""), ("6.5", 50, "no", "")]
    path = site(tmp_path, sqlite_file(tmp_path, rows, ""))
    assert len(read_own(path)[1]) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "text"), [("B-10", "B-10"), (9.5, "9.5"), (None, ""), (2**60, str(2**60)), (b"x", "x")]
)
def test_no_row_of_a_database_changes_who_another_person_is(tmp_path, other, text):
    """A person's number is a text that follows from its own cell alone, whatever stands in other rows."""
    rows = [(number, person, 20, "no") for number, person in enumerate([7, 7.0, 8, "7", other])]
    with sqlite3.connect(tmp_path / "clinic.sqlite") as connection:
        connection.execute("CREATE TABLE visit (id integer, patient, age, stays text)")
        connection.executemany("INSERT INTO visit VALUES (?, ?, ?, ?)", rows)
    connection.close()
    path = site(tmp_path, "clinic.sqlite", "SELECT * FROM visit")
    table = open_table(path, "t", TableForm(own_form(path), numbers=frozenset({"age"})))
    (batch,) = table.batches(["patient", "age"])
    assert texts_of(batch.cells["patient"], "patient", "t").texts.tolist() == ["7", "7", "8", "7", text]


def test_a_declared_decimal_comma_is_not_asked_of_numbers_beside_a_text(tmp_path):
    rows = [(1, 1.234, "no", ""), (2, 30.5, "yes", ""), (3, "NA", "no", "")]
    path = site(tmp_path, sqlite_file(tmp_path, rows), "SELECT id, age, stays FROM visit")
    found = []
    for text in ("decimal: '.'\n", "decimal: ','\n"):
        (tmp_path / "columns.yaml").write_text(DECLARED + text)
        found.append(read_own(path)[0])
    assert found[0] is not None
    assert found[1] is not None
    assert np.array_equal(found[0], found[1])


def test_another_query_and_another_way_to_read_are_another_rule_of_what_is_held_out(tmp_path):
    path = site(tmp_path, sqlite_file(tmp_path))
    rules = [OwnData(path, held_out_share=0.2).rule]
    path.write_text(QUERY.replace("age >= 18", "age >= 19"))
    rules.append(OwnData(path, held_out_share=0.2).rule)
    path.with_name("files.yaml").write_text("visits: {database: clinic.sqlite, missing: ['-9']}\n")
    rules.append(OwnData(path, held_out_share=0.2).rule)
    assert len(set(rules)) == 3
    assert OwnData(path, held_out_share=0.2).rule == rules[-1]


def test_what_a_query_takes_is_limited(tmp_path, monkeypatch):
    endless = (
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
        "SELECT max(id) AS id, 1 AS age, 'no' AS stays FROM n"
    )
    many = (
        "SELECT max(a.range * b.range) AS id, 1 AS age, 'no' AS stays FROM range(1000000) a, range(1000000) b"
    )
    folder = parquet_folder(tmp_path)
    with monkeypatch.context() as short:
        short.setattr(query_file, "Limits", lambda seconds, mebibytes: databases.Limits(0.1, mebibytes))
        for database, query in ((sqlite_file(tmp_path), endless), (folder, many)):
            refused(
                site(tmp_path, database, query),
                r"took more than 0.1 seconds: ask for less, or set more seconds",
            )
    large = "SELECT range AS id, repeat('x', 200) || range AS stays, 1 AS age FROM range(1000000)"
    refused(
        site(tmp_path, folder, large, ", mebibytes: 20"), "needs more than 20 MiB of memory: ask for less"
    )


@pytest.mark.parametrize(
    ("database", "more", "words"),
    [
        ("other.sqlite", "", "the database .*other.sqlite is not there: name another in files.yaml"),
        ("columns.yaml", "", "columns.yaml is not a file of SQLite or DuckDB"),
        ("x", ", seconds: 0", "visits.seconds is '0'; it must be a whole number from 1"),
        ("x", ", mebibytes: much", "it must be a number"),
    ],
)
def test_a_database_that_cannot_be_asked(tmp_path, database, more, words):
    refused(site(tmp_path, database, more=more), words)


def test_a_query_needs_a_database_and_a_table_none(tmp_path):
    path = site(tmp_path, "x")
    (tmp_path / "files.yaml").unlink()
    refused(path, "visits.sql is a query without a database: name one as database in files.yaml")
    path.write_bytes(b"SELECT '\xff'")
    refused(path, "is a query, and nobody|cannot be read as a query")
    (tmp_path / "visits.csv").write_text("age,stays\n1,no\n")
    path.unlink()
    site(tmp_path, "x").unlink()
    refused(tmp_path / "visits.csv", "database is for a query, and visits.csv is not a query: leave it out")


def test_a_password_is_neither_taken_nor_shown(tmp_path):
    pytest.importorskip("psycopg")
    for address in (
        "postgresql://reader:geheim@127.0.0.1:1/clinic",
        "postgresql://reader@127.0.0.1:1/clinic?password=geheim",
        "postgresql://reader:geheim@127.0.0.1:1/clinic?nonsense=1",
    ):
        with pytest.raises(
            LearningError, match=r"holds a password: take it out|cannot be read: write"
        ) as caught:
            read_own(site(tmp_path, address))
        assert "geheim" not in str(caught.value)
    refused(site(tmp_path, "postgresql://reader@127.0.0.1:1/clinic"), "cannot be answered: connection")


@pytest.mark.parametrize(
    ("module", "database"), [("duckdb", "omop"), ("psycopg", "postgresql://a@127.0.0.1:1/b")]
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, module, database):
    parquet_folder(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(databases, module, late_import(module))
    with pytest.raises(InputError, match=rf"needs the package {module}, .* install 'duckdb>=2' 'psycopg"):
        read_own(site(tmp_path, database))


@pytest.fixture
def postgres(tmp_path):
    """Start a PostgreSQL server on this machine with a table of visits, and yield its address."""
    psycopg = pytest.importorskip("psycopg")
    if shutil.which("initdb") is None or shutil.which("runuser") is None:
        pytest.skip("there is no PostgreSQL here")
    home = Path("/tmp") / f"gdpfed-{tmp_path.name}"  # noqa: S108 - another user must reach it
    home.mkdir()
    shutil.chown(home, "nobody")
    run = ["runuser", "-u", "nobody", "--"]
    try:
        make = ["initdb", "-D", f"{home}/data", "-U", "reader", "-A", "trust"]
        subprocess.run([*run, *make], check=True, capture_output=True)
        place = f"-p {PORT} -k {home} -h 127.0.0.1"
        start = ["pg_ctl", "-D", f"{home}/data", "-l", f"{home}/log", "-w", "-o", place, "start"]
        subprocess.run([*run, *start], check=True, stdout=subprocess.DEVNULL)
        address = f"postgresql://reader@127.0.0.1:{PORT}/postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE TABLE visit (id integer, age numeric(4, 1), stays text, note text)")
            connection.cursor().executemany("INSERT INTO visit VALUES (%s, %s, %s, %s)", VISITS[::-1])
        yield address
    finally:
        subprocess.run([*run, "pg_ctl", "-D", f"{home}/data", "-m", "immediate", "stop"], capture_output=True)
        shutil.rmtree(home)


@pytest.mark.slow
def test_postgresql_answers_as_the_others_and_changes_nothing(tmp_path, postgres):
    x, y, *_ = read_own(site(tmp_path, postgres))
    again = read_own(site(tmp_path, sqlite_file(tmp_path)))
    for found, other in ((x, again[0]), (y, again[1])):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(other))
    for query, words in (
        (
            "WITH x AS (DELETE FROM visit RETURNING *) SELECT * FROM x",
            "WITH clause containing a data-modifying",
        ),
        (
            "SELECT set_config('transaction_read_only', 'off', false) AS id, 1 AS age, 'no' AS stays",
            "must be set before any query",
        ),
        ("SELECT 1 AS id, 1 AS age, 'no' AS stays FROM pg_sleep(5)", "took more than 1 seconds"),
    ):
        refused(site(tmp_path, postgres, query, ", seconds: 1"), words)
    assert len(read_own(site(tmp_path, postgres))[1]) == 10  # type: ignore[arg-type]
