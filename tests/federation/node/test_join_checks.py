"""Tests of a node's checks before it joins a run: its examples, data sources and installed packages."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from gdpfed.clients.messages import (
    BEGIN,
    CLIENT_RECORD,
    COLUMNS,
    INPUT_DTYPE,
    INPUT_SHAPE,
    JOIN,
    LABEL_DTYPE,
    LABEL_SHAPE,
    LOSS,
    MODEL,
    RECORDS,
    REFUSAL_RECORD,
    SOURCE,
    TERMS_RECORD,
    UNIT,
)
from gdpfed.clients.versions import said_here
from gdpfed.federation.node.allowed import check_named_file
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.learning.data import DataSource
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import OwnData, own_held_out, own_split
from testing.local_grid import ask, make_context
from tests.federation.node.test_record_budget import DP_SUM

X, Y = np.arange(24.0).reshape(12, 2), np.arange(12) % 3
FORM = {INPUT_SHAPE: [2], INPUT_DTYPE: "float32", LABEL_DTYPE: "int64", LABEL_SHAPE: []}
QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    FORM,
    FORM | {LABEL_DTYPE: "float32"},
    FORM | {INPUT_DTYPE: "int64"},
    FORM | {INPUT_SHAPE: [3]},
    FORM | {INPUT_SHAPE: ["x"]},
    FORM | {COLUMNS: "0" * 64},
)
REFUSED = "data cannot be used, see the log of this client"


def answer(path, question, query=JOIN, **settings):
    """Return how a node with the examples at `path` answers a question of a record-level run."""
    content = RecordDict({CLIENT_RECORD: ConfigRecord({**said_here(), UNIT: "record", **question})})
    return ask(f"query.{query}", content, make_context(3, {"data": str(path), **settings}))


@pytest.mark.parametrize("fault", ["NaN", "label", "lengths", "text", "no archive", "not there"])
def test_examples_that_no_run_could_use_are_refused_whatever_is_asked(tmp_path, fault):
    path, x, y = tmp_path / "own.npz", X.copy(), Y.astype(np.float64)
    if fault == "no archive":
        path.write_text("no archive")
    elif fault != "not there":
        x[3, 1], y[4] = np.nan if fault == "NaN" else 1, np.inf if fault == "label" else 0
        wrong = np.full(X.shape, "x") if fault == "text" else x
        np.savez(path, x_train=wrong, y_train=y[: 11 if fault == "lengths" else 12])
    said = {str(answer(path, question)[REFUSAL_RECORD]["reason"]) for question in QUESTIONS}
    assert said == {REFUSED}


def test_what_examples_hold_is_no_answer_to_what_a_server_asks(tmp_path):
    """A node's answers are the same for two files of examples that differ in their values only."""
    odd = np.where(np.arange(12) == 5, 2**40, -Y)
    for name, x, y in (("one", X, Y), ("other", X * -1e30, odd)):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y)
    for question in QUESTIONS:
        one, other = (dict(answer(tmp_path / f"{name}.npz", question)) for name in ("one", "other"))
        assert {key: dict(each) for key, each in one.items()} == {
            key: dict(each) for key, each in other.items()
        }
    assert answer(tmp_path / "one.npz", FORM)[CLIENT_RECORD][RECORDS] == 12


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (DataSource("npz", path="/srv/a.npz"), "the server names the file /srv/a.npz, and this node"),
        (DataSource("csv", columns="/srv/c.yaml"), "the server names the file /srv/c.yaml, and this node"),
        (DataSource("nowhere"), "the run's data set nowhere cannot be loaded here, see the log"),
        (DataSource("breast_cancer"), None),
    ],
)
def test_a_node_without_data_joins_no_run_whose_data_it_cannot_read(tmp_path, source, said):
    """A node without data of its own joins only runs whose data set it can load."""
    question = {SOURCE: source.to_json()}
    content = RecordDict({CLIENT_RECORD: ConfigRecord({**said_here(), **question})})
    answered = ask(f"query.{JOIN}", content, make_context(3))
    assert said in answered[REFUSAL_RECORD]["reason"] if said else CLIENT_RECORD in answered
    np.savez(tmp_path / "own.npz", x_train=X, y_train=Y)
    assert RECORDS in answer(tmp_path / "own.npz", question)[CLIENT_RECORD]


def test_a_node_without_data_reads_no_file_of_owners_that_a_run_names(tmp_path):
    own = NodeSettings({"partition-id": 3})
    check_named_file(own, DataSource("digits"))
    with pytest.raises(NodeConfigError, match="the server names the file /srv/owners.txt, and this node"):
        check_named_file(own, DataSource("digits"), "/srv/owners.txt")


@pytest.mark.parametrize(("entry", "known"), [(MODEL, "linear"), (LOSS, "cross_entropy")])
def test_a_node_joins_no_run_whose_model_or_loss_is_in_a_package_that_it_lacks(tmp_path, entry, known):
    """A node refuses to join a run whose model or loss is not installed at the node."""
    np.savez(tmp_path / "own.npz", x_train=X, y_train=Y)
    assert RECORDS in answer(tmp_path / "own.npz", {**FORM, entry: known})[CLIENT_RECORD]
    reason = answer(tmp_path / "own.npz", {**FORM, entry: "theirs"})[REFUSAL_RECORD]["reason"]
    assert f"the run's {entry} theirs is not installed here: install the package" in reason


def test_a_run_that_nobody_joined_begins_with_no_node_whose_examples_cannot_be_used(tmp_path):
    settings = {"epsilon-record": 5.0, "delta": 1e-3, "ledger": str(tmp_path / "ledger.json")}
    path, terms = tmp_path / "own.npz", replace(DP_SUM, delta=1e-3)
    content = RecordDict({TERMS_RECORD: ConfigRecord(dict(terms.to_scalars()))})
    for value in (np.nan, 1.0):
        np.savez(path, x_train=np.where(X == 3, value, X), y_train=Y)
        said = ask(f"query.{BEGIN}", content, make_context(3, {"data": str(path), **settings}))
        assert (said[REFUSAL_RECORD]["reason"] == REFUSED) if np.isnan(value) else not said
    assert len(json.loads((tmp_path / "ledger.json").read_text())["ledger"]["runs"]) == 1


def test_what_a_node_cuts_of_its_table_is_said_in_its_own_log_alone(tmp_path, caplog):
    (tmp_path / "columns.yaml").write_text(
        "label: {column: ill, classes: ['0', '1']}\nnumeric: {age: [0, 90]}\nmissing_labels: drop\n"
        "person: {column: who, rows: 3}\n"
    )
    (tmp_path / "own.csv").write_text("age,ill,who\n" + "95,1,a\n20,0,b\n30,,a\n" * 4)
    settings = {"epsilon-record": 5.0, "delta": 1e-3, "ledger": str(tmp_path / "ledger.json")}
    content = RecordDict({TERMS_RECORD: ConfigRecord(dict(replace(DP_SUM, delta=1e-3).to_scalars()))})
    said = ask(f"query.{BEGIN}", content, make_context(3, {"data": str(tmp_path / "own.csv"), **settings}))
    assert not said
    for words in (
        *("4 rows of the table are left out", "4 numbers in columns lie beyond their declared"),
        "2 rows are beyond the first that are kept of one person (person.rows=3 of columns.yaml), and are",
    ):
        assert f"own.csv: {words}" in caplog.text


@pytest.mark.parametrize("label_dtype", ["int64", "float32"])
def test_a_run_does_not_choose_by_its_types_which_examples_are_held_out(tmp_path, label_dtype):
    """A node holds out the same examples, whether a run reads the inputs as float32 or as int64."""
    x = np.arange(400).reshape(200, 2)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=x[:, 0] % 2)
    own, rows = OwnData(tmp_path / "own.npz", None, 0.3), set()
    for dtype in ("float32", "int64"):
        form = ExampleForm((2,), dtype, 1 if label_dtype == "float32" else 2, vocabulary=400)
        held, trained = own_held_out(own, form), own_split(own.path, form, 0.3)
        assert len(held) + len(trained) == 200
        rows.add(tuple(held.x[held.x[:, 1] > 1, 1].astype(int).tolist()))
    assert len(rows) == 1
    assert 30 < len(rows.pop()) < 90
