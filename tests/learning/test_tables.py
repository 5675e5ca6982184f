"""Tests of users' tables: how a declaration turns rows into records, and one-line errors for bad tables."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.columns import whole
from gdpfed.learning.data.cut import Cut, cut_warnings
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.declaration import read_columns
from gdpfed.learning.data.own import own_split
from gdpfed.learning.data.tabular import own_columns

DECLARED = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "numeric": {"age": [0, 100], "dose": {"range": [-1, 3], "missing": 3}},
    "categorical": {
        "ward": ["a", "b"],
        "drug": {"values": ["1", "2", "rest"], "other": "rest", "missing": "1"},
    },
    "party": {"column": "site", "values": ["north", "south"]},
    "record_group": {"column": "consent", "values": ["strict", "open"]},
    "missing": ["?"],
}
NAMES = ("ill", "age", "dose", "ward", "drug", "site", "consent")
ROWS = [
    ("no", 50, 1, "a", 1, "south", "open"),
    ("yes", "100", "?", "b", "2.0", "north", "strict"),
    ("no", -20, "", "", "x", "south", "open"),
    ("yes", " 0 ", "7", "a", "?", "north", "open"),
]
INPUTS = [
    # age, dose, ward a, ward b, drug 1, drug 2, the rest
    [0, 0, 1, 0, 1, 0, 0],
    [1, 1, 0, 1, 0, 1, 0],
    [-1, 1, 0, 0, 0, 0, 1],
    [-1, 1, 1, 0, 1, 0, 0],
]


def write(folder, rows=ROWS, *, name="data.csv", names=NAMES, **changes):
    declared = {key: value for key, value in (DECLARED | changes).items() if value is not None}
    (folder / "columns.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
    write_rows(folder / name, rows, names)
    return folder / name


def write_rows(path, rows, names=NAMES):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    else:
        import pyarrow as pa
        from pyarrow import parquet

        texts = [
            [str(value) if value != "" else None for value in column] for column in zip(*rows, strict=True)
        ]
        parquet.write_table(pa.table(dict(zip(names, texts, strict=True))), path)


def loaded(path, **settings):
    return load_dataset(DataSource("csv", str(path), **settings))


def refused(path, words, **settings):
    with pytest.raises(LearningError, match=words) as raised:
        loaded(path, **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_becomes_what_is_declared_of_it(tmp_path, kind):
    path = write(tmp_path, name=f"data.{kind}", test={"column": "site", "values": ["south"]}, party=None)
    data = loaded(path)
    np.testing.assert_array_equal(data.test.x, np.array([INPUTS[0], INPUTS[2]], dtype=np.float32))
    np.testing.assert_array_equal(data.train.x, np.array([INPUTS[1], INPUTS[3]], dtype=np.float32))
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([1, 1], [0, 0])
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([0, 1], [1, 1])
    assert data.train.take(np.array([1])).groups.tolist() == [1]
    assert (data.train.x.dtype, data.num_classes, data.owners) == (np.dtype(np.float32), 2, None)


def test_parquet_has_numbers_truths_and_nothing_as_well(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = write(
        tmp_path, [], name="data.csv", categorical={"ward": ["True", "False"]}, party=None, record_group=None
    )
    columns = {
        "ill": ["no", "yes"] * 5,
        "age": [25, None] * 5,
        "dose": [1.0, 3.0] * 5,
        "ward": [True, None] * 5,
    }
    parquet.write_table(pa.table(columns), tmp_path / "data.parquet")
    data = loaded(path.with_suffix(".parquet"))
    rows = {tuple(row) for row in np.concatenate([data.train.x, data.test.x]).tolist()}
    assert rows == {(-0.5, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 0.0)}


def test_a_record_is_read_alike_whatever_the_others_are(tmp_path):
    """How a record of a table is read does not depend on the table's other records."""
    rng = np.random.default_rng(0)
    rows = [
        (
            rng.choice(["no", "yes"]),
            rng.normal(50, 40),
            rng.normal(),
            rng.choice(["a", "b", "?"]),
            "q",
            "south",
            "open",
        )
        for _ in range(40)
    ]
    test = {"column": "site", "values": ["north"]}
    held_out = [ROWS[1]]
    (tmp_path / "few").mkdir()
    whole = loaded(write(tmp_path, [*rows, *held_out], test=test, party=None))
    few = loaded(write(tmp_path / "few", [*rows[::3], *held_out], test=test, party=None))
    np.testing.assert_array_equal(whole.train.x[::3], few.train.x)


def test_parties_of_a_column_and_of_a_folder_are_the_same(tmp_path):
    rows = [row for row in ROWS for _ in range(10)]
    column = loaded(write(tmp_path, rows), test_fraction=0.25)
    folder = tmp_path / "parties"
    folder.mkdir()
    write(folder, [], party=None, names=NAMES, name="unused.csv").unlink()
    for site in ("north", "south"):
        write_rows(folder / f"{site}.csv", [row for row in rows if row[5] == site])
    files = loaded(folder, test_fraction=0.25)
    for data in (column, files):
        assert data.owner_names == ("north", "south")
        assert (len(data.train), len(data.test)) == (30, 10)
        assert np.bincount(data.owners).tolist() == [15, 15]
        assert np.bincount(data.test_owners).tolist() == [5, 5]
    np.testing.assert_array_equal(column.train.x, files.train.x)
    task = task_of_table(tmp_path / "data.csv", 2)
    assert set(task.client_data(0).y) == {1}
    assert set(task.client_data(0).groups) == {0, 1}


def task_of_table(path, num_clients, *overrides):
    from conf.load import load

    return task_of(
        load(["dataset=csv", f"dataset.path={path}", f"dataset.num_clients={num_clients}", *overrides])
    )


def test_a_test_file_of_its_own(tmp_path):
    path = write(tmp_path)
    write_rows(tmp_path / "test.csv", ROWS[:2])
    data = loaded(path, test_path=str(tmp_path / "test.csv"))
    assert (len(data.train), len(data.test), data.test_owners.tolist()) == (4, 2, [0, 1])
    refused(path, "test_fraction both say what is for testing", test_path=str(path), test_fraction=0.5)


def test_labels_that_are_numbers_are_scaled_by_their_range(tmp_path):
    path = write(
        tmp_path,
        [row for row in ROWS for _ in range(5)],
        label={"column": "dose", "range": [0, 4]},
        numeric={"age": [0, 100]},
        missing_labels="drop",
    )
    data = loaded(path)
    assert (data.num_classes, data.target_range, data.train.y.dtype) == (1, (0, 4), np.dtype(np.float32))
    # What is learnt ends where the range ends; what is tested on is as it was measured.
    assert set(data.train.y.tolist()) == {-0.5, 1.0}
    assert set(data.test.y.tolist()) == {-0.5, 2.5}
    assert (data.cut_labels, data.left_out) == (int((data.train.y == 1).sum()), 10)


def test_what_a_declaration_cuts_is_counted_and_said(tmp_path):
    """Numbers beyond their declared range are clipped and counted, and a warning states how many."""
    path = write(tmp_path, ROWS * 5)
    data, cut = loaded(path), Cut(numbers_cut=10)
    assert Cut.of(data) == cut
    (said,) = cut_warnings(data)
    assert said.startswith("10 numbers in columns lie beyond their declared ranges, and count as their ends")
    write(tmp_path, ROWS * 5, party=None, incomplete_rows="drop")
    assert Cut.of_own(path, own_columns(path)) == Cut(rows_left_out=15)


def test_rows_that_lack_something_may_be_left_out(tmp_path):
    data = loaded(write(tmp_path, ROWS * 5, incomplete_rows="drop", party=None))
    assert len(data.train) + len(data.test) == 5
    labels = [("", *ROWS[0][1:]), *ROWS * 5]
    data = loaded(write(tmp_path, labels, name="b.csv", missing_labels="drop"))
    assert len(data.train) + len(data.test) == 20


def test_classes_may_be_made_of_several_values(tmp_path):
    rows = [(label, *ROWS[0][1:]) for label in "01234" * 4]
    data = loaded(
        write(
            tmp_path, rows, label={"column": "ill", "classes": {"no": ["0"], "yes": list("1234")}}, party=None
        )
    )
    assert np.bincount(np.concatenate([data.train.y, data.test.y])).tolist() == [4, 16]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, "perhaps", r"data.csv: column 'ill' holds 'perhaps' in row 2, which is not one of no, yes"),
        (0, "?", r"row 2 has no label in the column 'ill': declare missing_labels: drop"),
        (1, "old", r"column 'age' holds 'old' in row 2, which is not a number"),
        (1, "inf", r"column 'age' holds 'inf' in row 2, which is not a number"),
        (
            3,
            "c",
            r"column 'ward' holds 'c' in row 2, which is not one of a, b: correct it, say values in",
        ),
        (5, "west", r"column 'site' holds 'west' in row 2, which is not one of north, south"),
        (6, "", r"column 'consent' is empty in row 2, which is not one of strict, open"),
    ],
)
def test_a_value_that_is_not_declared_is_named(tmp_path, place, value, words):
    rows = [list(row) for row in ROWS]
    rows[1][place] = value
    refused(write(tmp_path, rows), words)


def test_a_row_keeps_its_number_where_others_are_left_out(tmp_path):
    rows = [("", *ROWS[0][1:]), ROWS[0], ("no", "old", *ROWS[0][2:])]
    refused(write(tmp_path, rows, missing_labels="drop"), "holds 'old' in row 3,")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ill,age\nno,1\n", r"data.csv lacks the column 'dose'; it has ill, age"),
        ("ill,age,dose,ward,drug,site,consent,age\n", "has twice the column 'age'"),
        ("", "data.csv cannot be read as a table: the file is empty"),
        ("ill,age,dose,ward,drug,site,consent\n", "data.csv has no rows with data"),
        (
            "ill,age,dose,ward,drug,site,consent\nno,1\n",
            "data.csv: line 2 has 2 values, and the header has 7",
        ),
        ("ill;age\nno;1\n", "lacks the column 'dose'; it has ill, age"),
    ],
)
def test_files_that_are_no_such_table(tmp_path, text, words):
    path = write(tmp_path)
    path.write_text(text)
    refused(path, words)


def test_files_that_are_not_there(tmp_path):
    refused(tmp_path / "none.csv", "none.csv does not exist: name a CSV or Parquet file, or a folder")
    with pytest.raises(LearningError, match="dataset.path is not set"):
        load_dataset(DataSource("csv"))
    (tmp_path / "data.csv").write_text("a\n1\n")
    refused(tmp_path / "data.csv", "dataset.columns is not set, and .* has no columns.yaml: name the file")
    refused(tmp_path / "data.csv", "none.yaml cannot be read", columns=str(tmp_path / "none.yaml"))
    write(tmp_path, [])
    (tmp_path / "data.parquet").write_bytes(b"no parquet")
    refused(tmp_path / "data.parquet", "data.parquet cannot be read as a table")
    (tmp_path / "data.txt").write_text("a\n")
    refused(
        tmp_path / "data.txt", r"must end in .csv, .tsv, .*, .xlsm or .sql \(.csv or .tsv may be compressed"
    )
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no file that ends in", columns=str(tmp_path / "columns.yaml"))


def test_parties_without_records_are_named(tmp_path):
    south = [row for row in ROWS if row[5] == "south"]
    refused(write(tmp_path, south * 5), "party 'north' has no records to train on: give it some, or leave it")
    refused(
        write(tmp_path, ROWS, test={"column": "site", "values": ["x"]}, party=None), "no records to test on"
    )
    refused(
        tmp_path / ".",
        "has a file for each party, and the column 'site' says",
        columns=str(write(tmp_path).with_name("columns.yaml")),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": None}, "columns.yaml lacks the key 'label'"),
        ({"label": {"column": "ill"}}, "label must have classes, or a range where it is a number"),
        ({"label": {"column": "ill", "classes": ["no"]}}, "label.classes is .* two classes or more"),
        ({"label": {"column": "ill", "classes": {"a": ["1"], "b": ["1.0"]}}}, "each of values of its own"),
        ({"numeric": {"age": [100, 0]}}, r"numeric.age is .* two numbers, the lower first, as in \[0, 100\]"),
        ({"numeric": {"age": ["a", 3]}}, "numeric.age is 'a'; it must be a number"),
        ({"numeric": {"age": {"missing": 3}}}, "lacks the key 'numeric.age.range'"),
        (
            {"numeric": {"age": "0-100"}},
            r"numeric.age is '0-100'; it must be \[0, 100\], or keys with values: range, missing, age_on",
        ),
        (
            {"categorical": {"sex": "f"}},
            r"categorical.sex is 'f'; it must be \[a, b\], or keys with values: values, other, missing",
        ),
        ({"categorical": {"ward": ["a", "a"]}}, "categorical.ward is .* no value occurs twice"),
        (
            {"categorical": {"ward": {"values": ["a"], "other": "z"}}},
            "other is 'z'; it must be one of a",
        ),
        ({"numeric": None, "categorical": None}, "declares no column under numeric or categorical"),
        ({"categorical": {"age": ["a"]}}, "declares the column 'age' twice"),
        ({"separator": "x"}, "separator is 'x'; it must be one of ',', ';'"),
        ({"colour": ["a"]}, "key 'colour' is not known: use label, numeric, categorical"),
        ({"party": ["north"]}, "party is .* keys with values: column, values"),
    ],
)
def test_declarations_that_cannot_be_used(tmp_path, changes, words):
    refused(write(tmp_path, **changes), words)


def test_a_declaration_that_is_no_yaml(tmp_path):
    path = write(tmp_path)
    (tmp_path / "columns.yaml").write_text("label: [")
    refused(path, "columns.yaml: this is not YAML")
    (tmp_path / "columns.yaml").write_text("")
    refused(path, "the file is '?.*'?; it must be keys with values")


def test_words_that_yaml_takes_for_truths_are_words(tmp_path):
    (tmp_path / "columns.yaml").write_text("label: {column: y, classes: [no, yes]}\nnumeric: {a: [0, 1]}\n")
    assert read_columns(tmp_path / "columns.yaml").class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("value", "text"), [("1.0", "1"), ("007", "007"), ("12E4", "12E4"), ("0x7", "0x7"), ("1.50", "1.50")]
)
def test_values_are_compared_as_texts_but_for_a_fraction_of_zeros(value, text):
    assert whole(value) == text


def test_a_table_in_other_places_and_settings(tmp_path):
    path = write(tmp_path, [row for row in ROWS for _ in range(5)])
    refused(path, "dataset.image_size=3 has no meaning for data set 'csv'", image_size=3)
    task = task_of_table(path, 2)
    assert task.build_model().get_parameter("linear.weight").shape == (2, 7)
    with pytest.raises(LearningError, match="num_clients=3 is more than the 2 clients that the data has"):
        task_of_table(path, 3).client_indices(0)


def test_a_node_reads_its_own_table_by_its_own_declaration(tmp_path):
    data = loaded(write(tmp_path, [row for row in ROWS for _ in range(5)]))
    form = ExampleForm.of(data)
    own = tmp_path / "own"
    own.mkdir()
    names = tuple(name for name in NAMES if name != "site")
    write(
        own,
        [tuple(value for name, value in zip(NAMES, row, strict=True) if name != "site") for row in ROWS],
        names=names,
    )
    split: Any = own_split(own / "data.csv", form)
    np.testing.assert_array_equal(split.x, np.array(INPUTS, dtype=np.float32))
    assert (split.y.tolist(), split.groups.tolist()) == ([0, 1, 0, 1], [1, 0, 1, 1])
    write(own, [], names=names, name="unused.csv", numeric={"age": [0, 90], "dose": [-1, 3]})
    with pytest.raises(LearningError, match="columns.yaml beside it declares other columns than"):
        own_split(own / "data.csv", form)
    Path(own / "columns.yaml").unlink()
    with pytest.raises(LearningError, match="columns.yaml cannot be read"):
        own_split(own / "data.csv", form)


def test_a_node_brings_labels_that_are_numbers(tmp_path):
    form = ExampleForm((2,), "float32", 1)
    np.savez(tmp_path / "own.npz", x_train=np.zeros((3, 2)), y_train=np.array([-1.0, 0.5, 1.0]))
    assert own_split(tmp_path / "own.npz", form).y.tolist() == [-1.0, 0.5, 1.0]
    np.savez(tmp_path / "own.npz", x_train=np.zeros((3, 2)), y_train=np.array([-1.0, 0.5, 1.5]))
    assert own_split(tmp_path / "own.npz", form).y.tolist() == [-1.0, 0.5, 0.0]
