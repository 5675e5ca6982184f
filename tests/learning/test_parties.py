"""Tests of how clients are counted, and of the warnings for repeated rows and for rows without a party."""

import tracemalloc

import numpy as np
import pytest

from conf.load import compose_options, load
from gdpfed.cli import main
from gdpfed.cli.settings_file import settings_in
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.declaration import read_columns, to_yaml
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.table_rows import Rows
from gdpfed.learning.data.tabular import Party, dataset_of

COLUMNS = "label: {column: y, classes: [0, 1]}\nnumeric: {age: [0, 100], bmi: [10, 60]}\n"
SITES = "party: {column: site, values: [bonn, jena, ulm]}\n"


def rows_of(count, seed=0, site="bonn"):
    rng = np.random.default_rng(seed)
    return [
        f"{a},{b:.2f},{a % 2},{site}"
        for a, b in zip(rng.integers(20, 90, count), rng.uniform(15, 45, count), strict=True)
    ]


def table(path, rows, header="age,bmi,y,site", columns=COLUMNS):
    path.parent.mkdir(exist_ok=True)
    (path.parent / "columns.yaml").write_text(columns)
    path.write_text("\n".join([header, *rows, ""]))
    return path


def notes_of(path):
    return [each.words for each in check_table(path, read_columns(path.with_name("columns.yaml")))[1]]


def clients(path, *more):
    return load(["dataset=csv", f"dataset.path={path}", *more]).dataset.num_clients


def test_there_are_as_many_clients_as_tables_or_parties_unless_it_is_said(tmp_path):
    for number in range(7):
        path = table(tmp_path / "seven" / f"{number}.csv", rows_of(12, number))
    (tmp_path / "seven" / ".~lock.0.csv").write_text("")
    assert clients(tmp_path / "seven") == 7
    assert clients(tmp_path / "seven", "dataset.num_clients=6") == 6
    assert clients(tmp_path / "seven", "dataset.partition=iid") == 7
    shared = table(tmp_path / "shared" / "all.csv", rows_of(9), columns=COLUMNS + SITES)
    assert clients(shared) == 3
    assert clients(path, f"dataset.columns={shared.with_name('columns.yaml')}") == 3
    shared.unlink()
    assert clients(shared.parent) == 3  # A server without rows, whose nodes have them.


def test_where_nobody_says_whose_rows_are_it_is_asked_for(tmp_path, capsys):
    path = table(tmp_path / "t" / "a.csv", rows_of(12))
    words = r"a.csv does not say which party has which rows: declare party in columns.yaml, or "
    with pytest.raises(LearningError, match=words):
        clients(path)
    assert clients(path, "dataset.num_clients=4") == 4
    assert main(["plan", "dataset=csv", f"dataset.path={path}"]) == 2
    assert "to divide rows that belong to no party, set dataset.partition=iid" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["plan", "dataset=csv"]) == 2
    assert "dataset.path is not set: name a table" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "t" / "columns.yaml").write_text("label: [")
    with pytest.raises(LearningError, match=r"columns.yaml"):
        clients(path)


def test_a_new_file_of_settings_has_the_parties_of_the_folder(tmp_path):
    for name in ("bonn", "jena"):
        table(tmp_path / "two" / f"{name}.csv", rows_of(12))
    file = tmp_path / "mine.yaml"
    assert main(["new", str(file), "--yes", "--data", "csv", "--path", str(tmp_path / "two")]) == 0
    assert "dataset.num_clients=2" in settings_in(file)
    assert main(
        [
            "new",
            str(tmp_path / "b.yaml"),
            "--yes",
            "--data",
            "csv",
            "--path",
            str(tmp_path / "two" / "bonn.csv"),
        ]
    )
    assert dict(compose_options(["dataset=digits"]).dataset)["num_clients"] == 360


def test_rows_of_no_party_are_left_out_where_that_is_declared(tmp_path):
    rows = [*rows_of(9), *rows_of(5, 1, ""), *rows_of(9, 2, "jena"), *rows_of(9, 3, "ulm")]
    path = table(tmp_path / "t" / "all.csv", rows, columns=COLUMNS + SITES)
    with pytest.raises(
        LearningError,
        match="'site' is empty in row 10, so the row's party is not known.* missing_parties: drop",
    ):
        load_dataset(DataSource("csv", str(path)))
    said = next(each for each in notes_of(path) if "the row's party is not known" in each)
    assert said.startswith("column 'site' is empty")
    without = read_columns(path.with_name("columns.yaml"))
    columns = path.with_name("columns.yaml")
    columns.write_text(COLUMNS + SITES + "missing_parties: drop\n")
    declared = read_columns(columns)
    assert declared.digest != without.digest
    (tmp_path / "again.yaml").write_text(to_yaml(declared))
    assert read_columns(tmp_path / "again.yaml").digest == declared.digest
    data = load_dataset(DataSource("csv", str(path)))
    assert (len(data.train) + len(data.test), data.left_out) == (27, 5)
    assert "5 of 32 rows are left out, as declared" in notes_of(path)
    # At a node all rows are its own.
    own = read_own(path)[0]
    assert own is not None
    assert len(own) == 32
    columns.write_text(COLUMNS + "missing_parties: drop\n")
    with pytest.raises(LearningError, match="missing_parties says what to do without a party: declare party"):
        read_columns(columns)


def test_rows_that_repeat_are_noted_but_where_few_columns_tell_them_apart(tmp_path):
    rows = rows_of(40)
    numbered = [f"{at},{row}" for at, row in enumerate([*rows, *rows[:7]])]
    path = table(tmp_path / "t" / "a.csv", numbered, "row,age,bmi,y,site")
    assert [each for each in notes_of(path) if "repeat another row" in each] == [
        "7 of 47 rows repeat another row in all declared columns: are they copies, or has a person several "
        "rows? Each row is protected by itself; leave copies out, or declare person"
    ]
    path = table(tmp_path / "one" / "a.csv", numbered[:41], "row,age,bmi,y,site")
    (note,) = [each for each in notes_of(path) if "repeat" in each]
    assert note.startswith("1 of 41 rows repeats another row in all declared columns: is it a copy, or has a")
    path.with_name("columns.yaml").write_text(COLUMNS + "person: row\n")
    assert not [each for each in notes_of(path) if "repeat" in each]
    path = table(tmp_path / "t" / "b.csv", [f"{at % 2},20,{at % 2},bonn" for at in range(30)])
    assert not [each for each in notes_of(path) if "repeat" in each]


@pytest.mark.parametrize(
    ("name", "values", "noted"),
    [
        ("mrn", [at // 3 for at in range(90)], "the column 'mrn' repeats and is not declared"),
        ("uniquePid", [f"{at // 2}-x" for at in range(90)], "the column 'uniquePid' repeats"),
        (
            "kennung",
            [f"P{at // 3:05}" for at in range(90)],
            "column 'kennung' looks like an id: 30 different",
        ),
        (
            "hash",
            [f"{at // 2 * 0x9E3779B9 % 2**32:08x}0" for at in range(90)],
            "column 'hash' looks like an id",
        ),
        ("mrn", range(90), None),
        ("kennung", [f"P{at:05}" for at in range(90)], None),
        ("year", [2000 + at % 9 for at in range(90)], None),
        ("dose", [f"{at % 40}.25" for at in range(90)], None),
        ("note", [f"seen on day {at // 2}" for at in range(90)], None),
        ("ward", [f"W{100 + at % 3}" for at in range(90)], None),
    ],
)
def test_columns_that_look_like_numbers_of_persons_are_noted(tmp_path, name, values, noted):
    rows = [f"{row},{value}" for row, value in zip(rows_of(90), values, strict=True)]
    found = [
        each
        for each in notes_of(table(tmp_path / "t" / "a.csv", rows, f"age,bmi,y,site,{name}"))
        if name in each
    ]
    assert found[0].startswith("not declared, and not read")
    assert [each[: len(noted or "")] for each in found[1:]] == ([noted] if noted else [])
    assert all(f"declare person: {name}" in each for each in found[1:])


def test_an_input_that_looks_like_a_number_of_a_person_is_noted(tmp_path):
    columns = COLUMNS.replace("bmi: [10, 60]", "patient_id: [0, 100]")
    path = table(tmp_path / "t" / "a.csv", rows_of(12), "age,patient_id,y,site", columns)
    assert any(
        each.startswith("column 'patient_id' looks like an id and is an input") for each in notes_of(path)
    )


@pytest.mark.parametrize("count", [1, 8])
def test_parties_are_given_up_while_they_are_split(tmp_path, count):
    """While parties' tables are joined into one data set, memory stays below 2.5 times that of the result."""
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    columns = read_columns(tmp_path / "columns.yaml")
    tracemalloc.start()
    try:
        shape = (160_000 // count, 24)
        parties = [
            Party(str(at), Rows(np.ones(shape, np.float32), np.zeros(shape[0], np.int64), None, None, None))
            for at in range(count)
        ]
        data = dataset_of(parties, columns, None, "t")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data.train) + len(data.test) == 160_000
    assert parties == []
    assert peak < 2.5 * kept
