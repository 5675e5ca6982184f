"""Tests of statistics at nodes: own tables, budgets and ledgers, and requests that operators refuse."""

import json
from dataclasses import replace

import pytest

from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import OrderError
from gdpfed.errors import RunError
from gdpfed.extras.statistics.client_work import check_asked
from gdpfed.extras.statistics.result import Statistics
from gdpfed.methods import resolve
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import files_in, run
from tests.extras.statistics.counted_tables import near

DECLARATION = """\
label: {column: ill, classes: [no, yes]}
numeric: {age: [0, 40]}
categorical: {ward: [a, b]}
test: {column: part, values: [test]}
"""
WARDS = ("a", "b", "b", "")
NODES = 4


def rows(client):
    """Return one client's table rows: twelve records, of which every fourth is for testing."""
    ages = range(10 * client, 10 * client + 12)
    return [
        f"{('no', 'yes')[age % 2]},{age},{WARDS[age % 4]},{'test' if age % 4 == 0 else 'train'}"
        for age in ages
    ]


def statistics_in(directory):
    return Statistics.read(directory)


@pytest.fixture
def hospitals(tmp_path):
    """Write a declaration for the server, and a declaration and a table for each node; return the folder."""
    (tmp_path / "public").mkdir()
    for client in range(NODES):
        (tmp_path / str(client)).mkdir()
        lines = ["ill,age,ward,part", *rows(client), ""]
        (tmp_path / str(client) / "own.csv").write_text("\n".join(lines))
        (tmp_path / str(client) / "columns.yaml").write_text(DECLARATION)
    (tmp_path / "public" / "columns.yaml").write_text(DECLARATION)
    return tmp_path


def asked(folder, *more, model="statistics", method="record_statistics"):
    level = ["privacy=record_level"] if method == "record_statistics" else []
    return [
        *("dataset=csv", f"dataset.path={folder / 'public'}", f"dataset.num_clients={NODES}"),
        *(f"dataset.model={model}", f"method={method}", *level, "dataset.partition=iid"),
        *("secagg.minimum_cohort=2", "privacy.accountant=pld", "privacy.against=auto", *more),
    ]


def grid(folder, **settings):
    grid = LocalGrid(NODES)
    for client in range(NODES):
        own = grid.contexts[FIRST_NODE_ID + client].node_config
        own |= {"data": str(folder / str(client) / "own.csv")}
        own |= {key.replace("_", "-"): value for key, value in settings.items()}
        if "epsilon-record" in own or "epsilon" in own:
            own["ledger"] = str(folder / str(client) / "ledger.json")
    return grid


def test_nodes_count_their_own_rows_and_their_ledgers_pay(hospitals):
    more = ("privacy.budgets=clients", "method.minimum_count=0", "method.bins=4", "privacy.delta=1e-5")
    nodes = grid(hospitals, epsilon_record=300.0, delta=1e-5)
    nodes.contexts[FIRST_NODE_ID].node_config["epsilon-record"] = 200.0
    run(hospitals / "run", asked(hospitals, *more), grid=nodes)
    found = statistics_in(hospitals / "run")
    # Nine of twelve rows of each node are not for testing.
    age, ward, ill = found.columns
    assert near(found.n, 36)
    train = [each for client in range(NODES) for each in rows(client) if each.endswith("train")]
    for column, place in ((ward, 2), (ill, 0)):
        names = [*column.cells[:-1], ""] if column is ward else column.cells
        expected = [sum(row.split(",")[place] == name for row in train) for name in names]
        assert column.counts == pytest.approx(expected, abs=6 * found.noise_stddev)
    assert found.epsilon == pytest.approx(200, rel=0.01)
    for client in range(NODES):
        ledger = json.loads((hospitals / str(client) / "ledger.json").read_text())
        assert json.dumps(ledger).count("record_statistics") == 1
        assert audit_node_ledger(hospitals / str(client) / "ledger.json").findings == ()
    assert audit_run(hospitals / "run").findings == ()
    assert age.edges == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_a_ledger_that_has_no_budget_left_refuses_a_second_count(hospitals):
    more = ("privacy.budgets=[3]", "privacy.delta=1e-5")
    run(hospitals / "first", asked(hospitals, *more), grid=grid(hospitals, epsilon_record=4.0, delta=1e-5))
    with pytest.raises(RunError, match="budget"):
        run(
            hospitals / "second",
            asked(hospitals, *more),
            grid=grid(hospitals, epsilon_record=4.0, delta=1e-5),
        )


def test_clients_count_once_against_everyone(hospitals):
    more = ("privacy.budgets=[300]", "method.minimum_count=0", "privacy.delta=1e-5", "method.columns=[ward]")
    run(hospitals / "run", asked(hospitals, *more, method="client_statistics"), grid=grid(hospitals))
    found = statistics_in(hospitals / "run")
    assert found.counted == "clients"
    assert near(found.n, NODES)
    counts = found.columns[0].counts
    assert sum(counts) == pytest.approx(NODES, abs=6 * found.noise_stddev * len(counts) ** 0.5)
    assert audit_run(hospitals / "run").findings == ()


@pytest.mark.parametrize(
    ("refused", "model", "more"),
    [
        ("statistics*", "statistics", ()),
        ("statistics_by_group, statistics_crossed", "statistics_by_group", ("method.by=ward",)),
        ("statistics_crossed", "statistics_crossed", ("method.crossed=[[ward,ill]]",)),
    ],
)
def test_a_node_refuses_kinds_of_statistics_before_anything_is_charged(
    hospitals, monkeypatch, refused, model, more
):
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.01)
    before = files_in(hospitals)
    nodes = grid(hospitals, refused_models=refused)
    with pytest.raises(RunError, match="this node was started with refused-models"):
        run(hospitals / "run", asked(hospitals, "privacy.budgets=[3]", *more, model=model), grid=nodes)
    assert files_in(hospitals) == before


def test_a_node_is_counted_alone_where_its_operator_allows_it(hospitals, monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.01)
    more = ("privacy.budgets=[300]", "method.by_party=true", "method.minimum_count=0", "method.columns=[ill]")
    words, before = asked(hospitals, *more, model="statistics_by_party"), files_in(hospitals)
    with pytest.raises(RunError, match="this node was not started with counts-by-party=true"):
        run(hospitals / "refused", words, grid=grid(hospitals))
    assert files_in(hospitals) == before
    run(hospitals / "run", words, grid=grid(hospitals, counts_by_party=True))
    found = statistics_in(hospitals / "run")
    # Nine of twelve rows of each node are not for testing.
    assert [near(each.n, 9) for each in found.columns if each.group is not None] == [True] * NODES
    assert audit_run(hospitals / "run").findings == ()


def test_a_server_that_is_silent_of_its_model_at_the_join_asks_in_vain_afterwards(hospitals, caplog):
    nodes = grid(hospitals, refused_models="statistics*")

    def silent(kind, client, content):
        for record in content.values():
            if "statistics" in str(record.get("model")):
                record.pop("model")
        return content

    nodes.meddle = silent
    run(hospitals / "run", asked(hospitals, "privacy.budgets=[3]"), grid=nodes, without_a_sum=True)
    assert statistics_in(hospitals / "run") is None
    assert (
        sum("left in stage mask: the run's model is statistics" in line for line in caplog.messages) == NODES
    )


def test_an_order_that_asks_for_more_than_its_model_says_is_refused(hospitals):
    config = resolve(load(asked(hospitals, "method.crossed=[[ward,ill]]", model="statistics_crossed")))
    order = replace(order_of(config, task_of(config)), work="record_statistics")
    dimension = order.task.dimension
    check_asked(order, dimension)
    for model, count, said in (
        (
            "statistics",
            dimension,
            "the server's model is statistics, and the statistics that it asks for are of kind",
        ),
        (
            "statistics_crossed",
            dimension - 1,
            f"the server asks for {dimension - 1} numbers, and the statistics",
        ),
    ):
        lying = replace(order, task=replace(order.task, model=model))
        with pytest.raises(OrderError, match=said):
            check_asked(lying, count)


TIMES = """\
label: {time: days, event: {column: status, censored: [alive], happened: [dead]}, edges: [10, 30]}
numeric: {age: [0, 40]}
categorical: {ward: [a, b]}
"""


def test_nodes_count_survival_and_their_operators_refuse_it(hospitals, monkeypatch):
    """Nodes count events over time for survival curves, and a node's operator can refuse these statistics."""
    for client in range(NODES):
        lines = [f"{5 * day},{('alive', 'dead')[client > 0 and day % 2]},30,a" for day in range(8)]
        path = hospitals / str(client) / "own.csv"
        path.write_text("\n".join(["days,status,age,ward", *lines, ""]))
    for place in ("public", *map(str, range(NODES))):
        (hospitals / place / "columns.yaml").write_text(TIMES)
    more = ("privacy.budgets=[300]", "method.minimum_count=0", "method.survival=true", "method.by=ward")
    words = asked(hospitals, *more, model="statistics_survival")
    run(hospitals / "run", words, grid=grid(hospitals))
    found = statistics_in(hospitals / "run")
    of_all = found.curves[0]
    # Events at 5, 15, 25 and 35 days, of which the last is beyond the horizon, at three of the nodes.
    assert [point.events for point in of_all.points] == pytest.approx([3, 6], abs=15 * found.noise_stddev)
    assert near(of_all.n, 32)
    assert audit_run(hospitals / "run").findings == ()
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.01)
    refusing = grid(hospitals, refused_models="statistics_survival")
    with pytest.raises(RunError, match="this node was started with refused-models"):
        run(hospitals / "refused", words, grid=refusing)
    assert not (hospitals / "refused").exists()
