"""Tests of times to an event as labels: declarations, tables, the loss, concordance, the Brier score."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpfed.cli import main
from gdpfed.errors import LearningError
from gdpfed.extras.survival.figures import BRIER, CONCORDANCE, pairs
from gdpfed.extras.survival.hazards import discrete_hazard
from gdpfed.extras.survival.labels import Times
from gdpfed.learning.data.declaration import columns_of, read_columns, to_yaml
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.table_rows import read_rows
from gdpfed.learning.data.times_to_event import TimesToEvent, interval_of, survived
from gdpfed.yaml_files import read_yaml

REFERENCE = json.loads(Path(__file__).with_name("lifelines_reference.json").read_text(encoding="utf-8"))
WORDS = "{column: status, censored: [alive, moved], happened: dead}"
LABEL = f"time: days, event: {WORDS}, edges: [10, 20, 40]"
FAULTS = [
    *("50,-1,dead", "50,,dead", "50,nan,alive", "50,soon,alive"),
    *("50,5,", "50,5,sold", "50,inf,alive", "50,5,alive"),
]
NO_TIME = "column 'days' is empty, and it must say when the event happened, or until when nothing had"
INPUTS = "numeric: {age: [0, 100]}\n"


def table(folder, lines, label, header="age,days,status"):
    path = folder / "data.csv"
    path.write_text("\n".join([header, *lines, ""]))
    path.with_name("columns.yaml").write_text(f"label: {{{label}}}\n{INPUTS}")
    return path


def rows_in(path):
    return read_rows(path, read_columns(path.with_name("columns.yaml")), str(path), shared_out=False)


def found_in(path):
    return [each.words for each in check_table(path, read_columns(path.with_name("columns.yaml")))[1]]


def declared(text):
    return columns_of(read_yaml(f"label: {{{text}}}\n{INPUTS}", as_texts=True), "columns.yaml")


def test_a_label_is_a_place_in_the_intervals_and_whether_the_event_happened_there(tmp_path):
    said = ["0,dead", "10,dead", "10.01,dead", "20,moved", "25,alive", "40,dead", "41,dead"]
    path = table(tmp_path, [f"50,{each}" for each in said], LABEL)
    labels = rows_in(path).y
    assert labels.dtype == np.float32
    np.testing.assert_allclose(labels[:, 0], [0, 1, 1.001, 2, 2.25, 3, 3], rtol=1e-6)
    assert labels[:, 1].tolist() == [1, 1, 1, 0, 0, 1, 0]
    assert interval_of(labels[labels[:, 1] > 0, 0]).tolist() == [0, 0, 1, 2]
    assert survived(labels[labels[:, 1] == 0, 0]).tolist() == [2, 2, 3]


def test_rounding_moves_no_time_over_the_end_of_its_interval():
    times = TimesToEvent("t", "e", ("0",), ("1",), tuple(float(each) for each in range(30, 361, 30)))
    just_after = np.nextafter(np.array([0.0, *times.edges[:-1]]), np.inf)
    at_the_end = np.array(times.edges)
    for moments in (just_after, at_the_end):
        labels = times.labels(moments, np.ones(12, np.int64))
        assert interval_of(labels[:, 0]).tolist() == [*range(12)]


def test_equal_intervals_are_declared_by_their_number_and_the_horizon_and_events_by_0_and_1():
    columns = declared("time: days, event: died, intervals: 4, horizon: 2")
    assert columns.times == TimesToEvent("days", "died", ("0",), ("1",), (0.5, 1.0, 1.5, 2.0))
    assert columns.class_names == ("0.5", "1", "1.5", "2")
    again = columns_of(read_yaml(to_yaml(columns), as_texts=True), "again")
    assert again == columns
    assert again.digest == columns.digest != declared("time: days, event: died, edges: [1, 2]").digest


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("time: days", "lacks the key 'label.event'"),
        ("time: days, event: died", "it must have edges, the ends of its intervals"),
        ("time: days, event: died, horizon: 9", "or intervals and a horizon"),
        ("time: days, event: died, intervals: 9", "or intervals and a horizon"),
        ("time: days, event: died, edges: [1], intervals: 2, horizon: 9", "it must have edges"),
        ("time: days, event: died, edges: [5, 3]", r"label.edges is \['5', '3'\]; it must be rising numbers"),
        ("time: days, event: died, edges: [0, 3]", "must be rising numbers above 0"),
        ("time: days, event: died, intervals: 0, horizon: 9", "a whole number from 1 to 1000"),
        ("time: days, event: died, intervals: 2.5, horizon: 9", "a whole number from 1 to 1000"),
        ("time: days, event: died, intervals: 3, horizon: -9", "label.horizon is '-9'; it must be a number"),
        ("time: days, event: days, edges: [3]", "declares the column 'days' twice"),
        ("time: days, event: died, classes: [a, b]", "key 'label.classes' is not known"),
        ("time: days, event: {column: s, censored: [a], happened: [a]}, edges: [3]", "and 'a' is both"),
        ("time: days, event: {column: s, happened: [a]}, edges: [3]", "lacks the key 'label.event.censored'"),
    ],
)
def test_a_declaration_that_is_none_is_one_line(label, line):
    with pytest.raises(LearningError, match=line) as refused:
        declared(label)
    assert "\n" not in str(refused.value)


def test_each_time_and_event_that_is_none_is_named_by_its_line(tmp_path):
    path = table(tmp_path, FAULTS, LABEL)
    columns = read_columns(path.with_name("columns.yaml"))
    found = {each.words: each.lines for each in check_table(path, columns)[1] if each.is_fault}
    assert len(found) == 7
    for words, lines in (
        ("column 'days' holds '-1', which is below 0, and a time begins at 0", (2,)),
        (NO_TIME, (3,)),
        (NO_TIME.replace("is empty", "holds 'nan'"), (4,)),
        ("column 'status' is empty, which is not one of alive, moved, dead", (6,)),
        ("column 'status' holds 'sold', which is not one of alive, moved, dead", (7,)),
        ("column 'days' holds 'soon', which is not a number", (5,)),
        ("column 'days' holds 'inf', which is not a number", (8,)),
    ):
        assert [where for said, where in found.items() if said.startswith(words)] == [lines], words
    for line in FAULTS[:-1]:
        with pytest.raises(LearningError, match="row 1"):
            rows_in(table(tmp_path, [line, FAULTS[-1]], LABEL))
    dropped = table(tmp_path, ["50,,dead", "50,5,", "50,5,dead"], LABEL)
    with dropped.with_name("columns.yaml").open("a") as file:
        file.write("missing_labels: drop\n")
    assert len(rows_in(dropped)) == 1


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        (
            ["50,5,dead", "51,15,alive", "52,35,dead", "53,50,dead", "54,40,alive"],
            [
                "columns 'days' and 'status': 2 events up to 40, 1 records censored before it, 2 without an "
                "event until then",
                "1 of 3 intervals hold no event, those that end at 20",
            ],
        ),
        (["50,5,alive", "51,9,moved"], ["there is no event up to 40: of such labels nothing is learnt"]),
        (["50,90,dead", "51,80,dead"], ["there is no event up to 40: of such labels nothing is learnt"]),
    ],
)
def test_a_check_says_what_it_found(tmp_path, lines, notes):
    found = found_in(table(tmp_path, lines, LABEL))
    for note in notes:
        assert note in found


def test_what_a_check_refuses_is_told_on_the_command_line(tmp_path, capsys):
    path = table(tmp_path, FAULTS, LABEL)
    assert main(["check", str(path)]) == 1
    assert "column 'days' holds '-1', which is below 0" in capsys.readouterr().out


def test_parquet_says_the_same_with_nan_and_booleans(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"age": [50.0, 51.0], "days": [5.0, 12.0], "died": [True, False]}
    path = tmp_path / "data.parquet"
    path.with_name("columns.yaml").write_text(
        f"label: {{time: days, event: died, edges: [10, 20]}}\n{INPUTS}"
    )
    parquet.write_table(pa.table(columns), path)
    assert rows_in(path).y.tolist() == pytest.approx(np.array([[0.5, 1], [1.2, 0]]))
    parquet.write_table(pa.table(columns | {"days": [5.0, float("nan")]}), path)
    with pytest.raises(LearningError, match="row 2 has no label in the column 'days'"):
        rows_in(path)


def hazards_by_hand(logits, place, event):
    """Return the negative log-likelihood of one record, summed interval by interval."""
    total, chances = 0.0, 1 / (1 + np.exp(-logits))
    for interval, chance in enumerate(chances):
        if (event and interval < place <= interval + 1) or (event and interval == place == 0):
            return total - np.log(chance)
        if not event and place < interval + 0.5:
            return total
        total -= np.log(1 - chance)
    return total


def test_the_loss_is_the_likelihood_of_the_intervals_at_risk():
    draws = np.random.default_rng(0)
    places = [0, 0.2, 0.5, 0.7, 1, 1.49, 1.5, 2, 2.9, 3, 4]
    for event in (0, 1):
        logits = draws.normal(size=(len(places), 4))
        targets = torch.tensor([[place, event] for place in places], dtype=torch.float32)
        found = discrete_hazard(torch.from_numpy(logits), targets)
        expected = [hazards_by_hand(row, place, event) for row, place in zip(logits, places, strict=True)]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["remissions", "drawn"])
def test_hazards_that_fit_best_are_those_of_kaplan_meier(name):
    """If each time is the end of an interval, the loss is least at the hazards of Kaplan and Meier."""
    said, weeks = REFERENCE[name], 35
    times, events = np.array(said["times"], float), np.array(said["events"])
    intervals = TimesToEvent("t", "e", ("0",), ("1",), tuple(float(each) for each in range(1, weeks + 1)))
    for group, curve in said["curves"].items():
        chosen = np.array(said["groups"]) == int(group)
        labels = torch.from_numpy(intervals.labels(times[chosen], events[chosen]))
        known = dict(zip(curve["times"], curve["survival"], strict=True))
        survival = np.array([known[max(time for time in known if time <= week)] for week in range(weeks + 1)])
        hazards = 1 - survival[1:] / np.maximum(survival[:-1], 1e-12)
        logits = torch.logit(torch.from_numpy(hazards), eps=1e-9).requires_grad_()
        discrete_hazard(logits.expand(len(labels), -1), labels).sum().backward()
        assert logits.grad is not None
        assert logits.grad.abs().max() < 1e-6
        kind = Times(weeks, (2,))
        curves = kind.probabilities(logits.detach()[None]).numpy()
        np.testing.assert_allclose(curves[0], survival[1:], atol=1e-7)
        if np.isfinite(curve["median"]):
            names = np.array(intervals.interval_names, dtype=object)
            assert curve["median"] - 1 <= kind.answers(curves, names)[0] <= curve["median"]


def scores(expected):
    """Return outputs of a model with one interval, in which a larger ``expected`` means a later event."""
    return -np.asarray(expected, dtype=float)[:, None]


@pytest.mark.parametrize("name", ["remissions", "drawn"])
def test_concordance_is_that_of_lifelines(name):
    said = REFERENCE[name]
    targets = np.stack([said["times"], said["events"]], axis=1).astype(float)
    assert CONCORDANCE.of(scores(said["expected"]), targets) == pytest.approx(said["concordance"], abs=1e-12)


def test_pairs_are_those_that_are_looked_at_one_by_one():
    draws = np.random.default_rng(1)
    for count, ties in ((1, 3), (9, 2), (60, 4), (700, 12)):
        times, event = draws.integers(0, ties, count), draws.random(count) < 0.6
        expected = draws.integers(0, 5, count).astype(float)
        before = (times[:, None] < times) | ((times[:, None] == times) & ~event)
        known = before & event[:, None]
        right, alike = (expected[:, None] < expected, expected[:, None] == expected)
        assert pairs(expected, times, event) == (known.sum(), (known & right).sum(), (known & alike).sum())


def test_concordance_is_not_known_without_a_pair():
    for targets in ([[1, 0], [2, 0]], [[3, 1], [3, 1]], [[2, 1]]):
        assert CONCORDANCE.of(scores(range(len(targets))), np.array(targets, float)) is None


def brier_by_hand(curves, times, event):
    """Return Graf's Brier score, averaged over the interval ends, with weights computed in plain loops."""

    def seen_before(moment):
        chance = 1.0
        for c in sorted({t for t, e in zip(times, event, strict=True) if not e and t < moment}):
            risk = sum(t > c or (t == c and not e) for t, e in zip(times, event, strict=True))
            chance *= 1 - sum(t == c and not e for t, e in zip(times, event, strict=True)) / risk
        return chance

    found = []
    for end in range(1, curves.shape[1] + 1):
        if not seen_before(end):
            break
        total = 0.0
        for survival, t, e in zip(curves[:, end - 1], times, event, strict=True):
            if e and t <= end:
                total += survival**2 / seen_before(t)
            elif t >= end:
                total += (1 - survival) ** 2 / seen_before(end)
        found.append(total / len(times))
    return np.mean(found)


def test_the_brier_score_is_that_of_graf():
    draws = np.random.default_rng(2)
    for grain in (1, 4, 1000):
        times = np.minimum(np.ceil(draws.exponential(2.5, 40) * grain) / grain, 4)
        event = (draws.random(40) < 0.6) & (times < 4)
        outputs = draws.normal(size=(40, 4))
        curves = np.cumprod(1 / (1 + np.exp(outputs)), axis=1)
        found = BRIER.of(outputs, np.stack([times, event], axis=1).astype(float))
        assert found == pytest.approx(brier_by_hand(curves, times.tolist(), event.tolist()))


def test_who_knows_all_has_a_brier_score_of_0_and_a_coin_a_quarter():
    targets = np.array([[0.5, 1], [1.5, 1], [2, 0]], float)
    knows = np.where(np.array([[1, 1], [0, 1], [0, 0]]) > 0, 50.0, -50.0)
    assert BRIER.of(knows, targets) == pytest.approx(0, abs=1e-12)
    coin = np.array([[0.0, -50.0]] * 3)
    assert BRIER.of(coin, targets) == pytest.approx(0.25)
    assert BRIER.of(coin, np.array([[0.2, 0], [0.3, 0]])) is None


def test_labels_that_are_none_are_known_and_medians_are_in_the_unit_of_the_ends():
    kind = Times(3, (2,))
    labels = np.array([[0, 1], [3, 0], [3.1, 0], [-1, 1], [1, 2], [np.nan, 0], [1, np.nan]], np.float32)
    assert kind.unfit(labels).tolist() == [False, False, *[True] * 5]
    assert kind.counts(np.array([[[0.5, 1], [2.5, 1]], [[3, 0], [np.nan, np.nan]]])).tolist() == [1, 0, 1]
    survival = np.array([[0.75, 0.25, 0.1], [0.9, 0.8, 0.7], [0.5, 0.4, 0.1], [0.2, 0.1, 0]], np.float32)
    medians = kind.answers(survival, np.array(["10", "30", "90"], dtype=object))
    np.testing.assert_allclose(medians, [20, np.nan, 10, 6.25], rtol=1e-6)
