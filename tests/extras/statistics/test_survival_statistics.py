"""Tests of survival curves and the log-rank test: formulas, the effect of noise, and whole runs."""

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.errors import ConfigError, LearningError
from gdpfed.extras.statistics.audit.checks import _differences
from gdpfed.extras.statistics.audit.curves import curves_of as audited_curves
from gdpfed.extras.statistics.curves_shown import survival_note, survival_tables
from gdpfed.extras.statistics.layout import Asked, Layout
from gdpfed.extras.statistics.result import Statistics
from gdpfed.extras.statistics.rows import Counted, counts_of
from gdpfed.extras.statistics.survival import Point, curve, curves_of, falling, log_rank
from gdpfed.learning.data.tabular import own_columns
from gdpfed.methods import resolve
from tests.extras.statistics.counted_tables import audited_run, near, settings

SURVIVAL = Path(__file__).parents[1] / "survival" / "lifelines_reference.json"
REFERENCE = json.loads(SURVIVAL.read_text(encoding="utf-8"))
WEEKS = 35
NORMAL = 1.959963984540054


def counted(times, events, intervals=WEEKS):
    """Return counts of events and of censored times by interval, for times given as numbers of intervals."""
    times, events = np.asarray(times, int), np.asarray(events, bool)
    by_event = np.bincount(times[events] - 1, minlength=intervals)
    return np.concatenate([by_event, np.bincount(times[~events], minlength=intervals + 1)]).astype(float)


def of_groups(said):
    times, events, groups = (np.array(said[name]) for name in ("times", "events", "groups"))
    names = sorted(said["curves"])
    return names, np.array([counted(times[groups == int(n)], events[groups == int(n)]) for n in names])


@pytest.mark.parametrize("name", ["remissions", "drawn"])
def test_without_noise_curves_and_test_are_those_of_lifelines(name):
    names, counts = of_groups(REFERENCE[name])
    for group, row in zip(names, counts, strict=True):
        expected = REFERENCE[name]["curves"][group]
        points: Any = curve(group, range(1, WEEKS + 1), row, 0.0, 0.0).points
        compared = 0
        for time, survival, low, high in zip(
            *(expected[k] for k in ("times", "survival", "low", "high")), strict=True
        ):
            if not 0 < survival < 1:
                continue
            point = points[int(time) - 1]
            assert point.survival == pytest.approx(survival, abs=1e-12)
            # Theirs is on the scale of log(-log S); the standard deviation of log S is the same.
            spread = math.log(math.log(low) / math.log(high)) / 2 * -math.log(survival) / NORMAL
            assert math.log(point.survival / point.low) / 1.96 == pytest.approx(spread, rel=1e-6)
            compared += 1
        assert compared > 5
    test: Any = log_rank(names, counts, 0.0, 0.0)
    assert test.statistic == pytest.approx(REFERENCE[name]["log_rank"]["statistic"], rel=1e-9)
    assert test.p_value == pytest.approx(REFERENCE[name]["log_rank"]["p_value"], rel=1e-9)


ENDS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)


def drawn(draws, rates, size):
    """Draw the counts of groups, each with a constant hazard, over six intervals, with uniform censoring."""
    rows = []
    for rate in rates:
        happens = draws.geometric(rate, size)
        leaves = draws.integers(0, 9, size)
        seen = np.minimum(leaves, 6)
        events = (happens <= seen) & (happens <= 6)
        rows.append(counted(np.where(events, happens, seen), events, 6))
    return np.array(rows)


def test_bands_hold_what_they_promise_under_noise_that_is_larger_than_chance():
    draws, stddev, inside, off, tries = np.random.default_rng(3), 14.0, 0, [], 400
    true = 0.85**4
    for _ in range(tries):
        counts = drawn(draws, [0.15], 600)[0]
        point: Any = curve(None, ENDS, counts + draws.normal(0, stddev, 13), stddev, 0.0).points[3]
        inside += point.low <= true <= point.high
        off.append((point.survival - true) / point.noise_stddev)
    # Of 400 that hold in 95 %, fewer than 92 or more than 98 in 100 do once in some 400 tests.
    assert 0.92 <= inside / tries <= 0.98
    # Noise is most of what they are off, and chance some of it.
    assert 1.0 < np.std(off) < 1.6


def test_groups_that_survive_alike_are_told_apart_by_one_test_in_twenty():
    draws, stddev, tries = np.random.default_rng(4), 10.0, 400
    found = []
    for rates in ([0.15] * 3, [0.15, 0.15, 0.3]):
        tests: list[Any] = [
            log_rank("abc", drawn(draws, rates, 400) + draws.normal(0, stddev, (3, 13)), stddev, 0.0)
            for _ in range(tries if rates[2] == 0.15 else 20)
        ]
        found.append(np.mean([test.p_value < 0.05 for test in tests]))
    assert 0.02 <= found[0] <= 0.085
    assert found[1] > 0.9


def test_a_curve_is_the_nearest_that_never_rises():
    draws = np.random.default_rng(5)
    for count in range(1, 9):
        values = draws.normal(size=count)
        found = falling(values)
        assert (np.diff(found) <= 1e-12).all()
        assert found.sum() == pytest.approx(values.sum())
        # Of all curves between the same levels none is nearer.
        for other in (np.sort(draws.normal(size=count))[::-1] for _ in range(50)):
            assert ((found - values) ** 2).sum() <= ((other - values) ** 2).sum() + 1e-12


@pytest.mark.parametrize("stddev", [0.0, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("least", [0.0, 10.0, 500.0])
def test_the_audit_has_the_same_curves_by_other_formulas(stddev, least):
    draws = np.random.default_rng(6)
    counts = np.concatenate([drawn(draws, [0.1, 0.2], 300), np.zeros((1, 13))])
    counts += draws.normal(0, stddev, counts.shape)
    for groups in (("a", "b", "missing"), ()):
        part = counts if groups else counts[:1]
        curves, test = curves_of(ENDS, groups, part, stddev, least)
        again, tested = audited_curves(ENDS, groups, part, stddev, least)
        ours = [asdict(each) for each in curves]
        assert [*_differences(ours, again, "curves")] == []
        assert [*_differences(test and asdict(test), tested, "test")] == []
        assert [*_differences(ours[:-1], again, "curves")] != []


def test_nothing_is_said_where_nobody_is_at_risk_or_nothing_happens():
    nothing = curve(None, ENDS, np.zeros(13), 1.0, 0.0)
    assert {point.survival for point in nothing.points} == {None}
    assert nothing.median.value is None
    nobody_dies = counted([6] * 50, [False] * 50, 6)
    assert [point.survival for point in curve(None, ENDS, nobody_dies, 0.0, 0.0).points] == [1.0] * 6
    both = np.array([nobody_dies, nobody_dies])
    alike = log_rank("ab", both, 0.0, 0.0)
    assert alike is not None
    assert alike.p_value == 1.0
    assert log_rank("ab", np.array([nobody_dies, np.zeros(13)]), 1.0, 0.0) is None


DECLARATION = """\
label: {time: days, event: {column: status, censored: [alive], happened: [dead]}, edges: [10, 20, 40]}
numeric: {age: [0, 100]}
categorical: {arm: [old, new]}
party: {column: site, values: [a, b, c, d]}
test: {column: part, values: [test]}
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write a table of 320 times to an event at four sites, without events at site a; return its path."""
    folder, draws = tmp_path_factory.mktemp("followed"), np.random.default_rng(7)
    lines = ["site,age,arm,days,status,part"]
    for number in range(320):
        arm, days = number // 4 % 2, draws.exponential(25)
        left = draws.uniform(0, 60)
        status = "dead" if days <= left and number % 4 else "alive"
        part = "test" if number % 10 == 3 else "train"
        lines.append(f"{'abcd'[number % 4]},50,{('old', 'new')[arm]},{min(days, left):.3f},{status},{part}")
    (folder / "data.csv").write_text("\n".join([*lines, ""]))
    (folder / "columns.yaml").write_text(DECLARATION)
    return folder / "data.csv"


def words_of(table, *more, **chosen):
    return settings(table, "method.survival=true", *more, model="statistics_survival", **chosen)


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    words = ("privacy.budgets=[600]", "method.by=arm", "method.minimum_count=0")
    return audited_run(directory, words_of(table, *words))


def test_counts_are_those_of_the_rows_that_a_training_would_learn_from(table, run):
    rows = [line.split(",") for line in table.read_text().splitlines()[1:] if line.endswith("train")]
    found = Statistics.read(run)
    assert found is not None
    assert (found.moves, found.columns, [each.group for each in found.curves]) == (
        *(1.0, []),
        [None, "old", "new", "missing"],
    )
    for each in found.curves[:3]:
        own = [row for row in rows if each.group in (None, row[2])]
        # At most every cell is added up: seven of a group, 21 of all.
        off = 6 * found.noise_stddev * math.sqrt(21 if each.group is None else 7)
        assert near(each.n, len(own))
        for low, point in zip((0, 10, 20), each.points, strict=True):
            died = sum(row[4] == "dead" and low < float(row[3]) <= point.end for row in own)
            middle = (low + point.end) / 2
            stayed = sum(float(row[3]) > low if row[4] == "dead" else float(row[3]) >= middle for row in own)
            assert point.events == pytest.approx(died, abs=off)
            assert point.at_risk == pytest.approx(stayed, abs=off)


def test_one_record_is_in_one_cell(table):
    layout = Layout.of(own_columns(table), Asked(survival=True, by="arm"))
    assert (layout.size, layout.moves) == (3 * 7, 1.0)
    cells = np.stack([np.arange(7), np.arange(7) % 3], axis=1)
    everything, unit = counts_of(layout, Counted(cells, np.ones(7)), 1e-3)
    for left_out in range(7):
        rest = Counted(np.delete(cells, left_out, axis=0), np.ones(6))
        moved = unit * np.linalg.norm(everything - counts_of(layout, rest, 1e-3)[0])
        assert 0.99 < moved <= 1


EDITS = {
    "a survival": lambda found: found["curves"][1]["points"][1].update(survival=0.99),
    "a band": lambda found: found["curves"][0]["points"][0].update(low=0.0),
    "a median": lambda found: found["curves"][0]["median"].update(value=1.0),
    "the test": lambda found: found["log_rank"].update(p_value=0.5),
    "a curve": lambda found: found["curves"].pop(),
    "all curves": lambda found: found.pop("curves"),
}


def test_the_audit_finds_an_edited_curve(run, tmp_path):
    assert audit_run(run).findings == ()
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = copy / "statistics.json"
    before = path.read_text()
    for name, edit in EDITS.items():
        values = json.loads(before)
        edit(values)
        path.write_text(json.dumps(values))
        findings = audit_run(copy).findings
        assert any(each.startswith("statistics.json") and "hash" not in each for each in findings), name


def test_tables_and_a_picture_show_the_curves(run, capsys):
    assert main(["stats", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Survival of old:" in said
    assert "Log-rank test: do the groups survive alike?" in said
    assert "Bands hold for one end of an interval at a time (95 %)" in said
    page, found = (run / "statistics.html").read_text(), Statistics.read(run)
    assert found is not None
    # A group of which nothing is known is named below the tables, and has none.
    ends = [Point(point.end) for point in found.curves[2].points]
    empty = replace(found, curves=[found.curves[1], replace(found.curves[2], points=ends)])
    assert [table.title.partition(":")[0] for table in survival_tables(empty)][:-1] == ["Survival of old"]
    assert survival_note(empty).endswith("Left out, as nothing is known of them: new")
    # Noise may give a curve to "missing", which has no record.
    drawn = [each.group for each in found.curves[1:] if each.points and each.points[0].survival is not None]
    assert drawn[:2] == ["old", "new"]
    assert page.count("<polygon") == page.count("<polyline") == len(drawn)


def test_columns_of_such_a_table_are_counted_as_others_are(table, tmp_path):
    run = audited_run(tmp_path / "run", settings(table, "privacy.budgets=[600]", "method.minimum_count=0"))
    assert audit_run(run).findings == ()
    found = Statistics.read(run)
    assert found is not None
    (status,) = (each for each in found.columns if each.name == "status")
    dead = sum(",dead,train" in line for line in table.read_text().splitlines())
    assert status.cells == ["alive", "dead"]
    assert status.counts[1] == pytest.approx(dead, abs=6 * found.noise_stddev)


@pytest.mark.parametrize(
    ("more", "unit", "line"),
    [
        (["method.columns=[age]"], "record", "method.survival=true counts events and censored records alone"),
        (["method.crossed=[[age,arm]]"], "record", "counts events and censored records alone"),
        (["method.by=age"], "record", "method.by=age is no input with values"),
        (["method.by=status"], "record", "method.by=status is no input with values"),
        ([], "client", "for which a survival curve has no valid band: use privacy=record_level"),
    ],
)
def test_what_survival_does_not_go_with_is_refused(table, more, unit, line):
    with pytest.raises((ConfigError, LearningError), match=line):
        resolve(load(words_of(table, *more, unit=unit)))


def test_survival_of_labels_that_are_no_times_is_refused(table, tmp_path):
    columns = tmp_path / "columns.yaml"
    columns.write_text("label: {column: status, classes: [alive, dead]}\nnumeric: {age: [0, 100]}\n")
    with pytest.raises(LearningError, match="and the declared label is not one: declare label"):
        resolve(load(words_of(table, f"dataset.columns={columns}")))
    with pytest.raises(ConfigError, match="set dataset.model=statistics_survival"):
        resolve(load(settings(table, "method.survival=true")))
