"""Tests of statistics before training: the counted rows, one record's effect, and confidence intervals."""

import json
import logging
from dataclasses import replace
from functools import partial
from math import sqrt
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import ClientPart, OrderError
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.errors import ConfigError, LearningError
from gdpfed.extras.statistics.figures import moments, quantile, total
from gdpfed.extras.statistics.layout import Asked, Cells, Layout
from gdpfed.extras.statistics.methods import SLACK
from gdpfed.extras.statistics.record_work import check_grid
from gdpfed.extras.statistics.result import CrossTable
from gdpfed.extras.statistics.rows import Counted, counted_rows, counts_of
from gdpfed.extras.statistics.shown import crossed
from gdpfed.federation.node.contribution import Contributor
from gdpfed.learning.data.columns import Numeric
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.data.tabular import own_columns
from gdpfed.methods import make_method, resolve
from gdpfed.record_steps import RecordSteps
from gdpfed.runs.round_log import read_rounds
from secagg import SumParameters
from tests.extras.statistics.counted_tables import (
    DECLARATION,
    HEADER,
    SITES,
    drawn_rows,
    near,
    released,
    settings,
    write_table,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module")
def nearly_exact(table, tmp_path_factory):
    """Release statistics by group and cross tables, with a budget so large that the noise is negligible."""
    return released(
        table,
        tmp_path_factory.mktemp("runs") / "exact",
        *("privacy.budgets=[600]", "method.by=ward", "method.crossed=[[ill,ward],[age,ill]]"),
        *("method.minimum_count=0", "method.bins=8"),
        model="statistics_crossed",
    )


def assert_counts(counts, expected, stddev):
    assert np.abs(np.subtract(counts, expected)).max() < 6 * stddev


def kept_rows(table):
    lines = table.read_text().splitlines()[1:]
    return [line.split(",") for line in lines if line.split(",")[4] == "train"]


def test_counts_are_those_of_the_rows_that_a_training_would_learn_from(table, nearly_exact):
    rows, found = kept_rows(table), nearly_exact
    assert found.noise_stddev < 0.2
    assert found.moves == sqrt(5)
    of_all = {each.name: each for each in found.columns if each.group is None}
    wards = [sum(row[1] == ward for row in rows) for ward in ("x", "y")]
    others, gone = sum(row[1] in ("z", "elsewhere") for row in rows), sum(row[1] == "" for row in rows)
    assert_counts(of_all["ward"].counts, [*wards, others, gone], of_all["ward"].noise_stddev)
    ages = [float(row[2]) if row[2] else None for row in rows]
    known = np.array([age for age in ages if age is not None])
    bins = np.histogram(known, np.linspace(0, 80, 9))[0].tolist()
    expected = [(known < 0).sum(), *bins, (known > 80).sum(), ages.count(None)]
    assert_counts(of_all["age"].counts, expected, of_all["age"].noise_stddev)
    in_x = next(each for each in found.columns if (each.name, each.group) == ("ill", "x"))
    of_x = [sum(row[1] == "x" and row[3] == ill for row in rows) for ill in ("no", "yes")]
    assert_counts(in_x.counts, of_x, found.noise_stddev)
    ill = [sum(row[3] == "yes" and row[1] == ward for row in rows) for ward in ("x", "y")]
    assert_counts(found.tables[0].counts[1][:2], ill, found.noise_stddev)
    assert near(found.n, len(rows))


def test_each_party_has_a_table_of_its_own_rows(table, tmp_path):
    asked = ("privacy.budgets=[600]", "method.by_party=true", "method.minimum_count=0", "method.bins=8")
    found = released(table, tmp_path / "run", *asked, model="statistics_by_party")
    # One block a column: what is told of each party alone costs a record no more than what is told of all.
    assert found.moves == sqrt(3)
    rows = kept_rows(table)
    for number, site in enumerate(SITES):
        own = {each.name: each for each in found.columns if each.group == f"party {number}"}
        assert own.keys() == {"age", "ward", "ill"}
        ill = [sum(row[0] == site and row[3] == value for row in rows) for value in ("no", "yes")]
        assert_counts(own["ill"].counts, ill, found.noise_stddev)
        gone = sum(row[0] == site and row[2] == "" for row in rows)
        assert_counts(own["age"].counts[-1], gone, found.noise_stddev)
    of_all = next(each for each in found.columns if (each.name, each.group) == ("ill", None))
    assert_counts(
        of_all.counts, [sum(row[3] == v for row in rows) for v in ("no", "yes")], of_all.noise_stddev
    )
    assert of_all.noise_stddev == pytest.approx(2 * found.noise_stddev)
    assert near(found.n, len(rows))


def test_figures_are_near_those_of_the_values_cut_to_the_range(table, nearly_exact):
    ages = np.clip([float(row[2]) for row in kept_rows(table) if row[2]], 0, 80)
    figures = next(each for each in nearly_exact.columns if each.name == "age").figures
    half_a_bin = 5.0
    assert figures["mean"].value == pytest.approx(ages.mean(), abs=0.2 * half_a_bin)
    assert figures["sd"].value == pytest.approx(ages.std(), abs=0.3 * half_a_bin)
    for name, part in (("q0.25", 0.25), ("q0.5", 0.5), ("q0.75", 0.75)):
        figure = figures[name]
        assert figure.value == pytest.approx(np.quantile(ages, part), abs=half_a_bin)
        assert figure.low <= figure.value <= figure.high


def test_the_noise_of_a_sum_is_as_declared(table, tmp_path):
    found = released(
        table, tmp_path / "run", "privacy.budgets=[1]", "method.bins=1000", "method.minimum_count=0"
    )
    # Of 1,003 cells of one column all but few hundred are empty; those of 0 to 1 record add next to nothing.
    age = np.array(next(each for each in found.columns if each.name == "age").counts[1:-2])
    ages = [float(row[2]) for row in kept_rows(table) if row[2]]
    noise = age - np.histogram(ages, np.linspace(0, 80, 1001))[0]
    assert noise.std() == pytest.approx(found.noise_stddev, rel=5 / sqrt(2 * len(noise)))
    assert abs(noise.mean()) < 5 * found.noise_stddev / sqrt(len(noise))
    (record,) = read_rounds(tmp_path / "run")
    asked, share = record.noise_shares[0]
    assert (asked, found.noise_stddev) == (4, pytest.approx(share * 2))
    assert found.noise_stddev >= record.noise_stddevs[0]


ASKED = (
    Asked(columns=("age", "ward", "ill")),
    Asked(bins=3, columns=("age", "ill"), by="ward", crossed=(("age", "ill"), ("ward", "age"))),
    Asked(bins=3, columns=("age", "ward", "ill"), parties=5),
)


def drawn_cells(layout, rows, generator):
    return np.stack([generator.integers(len(column), size=rows) for column in layout.columns], axis=1)


@pytest.mark.parametrize("asked", ASKED, ids=["columns", "by group and crossed", "by party"])
@pytest.mark.parametrize("grid", [0.3, 1e-2, 1e-5])
def test_one_record_moves_counts_by_the_root_of_the_blocks_and_no_more(table, asked, grid):
    layout = Layout.of(own_columns(table), asked)
    generator = np.random.default_rng(1)
    cells = drawn_cells(layout, 12, generator)
    everything, unit = counts_of(layout, Counted(cells, np.ones(12)), grid)
    for left_out in range(12):
        rest = np.delete(cells, left_out, axis=0)
        without, _ = counts_of(layout, Counted(rest, np.ones(11)), grid)
        moved = unit * np.linalg.norm(everything - without)
        assert moved <= layout.moves
        assert moved == pytest.approx(layout.moves, rel=2 / 256)


@pytest.mark.parametrize("asked", ASKED, ids=["columns", "by group and crossed", "by party"])
def test_a_person_with_all_its_rows_moves_counts_no_further(table, asked):
    layout = Layout.of(own_columns(table), asked)
    generator = np.random.default_rng(2)
    for rows in range(1, 8):
        cells = drawn_cells(layout, rows + 5, generator)
        shares = np.concatenate([np.full(rows, 1 / rows), np.ones(5)])
        everything, unit = counts_of(layout, Counted(cells, shares), 1e-2)
        rest, _ = counts_of(layout, Counted(cells[rows:], shares[rows:]), 1e-2)
        assert unit * np.linalg.norm(everything - rest) <= layout.moves
    alike = np.repeat(cells[:1], 7, axis=0)
    moved, unit = counts_of(layout, Counted(alike, np.full(7, 1 / 7)), 1e-2)
    assert unit * np.linalg.norm(moved) == pytest.approx(layout.moves, rel=1e-2)


def ordered(table, unit, most_rows, *more, **model):
    """Return a node's instruction to count rows, the encoding of the sum, and the clipping norm."""
    config = resolve(load(settings(table, *more, unit=unit, **model)))
    task = task_of(config)
    bound = config.privacy.clipping_norm
    encoding = SumParameters(
        label="statistics",
        num_clients=4,
        threshold=3,
        dropout_tolerance=0,
        corrupt_tolerance=0,
        dimension=task.dimension,
        clipping_norm=bound * (most_rows if unit == "record" else 1),
        noise_multiplier=0.01,
    ).encoding(4)
    order = replace(order_of(config, task), work=f"{unit}_statistics")
    if unit == "record":
        order = order.for_part(
            ClientPart(
                records=RecordSteps(
                    num_steps=1, batch_rates=(1.0,), clipping_norm=bound, noise_multiplier=0.0
                )
            )
        )
    return order, encoding, bound


def own_table(table, lines):
    """Write a node's own table with these lines, and its declaration; return the table's path."""
    own = table.parent / "own" / "data.csv"
    own.parent.mkdir(exist_ok=True)
    own.write_text("\n".join([*lines, ""]))
    own.with_name("columns.yaml").write_text(DECLARATION)
    return own


def sent(table, rows, unit, share=0.0):
    """Return the counts that a node sends for its own rows, and the clipping norm of a record or person."""
    order, encoding, bound = ordered(table, unit, len(rows))
    own = OwnData(own_table(table, [HEADER, *rows]), None, share)
    theta = np.zeros(order.task.dimension, np.float32)
    return update_steps(Job(order, theta, encoding, 0, own_data=own)) * encoding.grid, bound


@pytest.mark.parametrize("unit", ["record", "client"])
def test_what_leaves_a_node_moves_by_its_bound_at_most(table, unit):
    rows = [row for row in drawn_rows(24) if ",train," in row]
    everything, bound = sent(table, rows, unit)
    assert bound == pytest.approx(sqrt(3) * (1 + SLACK))
    if unit == "client":
        assert np.linalg.norm(everything) <= bound
        assert everything.sum() == pytest.approx(3, abs=1e-2)
        return
    assert np.abs(everything.sum() - 3 * len(rows)) < 1e-2
    for left_out in (0, 5, len(rows) - 1):
        without, _ = sent(table, rows[:left_out] + rows[left_out + 1 :], unit)
        assert np.linalg.norm(everything - without) <= bound


def test_a_node_counts_among_its_own_partys_cells_alone(table):
    rows = [row for row in drawn_rows(24) if ",train," in row]
    order, encoding, _ = ordered(
        table, "record", len(rows), "method.by_party=true", model="statistics_by_party"
    )
    own, theta = (
        OwnData(own_table(table, [HEADER, *rows]), None, 0.0),
        np.zeros(order.task.dimension, np.float32),
    )
    layout = Layout.of(own_columns(table), Asked.from_json(dict(order.task.model_options)["asked"]))
    counted = update_steps(Job(order, theta, encoding, 2, own_data=own)) * encoding.grid
    for part in layout.parts(counted):
        assert part.sum(axis=1) == pytest.approx([0, 0, len(rows), 0], abs=1e-2)
    with pytest.raises(OrderError, match="client 4 is not a party"):
        counted_rows(cast("Any", SimpleNamespace(order=order, own_data=own, client_id=4)))


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize(
    "lines", [[HEADER, "a,x,old,no,train,1"], ["ward,age", "x,40"], ["nothing"], [HEADER], None]
)
def test_a_table_that_cannot_be_used_is_not_seen_in_a_round(table, unit, lines, caplog):
    """A node whose table cannot be used sends only zeros, and reports the error once to its operator."""
    caplog.set_level(logging.CRITICAL)
    order, encoding, _ = ordered(table, unit, 24)
    own = own_table(table, lines or [])
    if lines is None:
        own.unlink()
    failed: list[BaseException] = []
    node = Contributor(0, "run", OwnData(own, None, 0.0), unusable=failed.append)
    theta = np.zeros(order.task.dimension, np.float32)
    node.check(order, theta, encoding)
    assert not node.steps(order, theta, encoding).any()
    assert len(failed) == 1


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_no_model_changes_what_a_node_counts(table, unit, value):
    order, encoding, _ = ordered(table, unit, 24)
    own = OwnData(own_table(table, [HEADER, *drawn_rows(24)]), None, 0.0)
    zeros = np.zeros(order.task.dimension, np.float32)
    counted = [
        update_steps(Job(order, theta, encoding, 0, own_data=own))
        for theta in (zeros, zeros + np.float32(value))
    ]
    assert np.abs(counted[0] - counted[1]).max() <= 1


def test_records_that_a_node_holds_out_are_not_counted(table):
    rows = [row for row in drawn_rows(80) if ",train," in row]
    everything, _ = sent(table, rows, "record")
    part, _ = sent(table, rows, "record", share=0.5)
    assert 0 < part.sum() < everything.sum()


@pytest.mark.parametrize("parties", [1, 2])
def test_persons_count_once_in_equal_parts(tmp_path, parties):
    folder = tmp_path / "persons"
    folder.mkdir()
    rows, kept = [*drawn_rows()], DECLARATION.splitlines()[:3]
    (folder / "columns.yaml").write_text(
        "\n".join([*kept, f"person: {{column: who, parties: {parties}}}", ""])
    )
    for number, site in enumerate(SITES):
        own = rows[100 * number : 100 * number + 99]
        (folder / f"{site}.csv").write_text("\n".join([HEADER, *own, ""]))
    asked = ("dataset.test_fraction=0.1", "method.minimum_count=0")
    found = released(folder, tmp_path / "run", *asked, "privacy.budgets=[600]")
    task = task_of(load(settings(folder, "dataset.test_fraction=0.1")))
    persons = sum(len(task.client_indices(client)) for client in range(4))
    assert found.counted == "persons"
    assert 110 < persons < 140
    # A person at two parties is in the sum twice, under noise for both together.
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())["groups"][0]["records"]
    assert plan["clipping_norm"] == pytest.approx(sqrt(3) * (1 + SLACK))
    assert plan.get("parties", 1) == parties
    assert read_rounds(tmp_path / "run")[0].noise_stddevs[0] == pytest.approx(
        plan["noise_multiplier"] * plan["clipping_norm"] * sqrt(parties)
    )
    assert near(found.n, persons)


def test_intervals_hold_what_would_be_said_without_noise():
    """The 95 % interval of each statistic contains the value without noise in at least 92 % of 400 trials."""
    column = Cells.of_numbers(Numeric("age", 0, 100), Asked(bins=20))
    ages = np.random.default_rng(3).normal(55, 18, 3000)
    counts = np.bincount(column.of_number(ages), minlength=len(column)).astype(float)
    counts[-1] = 200
    draws, stddev, covered = np.random.default_rng(4), 6.0, dict.fromkeys(FIGURES, 0)
    exact = {name: of(column, counts, 1e-9).value for name, of in FIGURES.items()}
    for _ in range(400):
        noised = counts + draws.normal(0, stddev, len(counts))
        for name, of in FIGURES.items():
            figure = of(column, noised, stddev)
            covered[name] += figure.low <= exact[name] <= figure.high
    assert all(count >= 0.92 * 400 for count in covered.values()), covered
    # Those of mean, spread and total are no wider than they need to be.
    assert all(covered[name] <= 0.98 * 400 for name in ("mean", "sd", "total")), covered


FIGURES: dict[str, Any] = {
    "mean": lambda column, counts, stddev: moments(column, counts, stddev).mean,
    "sd": lambda column, counts, stddev: moments(column, counts, stddev).stddev,
    "total": lambda column, counts, stddev: total(counts, stddev),
    "median": partial(quantile, q=0.5),
    "upper quartile": partial(quantile, q=0.75),
    "all but a hundredth": partial(quantile, q=0.99),
}


def test_small_cells_and_what_follows_from_them_are_not_shown(table, tmp_path):
    asked = ("privacy.budgets=[600]", "method.minimum_count=100", "method.by=ward")
    found = released(table, tmp_path / "run", *asked, model="statistics_by_group")
    for column in found.columns:
        assert all(count is None or count >= 100 for count in column.counts)
    ward, *others = found.columns
    assert None in ward.counts
    assert ward.missing is not None
    assert ward.missing.value is None
    # Each of the first two wards has some 72 rows.
    small = next(each for each in others if (each.name, each.group) == ("age", "x"))
    assert {figure.value for figure in (small.n, *small.figures.values())} == {None}
    large = next(each for each in others if (each.name, each.group) == ("age", None))
    assert large.figures["mean"].value is not None


def test_all_parties_pay_what_the_strictest_budget_asks(table):
    method = make_method(load(settings(table, "privacy.budgets=[1,3]", unit="record")))
    (group,) = method.plan.groups
    assert group.epsilon == 1
    assert 0.99 < group.epsilon_accounted <= 1
    assert len(group.clients) == 4
    everyone = make_method(load(settings(table, "privacy.budgets=[1,3]", unit="client")))
    assert everyone.plan.against == "everyone"
    assert [each.epsilon for each in everyone.plan.groups] == [1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["method.by=age"], "method.by=age holds numbers"),
        (["method.columns=[age,weight]"], "'weight' is neither an input nor a label of the declaration"),
        (["method.crossed=[[age]]"], "must be pairs of two columns"),
        (["method.crossed=[[age,ill]]"], "set dataset.model=statistics_crossed, or use gdpfed stats"),
        (["method.spacing=odd"], "method.spacing=odd is not known: use even or decades"),
        (["method.bins=0"], "method.bins=0 must be a whole number from 1 to 1000"),
        (["run.num_rounds=5"], "counts once and takes no step, so run.num_rounds=5 has no effect"),
        (["training.learning_rate=3"], "training.learning_rate=3.0 has no effect"),
        (["run.evaluation=nodes"], "run.evaluation=nodes has no effect"),
        (["privacy.budgets_of=records"], "privacy.budgets_of=records has no effect"),
        (["method.by_party=true"], "set dataset.model=statistics_by_party, or use gdpfed stats"),
        (["method.by_party=true", "method.by=ward"], "goes neither with method.by nor with method.crossed"),
        (["dataset=digits", "dataset.model=statistics"], "dataset=digits is not a table: use dataset=csv"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(table, more, words):
    asked = [each for each in settings(table) if not (more[0].startswith("dataset=") and "csv" in each)]
    with pytest.raises((ConfigError, LearningError)) as raised:
        make_method(load([*asked, "privacy.budgets=[1]", *more]))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_client_that_is_protected_as_a_whole_has_no_table_of_its_own(table):
    words = settings(table, "method.by_party=true", unit="client", model="statistics_by_party")
    with pytest.raises(ConfigError, match="would show a table of each alone, under noise that hides it"):
        make_method(load(words))


@pytest.mark.parametrize("weight", [1.1, 10.0, 300.0])
def test_no_weight_lets_a_record_count_for_more(table, weight):
    """A node refuses a weight above 1 for counts, even if the clipping norm is divided by the weight."""
    order, encoding, bound = ordered(table, "record", 20)
    theta = np.zeros(order.task.dimension, np.float32)
    check_grid(order, theta, encoding)
    steps = replace(order.records, clipping_norm=bound / weight)
    with pytest.raises(OrderError, match="a record moves the counts by"):
        check_grid(replace(order, weight=weight, records=steps), theta, encoding)


def test_an_order_with_too_small_a_bound_counts_nothing(table, monkeypatch):
    monkeypatch.setattr("gdpfed.extras.statistics.methods.SLACK", -0.1)
    with pytest.raises(OrderError, match="a record moves the counts by"):
        sent(table, [*drawn_rows(20)], "record")


def test_cells_of_which_nothing_is_shown_have_no_line():
    cells = ("below", "0 to 9", "10 to 20", "above", "missing")
    counts: list[list[float | None]] = [[None, None], [12.0, None], [None, None], [None, 11.0], [None, None]]
    (table,) = crossed(CrossTable("age", "ward", cells, ("x", "y"), counts))
    assert [row[0] for row in table.rows] == ["0 to 9", "10 to 20", "above"]
