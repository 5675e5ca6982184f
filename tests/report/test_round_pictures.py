"""Tests of pictures of rounds and of spent budgets: they show what the plan and the records say."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

from conf.load import load
from gdpfed.cli import main
from gdpfed.methods import make_method
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from gdpfed.report import round_pictures, spent_picture
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.metric_display import COLOURS
from gdpfed.report.spending import Spending, Step, spending_of
from gdpfed.runs.round_log import RoundLogEntry

ENTRY = RoundLogEntry(
    round=1,
    accuracy=0.5,
    loss=1.0,
    cohort_sizes=[4, 6],
    survivors=[3, 6],
    failures={},
    spent_epsilon=[0.5, 1.0],
    epsilon_against_server=[None, None],
    groups_in_sums=[[0], [1]],
    seconds={"train": 2.0, "total": 3.0},
)


@pytest.fixture
def drawn(monkeypatch):
    """Replace the writing of pictures; return a list that gets each matplotlib figure in place of a file."""
    found = []
    for module in (round_pictures, spent_picture):
        monkeypatch.setattr(module, "save", lambda figure, path: found.append(figure))
    return found


def bars(axes):
    """Return the left end, the width and the vertical middle of every bar in a plot."""
    return [
        (round(each.get_x(), 6), round(each.get_width(), 6), round(each.get_y() + each.get_height() / 2, 6))
        for each in axes.patches
    ]


def test_turns_are_drawn_as_they_are_planned_and_noise_as_it_is_taken_back(drawn, tmp_path):
    given = [
        "dataset.num_clients=12",
        "run.num_rounds=12",
        "privacy.noise_taps=2",
        "privacy.against=everyone",
    ]
    plan = make_method(load([*given, "method=gdpfed_star", "privacy.sampling_rate=0.25"])).plan
    assert report_of(plan).draw(plan, (), tmp_path / "turns.png")
    (figure,) = drawn
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"client {each}" for each in range(12)]
    assert isinstance(plan.mechanism, ScheduledSums)
    schedule = plan.mechanism.schedule(0, plan.groups)
    turns = {(client, number + 1) for number in range(12) for client in schedule.due(number)}
    taps = plan.mechanism.taps_of(0)
    backs = {
        (client, turn + lag)
        for client, turn in turns
        for lag, tap in enumerate(taps, start=1)
        if tap > 0 and turn + lag <= 12
    }
    assert backs
    middles = [
        (int(row), round(left + width / 2), patch.get_hatch())
        for patch, (left, width, row) in zip(axes.patches, bars(axes), strict=True)
    ]
    assert {(row, middle) for row, middle, hatch in middles if not hatch} == turns
    assert {(row, middle) for row, middle, hatch in middles if hatch} == backs
    (legend,) = figure.legends
    said = legend.get_texts()[0].get_text()
    assert said.endswith(f"{100 * taps[0]:.0f} %, then {100 * taps[1]:.0f} % of its noise taken back")


def test_noise_is_drawn_where_it_was_taken_back_if_that_is_known():
    row = round_pictures.TurnRow("Bonn", 0, [1, 4])
    assert row.rounds_of_backs((0.5, 0.0, 0.25), 6) == [2, 4, 5]
    assert replace(row, backs=[2]).rounds_of_backs((0.5, 0.0, 0.25), 6) == [2]


def test_a_plan_of_many_clients_shows_the_first_of_each_group():
    group = round_pictures.TurnGroup(range(100), 1.0, (0.5,))
    other = replace(group, clients=range(100, 150))
    shown = round_pictures.shown_clients([group, other])
    assert len(shown) <= round_pictures.MOST_CLIENTS
    assert [client for number, client in shown if number == 1] == list(range(100, 110))


def test_a_timeline_has_who_answered_who_did_not_and_what_is_left_of_the_time(drawn, tmp_path):
    failed = replace(ENTRY, round=2, survivors=[0, 0], failures={"round": "too few"})
    round_pictures.draw_rounds([ENTRY, failed], tmp_path / "rounds.png")
    clients, seconds = drawn[0].axes
    assert bars(clients) == [(0, 9, 0), (0, 0, 1), (9, 1, 0), (0, 10, 1)]
    assert bars(seconds) == [(0, 2, 0), (0, 2, 1), (2, 1, 0), (2, 1, 1)]
    assert [each.get_text() for each in clients.texts] == ["no sum"]
    assert not {to_hex(each.get_facecolor()) for each in clients.patches} & {
        to_hex(each.get_facecolor()) for each in seconds.patches
    }


def test_a_timeline_of_many_rounds_keeps_those_that_failed():
    records = [replace(ENTRY, round=number) for number in range(1, 402)]
    records[250] = replace(records[250], failures={"round": "too few"})
    shown = [record.round for record in round_pictures.shown_rounds(records)]
    assert {1, 251} <= set(shown)
    assert len(shown) <= round_pictures.MOST_ROWS + 1


def finished(path, spent, budgets, parties=None):
    """Return a finished run of four clients in two groups."""
    path.mkdir()
    assignment = {"clients": [[[0, 2]], [[2, 4]]], **({"parties": parties} if parties else {})}
    (path / "assignment.json").write_text(json.dumps(assignment))
    groups = [{"clients": 2, "epsilon": each} for each in budgets]
    settings = {"dataset": {"name": "digits"}}
    return FinishedRun(path, settings, {"groups": groups}, [replace(ENTRY, spent_epsilon=spent)], 1)


def test_runs_on_the_same_data_add_up_party_by_party(drawn, tmp_path):
    names = ["Bonn", "Fulda", "Kiel", "Ulm"]
    runs = [
        finished(tmp_path / "first", [0.5, 2.0], [1.0, 3.0], names),
        finished(tmp_path / "second", [1.0, None], [1.0, None], names),
    ]
    found = spending_of(runs)
    two, one = [Step(0.0, 0.5, 1.0), Step(0.5, 1.5, 1.5)], [Step(0.0, 2.0, 3.0)]
    expected = dict(zip((f"Digits: {name}" for name in names), (two, two, one, one), strict=True))
    assert {each.party: list(each.steps) for each in found} == expected
    spent_picture.draw_spent(found, tmp_path / "spent.png")
    bonn = drawn[0].axes[0]
    heights = [(each.get_y(), each.get_height()) for each in bonn.patches]
    assert heights == [(0, 0), (0, 0.5), (0, 0.5), (0.5, 1)]
    assert {to_hex(each.get_facecolor()) for each in bonn.patches} == {COLOURS[0].lower()}
    (limits,) = (each for each in bonn.collections)
    assert [segment[0][1] for segment in limits.get_segments()] == [1.0, 1.5]


def test_many_clients_are_one_party_a_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.report.spending.MOST_PARTIES", 3)
    run = finished(tmp_path / "run", [0.5, 2.0], [1.0, 3.0])
    assert [each.party for each in spending_of([run])] == [
        "Digits: 2 clients, budget 1",
        "Digits: 2 clients, budget 3",
    ]


def test_no_more_panels_are_drawn_than_a_page_holds(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(spent_picture, "MOST_PANELS", 3)
    spent = [Spending(f"party {number}", [Step(0, 1, 1)]) for number in range(4)]
    spent_picture.draw_spent(spent, tmp_path / "spent.png")
    assert len(drawn[0].axes) == 3


def test_a_plan_without_turns_has_no_picture(tmp_path, capsys):
    picture = tmp_path / "turns.png"
    sampled = ["method=dp_fedavg", "privacy.against=outsiders", "privacy.accountant=rdp"]
    assert main(["plan", *sampled, "--output", str(picture)]) == 2
    error = capsys.readouterr().err
    assert "this plan has no picture: leave --output out" in error
    assert error.count("\n") == 1
    assert not picture.exists()
