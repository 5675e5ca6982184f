"""Tests of a saved model: files, frames, arrays and ONNX predict the same; changed files are refused."""

import csv
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import gdpfed
from conf.load import load
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning import model_folder
from gdpfed.learning.data.declaration import read_columns, to_yaml
from gdpfed.learning.model_folder import save_declaration, save_model, save_weights
from gdpfed.learning.models import flatten

DECLARATION = """\
label: {column: ill, classes: {healthy: [0], disease: [1, 2]}}
numeric:
  age: {range: [0, 110], age_on: 2026-01-01}
  dose: {range: [-1, 3], missing: 3}
categorical:
  ward: [a, b]
  drug: {values: [x, rest], other: rest, missing: x}
party: {column: site, values: [north, south]}
person: patient
separator: ";"
decimal: ","
"""
ROWS = """\
ill;age;dose;ward;drug;site;patient
0;1956-01-01;0,5;a;x;north;1
2;1976-01-01;2,75;b;y;south;2
1;2001-07-01;NaN;;;south;3
0;1990-02-03;NA;a;;north;4
"""
NEW = """\
patient;drug;dose;age;ward
007;x;0,5;1956-01-01;a
008;;;1990-02-03;b
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a run whose model is not trained, with weights that are not zero."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "all.csv").write_text(ROWS)
    (folder / "new.csv").write_text(NEW)
    (folder / "columns.yaml").write_text(DECLARATION)
    return finished(folder, "dataset=csv", f"dataset.path={folder}/all.csv", "dataset.num_clients=2")


def finished(folder, *overrides):
    task = task_of(
        load([*overrides, "dataset.test_fraction=0.5"] if "dataset=csv" in overrides else overrides)
    )
    theta = np.linspace(-1, 1, len(flatten(task.build_model())), dtype=np.float32)
    if (columns := task.load().columns) is not None:
        save_declaration(folder, columns)
    save_model(folder, task, theta)
    return folder


@pytest.mark.parametrize(
    ("kept", "words"),
    [("patient,age", "; name each by itself, as in --keep patient --keep age"), ("patient,bed", "; it has ")],
)
def test_columns_to_keep_are_named_one_by_one(run, capsys, kept, words):
    assert main(["predict", str(run / "model"), str(run / "new.csv"), "--keep", kept]) == 2
    assert f"new.csv has no column '{kept}' to keep{words}" in capsys.readouterr().err


def test_files_frames_and_arrays_get_the_answer_of_the_weights(run, capsys):
    assert main(["predict", str(run / "model"), str(run / "new.csv"), "--keep", "patient"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    weights = load_file(run / "model" / "weights.safetensors")
    ages = np.array([25568.0, 13116.0]) / 365.25  # Days from 1956-01-01 and 1990-02-03 to 2026-01-01.
    x = np.array([[0, -0.25, 1, 0, 1, 0], [0, 1, 0, 1, 1, 0]])
    x[:, 0] = 2 * ages / 110 - 1
    scores = x @ weights["linear.weight"].T + weights["linear.bias"]
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = [[float(row["probability_healthy"]), float(row["probability_disease"])] for row in rows]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert [row["patient"] for row in rows] == ["007", "008"]
    assert [row["predicted"] for row in rows] == [["healthy", "disease"][k] for k in expected.argmax(axis=1)]
    frame = pd.DataFrame(
        {"ward": ["a", "b"], "dose": [0.5, np.nan], "age": pd.to_datetime(["1956-01-01", "1990-02-03"])}
    ).assign(drug=["x", None])
    array = np.array([["1956-01-01", 0.5, "a", "x"], ["1990-02-03", None, "b", None]], dtype=object)
    for data in (frame, frame.set_axis([5, 5]), dict(frame), array):
        answers: Any = gdpfed.load_model(run).predict(data).probabilities
        np.testing.assert_allclose(answers, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("dose", "doze"),
            "lacks dose and has doze too much: the model takes age, dose, ward, drug; is 'doze'",
        ),
        (("0,5", "0.5.5"), "new.csv: line 2: column 'dose' holds '0.5.5', which is not a number"),
        (
            ("1956-01-01", "1.1.56"),
            "line 2: column 'age' holds '1.1.56', which is not a date of the form ISO 8601",
        ),
        ((";a\n", ";c\n"), "line 2: column 'ward' holds 'c', which is not one of a, b"),
        (("008;;", "008;"), "line 3: 4 values, and the header has 5 (--skip predicts the others)"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(run, tmp_path, capsys, change, message):
    (tmp_path / "new.csv").write_text(NEW.replace(*change))
    keep = ["--keep", "patient"] if change[0] != "patient" else []
    assert main(["predict", str(run), str(tmp_path / "new.csv"), *keep]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_undeclared_columns_are_not_read_and_bad_rows_are_left_out_if_asked(run, tmp_path, capsys):
    lines = NEW.splitlines()
    rows = [*lines[1:], lines[1].replace("1956-01-01", "1.1.56")]
    (tmp_path / "new.csv").write_text("\n".join([f"{lines[0]};room", *(f"{row};7" for row in rows), ""]))
    words = ["predict", str(run), str(tmp_path / "new.csv"), "--output", str(tmp_path / "p.csv")]
    assert main(words) == 2
    capsys.readouterr()
    assert main([*words, "--skip"]) == 0
    said = capsys.readouterr()
    assert "new.csv: not declared, and not read: room" in said.err
    assert f"line {len(lines) + 1} is left out: column 'age' holds '1.1.56', which is not a date" in said.err
    assert f"The predictions of {len(lines) - 1} rows are in" in said.out
    whole = (tmp_path / "p.csv").read_text()
    (tmp_path / "new.csv").write_text("\n".join([*lines[:2], ""]))
    assert main(["predict", str(run), str(tmp_path / "new.csv"), "--output", str(tmp_path / "one.csv")]) == 0
    assert "The predictions of 1 row are in" in capsys.readouterr().out
    assert main(["predict", str(run), str(run / "new.csv")]) == 0
    assert capsys.readouterr().out == whole


def test_the_very_table_that_trained_is_predicted_as_a_file_and_as_a_frame(run, capsys):
    assert main(["predict", str(run), str(run / "all.csv")]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(said.out.splitlines()))
    note = "column 'drug': 1 of 4 are 'y', which is not declared, and count as 'rest'"
    assert said.err.splitlines() == [f"gdpfed: {run / 'all.csv'}: {note}"]
    frame = pd.read_csv(run / "all.csv", sep=";", decimal=",").assign(room=range(4))
    frame["age"] = pd.to_datetime(frame["age"])
    found = gdpfed.load_model(run).predict(frame)
    assert found.labels.tolist() == [row["predicted"] for row in rows]
    assert found.notes == ("not declared, and not read: room", note)


def test_what_the_model_does_not_know_is_said_of_each_column(run):
    frame = pd.DataFrame(
        {"age": pd.to_datetime(["1856-01-01", "1990-02-03", "2030-01-01"]), "dose": [None] * 3}
    ).assign(ward=["a", "b", "a"], drug=["x", "z", "z"])
    assert gdpfed.load_model(run).predict(frame).notes == (
        "column 'age': 2 of 3 lie beyond 0 to 110, which the model learnt of, and count as its end",
        "column 'drug': 2 of 3 are 'z', which is not declared, and count as 'rest'",
        "column 'dose' is missing in all rows, and what is declared for it stands there",
    )


def test_all_rows_that_do_not_fit_are_left_out_by_their_lines(run, tmp_path, capsys):
    """`gdpfed predict --skip` leaves out rows with faults, and names their lines in the file."""
    head, first, second = NEW.splitlines()
    rows = [first.replace("007", '"0\n07"'), "009;x", second.replace(";b", ";c").replace("1990", "x"), second]
    (tmp_path / "new.csv").write_text("\n".join([head, *rows, *["y;x;z;1990-02-03;b"] * 22, ""]))
    words = ["predict", str(run), str(tmp_path / "new.csv"), "--keep", "patient"]
    assert main(words) == 2
    assert (
        "new.csv: line 4: 2 values, and the header has 5; so are 23 more rows, in lines 5, 7, 8, 9, 10 ..."
        in (capsys.readouterr().err)
    )
    assert main([*words, "--skip"]) == 0
    said = capsys.readouterr()
    assert [row["patient"] for row in csv.DictReader(said.out.splitlines(keepends=True))] == ["0\n07", "008"]
    lines = [each.partition("new.csv: ")[2] for each in said.err.splitlines()]
    assert lines[0] == "line 4 is left out: 2 values, and the header has 5"
    assert lines[1].startswith("line 5 is left out: column 'age' holds 'x-02-03'")
    assert lines[2].startswith("line 7 is left out: column 'dose' holds 'z'")
    assert lines[-1] == "4 more rows are left out"


def test_a_table_of_which_no_row_fits_is_refused_and_nothing_is_written(run, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(NEW.replace(";a\n", ";c\n").replace(";b\n", ";c\n"))
    words = ["predict", str(run), str(tmp_path / "new.csv"), "--output", str(tmp_path / "p.csv")]
    for more in ([], ["--skip"]):
        assert main([*words, *more]) == 2
        said = capsys.readouterr().err
        assert "so is 1 more row, in line 3: no row is left to predict" in said
        assert said.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_a_number_comes_in_its_own_unit(tmp_path):
    (tmp_path / "all.csv").write_text("age,days\n50,5\n60,6\n70,7\n80,8\n")
    (tmp_path / "columns.yaml").write_text(
        "label: {column: days, range: [0, 20]}\nnumeric: {age: [0, 100]}\nincomplete_rows: drop\n"
    )
    data = (
        "dataset=csv",
        f"dataset.path={tmp_path}/all.csv",
        "dataset.num_clients=2",
        "dataset.partition=iid",
    )
    model = gdpfed.load_model(finished(tmp_path, *data, "dataset.loss=squared_error"))
    # Its weights are -1 and 1: age 75 is 0.5, -0.5 + 1 = 0.5, and that is 15 days.
    found = model.predict({"age": [75, 100]})
    assert found.labels.tolist() == [15.0, 10.0]
    assert found.probabilities is None
    with pytest.raises(LearningError, match=r"column 'age' is empty in row 2, and the model learnt"):
        model.predict({"age": [75, None]})


def test_a_model_of_pictures_takes_arrays(tmp_path):
    model = gdpfed.load_model(finished(tmp_path, "dataset=digits"))
    found = model.predict(np.zeros((3, 1, 8, 8), np.float32))
    assert found.classes == tuple("0123456789")
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-6)
    with pytest.raises(LearningError, match=r"shape \(3, 64\), and the model takes \(N, 1, 8, 8\)"):
        model.predict(np.zeros((3, 64)))


def test_a_folder_that_was_changed_is_refused(run, tmp_path):
    model = gdpfed.load_model(run)
    with pytest.raises(LearningError, match=r"holds no model \(model.json: No such file"):
        gdpfed.load_model(tmp_path)
    for name in ("model.json", "weights.safetensors", "manifest.json"):
        (tmp_path / name).write_bytes((run / "model" / name).read_bytes())
    assert model.columns is not None
    other = to_yaml(model.columns).replace("110", "120")
    (tmp_path / "columns.yaml").write_text(other)
    with pytest.raises(LearningError, match="is not the declaration that the model was trained with"):
        gdpfed.load_model(tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    assert described["inputs"] == ["age", "dose", "ward=a", "ward=b", "drug=x", "drug=rest"]
    assert described["classes"] == ["healthy", "disease"]
    (tmp_path / "model.json").write_text(json.dumps(described | {"model": "mlp"}))
    save_weights(tmp_path, (tmp_path / "weights.safetensors").read_bytes())
    with pytest.raises(LearningError, match="a damaged model: model.json describes a model of 578 num"):
        gdpfed.load_model(tmp_path)


def test_names_of_outputs_are_bound_to_the_weights(tmp_path):
    """A model's folder is refused if its names of classes, its weights or its manifest were changed."""
    folder = finished(tmp_path, "dataset=digits") / "model"
    kept = {each.name: each.read_bytes() for each in folder.iterdir()}
    described = json.loads(kept["model.json"])
    turned = json.dumps(described | {"classes": described["classes"][::-1]}).encode()
    for name, data, said in (
        ("model.json", turned, r"model.json is not the file that was saved with this model"),
        ("weights.safetensors", kept["weights.safetensors"][:-1] + b"\0", "weights.safetensors is not the"),
        ("manifest.json", b"[]", "is a damaged model"),
        ("manifest.json", None, "has no manifest.json"),
    ):
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)
        with pytest.raises(LearningError, match=said):
            gdpfed.load_model(tmp_path)
        (folder / name).write_bytes(kept[name])
    assert gdpfed.load_model(tmp_path).predict(np.zeros((1, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    "change",
    [
        {"options": [["hidden_units", 10**9]], "model": "mlp"},
        {"options": [["hidden_units", 10**15]], "model": "mlp"},
        {"num_classes": 10**9},
        {"input_shape": [10**9]},
        {"input_shape": [-1]},
        {"input_dtype": "V9999999999"},
        {"input_dtype": "object"},
    ],
)
def test_a_folder_that_asks_for_memory_is_refused_before_any_is_taken(run, tmp_path, monkeypatch, change):
    """A model's folder that states huge or invalid sizes is refused before the model is built."""
    built = []
    monkeypatch.setattr(model_folder, "build_model", lambda *told, **more: built.append(told))
    for name in ("model.json", "weights.safetensors", "columns.yaml"):
        (tmp_path / name).write_bytes((run / "model" / name).read_bytes())
    described = json.loads((tmp_path / "model.json").read_text())
    of_form = {key: value for key, value in change.items() if key in described["form"]}
    described |= {"form": described["form"] | of_form} if of_form else change
    (tmp_path / "model.json").write_text(json.dumps(described))
    save_weights(tmp_path, (tmp_path / "weights.safetensors").read_bytes())
    with pytest.raises(LearningError, match="is a damaged model: ") as refused:
        gdpfed.load_model(tmp_path)
    assert "\n" not in str(refused.value)
    assert built == []


def test_what_is_predicted_is_for_its_owner_and_over_no_link(run, tmp_path, capsys):
    """Only the owner may read a file of predictions; `gdpfed predict` refuses to write to a symbolic link."""
    words = ["predict", str(run), str(run / "new.csv"), "--keep", "patient", "--output"]
    assert main([*words, str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    assert main([*words, str(tmp_path / "link.csv")]) != 0
    assert "link.csv cannot be written: it is a link or no regular file" in capsys.readouterr().err
    assert (tmp_path / "link.csv").is_symlink()
    assert not (tmp_path / "elsewhere.csv").exists()


@pytest.mark.parametrize("option", ["--output", "--onnx"])
def test_what_is_predicted_takes_the_place_of_no_file(run, tmp_path, capsys, option):
    """`gdpfed predict` overwrites no existing file, such as the table itself."""
    (tmp_path / "new.csv").write_text(NEW)
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    for name in ("new.csv", "link.csv"):
        given = tmp_path / name
        assert main(["predict", str(run), str(tmp_path / "new.csv"), option, str(given)]) == 2
        said = f"gdpfed: {given} exists: name another file with {option}, or remove it [config]\n"
        assert capsys.readouterr().err == said
        assert given.read_text() == NEW


def test_what_is_no_ordinary_file_is_not_said_to_be_one_that_may_be_removed(run, capsys):
    for given in ("/dev/full", str(run)):
        assert main(["predict", str(run), str(run / "new.csv"), "--output", given]) == 2
        said = f"{given} is not an ordinary file: name a new file with --output, or leave --output out"
        assert f"gdpfed: {said}" in capsys.readouterr().err


def test_a_declaration_that_is_written_is_read_as_the_same(run, tmp_path):
    columns = read_columns(run / "columns.yaml")
    (tmp_path / "again.yaml").write_text(to_yaml(columns))
    assert read_columns(tmp_path / "again.yaml") == columns
    assert read_columns(tmp_path / "again.yaml").digest == read_columns(run / "model" / "columns.yaml").digest


def test_an_onnx_file_says_what_its_input_and_its_output_are(run, tmp_path):
    from gdpfed.learning.onnx_export import onnx_metadata

    model = gdpfed.load_model(run)
    found = {key: json.loads(text) for key, text in onnx_metadata(model).items()}
    assert found["classes"] == ["healthy", "disease"]
    assert found["columns"] == [
        {"name": "age", "low": 0, "high": 110, "age_on": "2026-01-01"},
        {"name": "dose", "low": -1, "high": 3, "missing": 3},
        {"name": "ward", "values": ["a", "b"]},
        {"name": "drug", "values": ["x", "rest"], "other": "rest", "missing": "x"},
    ]
    assert model.columns is not None
    assert found["declaration"] == model.columns.digest
    pictures = gdpfed.load_model(finished(tmp_path, "dataset=digits"))
    assert onnx_metadata(pictures) == {"classes": json.dumps(list("0123456789"))}


def test_onnx_gives_the_same_answers(run, tmp_path, capsys):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    from gdpfed.learning.data.cells import table_of
    from gdpfed.learning.data.table_rows import open_declared
    from gdpfed.learning.onnx_export import onnx_metadata, table_numbers

    assert main(["predict", str(run), "--onnx", str(tmp_path / "model.onnx")]) == 0
    assert "model.onnx: from 'inputs' to 'probabilities', with classes, columns" in capsys.readouterr().out
    model = gdpfed.load_model(run)
    onnx: Any = pytest.importorskip("onnx")
    written = onnx.load(tmp_path / "model.onnx").metadata_props
    assert onnx_metadata(model).items() <= {each.key: each.value for each in written}.items()
    assert model.columns is not None
    _, found = model.predict_file(run / "new.csv", ["patient"])
    file = open_declared(run / "new.csv", model.columns, "new.csv")
    (batch,) = file.batches(model.columns.inputs)
    table = table_of(batch.cells, model.columns, "new.csv")
    numbers = table_numbers(table, model.columns, "new.csv")
    (answer,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"inputs": numbers})
    expected: Any = found.probabilities
    np.testing.assert_allclose(answer, expected, atol=1e-6)
