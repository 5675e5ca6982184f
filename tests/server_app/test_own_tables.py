"""Tests of nodes with tables of their own: training, declarations, and tables that do not fit."""

import pytest

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import RunError
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import files_in, final_model, run

DECLARATION = """\
label: {column: ill, classes: [no, yes]}
numeric: {age: [0, 100]}
categorical: {ward: [a, b]}
test: {column: part, values: [test]}
"""
WARDS = ("a", "b", "b")


def rows(client):
    """Return twelve rows of one client's table, of which every fourth row is for testing."""
    ages = range(10 * client, 10 * client + 12)
    return [
        f"{('no', 'yes')[age % 2]},{age},{WARDS[age % 3]},{'test' if age % 4 == 0 else 'train'}"
        for age in ages
    ]


def table(path, lines, header="ill,age,ward,part"):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *lines, ""]))
    path.with_name("columns.yaml").write_text(DECLARATION)


@pytest.fixture
def hospitals(tmp_path):
    """Write a public table for the server and a table for each of four nodes, and return the folder."""
    for client in range(4):
        table(tmp_path / str(client) / "own.csv", rows(client))
    table(tmp_path / "public.csv", [line for client in range(4) for line in rows(client)])
    return tmp_path


def settings(folder):
    return [
        *("dataset=csv", f"dataset.path={folder / 'public.csv'}", "dataset.num_clients=4"),
        *("dataset.partition=iid", "method=fedavg", "run.num_rounds=2", "privacy.sampling_rate=1"),
    ]


def grid(folder):
    grid = LocalGrid(4)
    for client in range(4):
        path = str(folder / str(client) / "own.csv")
        grid.contexts[FIRST_NODE_ID + client].node_config["data"] = path
    return grid


def test_nodes_train_on_their_own_tables(hospitals):
    run(hospitals / "own", settings(hospitals), grid=grid(hospitals))
    before = final_model(hospitals / "own")
    table(hospitals / "2" / "own.csv", [line.replace("yes", "no") for line in rows(2)])
    run(hospitals / "other", settings(hospitals), grid=grid(hospitals))
    assert (before != final_model(hospitals / "other")).any()
    # Rows that are declared to be for testing are not trained on.
    table(hospitals / "2" / "own.csv", [*rows(2), "yes,99,a,test"])
    table(hospitals / "3" / "own.csv", rows(3))
    run(hospitals / "again", settings(hospitals), grid=grid(hospitals))
    assert (before == final_model(hospitals / "again")).all()


def test_every_order_says_which_declaration_it_is_by(hospitals):
    task = task_of(load(settings(hospitals))).described()
    assert task.form is not None
    assert task.form.columns is not None
    assert type(task).from_json(task.to_json()) == task


@pytest.mark.parametrize(
    "damage",
    [
        lambda own: table(own, rows(1), header="ill,old,ward,part"),
        lambda own: table(own, [*rows(1), "no,young,a,train"]),
        lambda own: table(own, [*rows(1), "maybe,30,a,train"]),
        lambda own: table(own, []),
        lambda own: own.with_name("columns.yaml").write_text(DECLARATION.replace("100", "90")),
        lambda own: own.with_name("columns.yaml").unlink(),
    ],
    ids=["lacks a column", "no number", "unknown label", "no rows", "another declaration", "no declaration"],
)
def test_a_table_that_does_not_fit_keeps_its_node_out_before_anything_is_charged(hospitals, damage, caplog):
    damage(hospitals / "1" / "own.csv")
    before = files_in(hospitals)
    words = "SuperNode 1001 does not join: data cannot be used, see the log of this client"
    with pytest.raises(RunError, match=words) as raised:
        run(hospitals / "run", settings(hospitals), grid=grid(hospitals))
    assert "young" not in str(raised.value)
    assert "maybe" not in str(raised.value)
    assert files_in(hospitals) == before
    own = [line for line in caplog.messages if str(hospitals / "1") in line]
    assert len(own) == 1
    assert "\n" not in own[0]
