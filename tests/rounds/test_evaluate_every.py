"""Tests of runs whose model is evaluated on the server only every few rounds."""

from math import isnan

import numpy as np
import pytest

from conf.errors import ConfigError
from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import TrainingOver
from gdpfed.report.evaluated import Result
from gdpfed.report.finished_run import read_run
from gdpfed.report.metric_display import Spread
from gdpfed.report.plots import draw_curves, line_style, new_figure, new_panels
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.in_process_fleet import InProcessFleet
from testing.small_runs import only_a_card, small_config

FIVE = ("method=fedavg", "run.num_rounds=5", "dataset.num_rounds=5", "privacy.sampling_rate=1")


class Counts(Extension):
    """Extension that notes which rounds were evaluated, and ends the training after `rounds` rounds."""

    key = "counts"

    def __init__(self, rounds=5):
        self.evaluated_rounds, self.rounds = list[int](), rounds

    def evaluated(self, ended):
        self.evaluated_rounds.append(ended.record.round)

    def start(self, order, theta):
        if order.round_index >= self.rounds:
            raise TrainingOver("enough")
        return theta


def run_of(path, *overrides, more=(), resume=False):
    prepared = PreparedRun.of(small_config(path, [*FIVE, *overrides], resume=resume))
    fleet = InProcessFleet(prepared.config.secagg, "sim", SequentialEngine())
    with prepared.open(fleet, only_a_card, lambda line: None, more=more) as opened:
        list(opened.rounds())
        opened.conclude()
    return read_rounds(path)


def test_the_model_is_tested_after_every_second_round_and_after_the_last(tmp_path):
    every, counts = run_of(tmp_path / "every"), Counts()
    some = run_of(tmp_path / "some", "run.evaluate_every=2", more=[counts])
    assert [record.accuracy for record in some] == [
        None if record.round in (1, 3) else record.accuracy for record in every
    ]
    assert counts.evaluated_rounds == [2, 4, 5]
    finished = read_run(tmp_path / "some")
    assert [isnan(each) for each in finished.results] == [True, False, True, False, False]
    figure = new_figure(4, 3)
    (axes,) = new_panels(figure, 1, columns=1)
    draw_curves(axes, [(line_style(0), "some", [Spread.of([each]) for each in finished.results])])
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [2, 4, 5]


def test_a_run_that_pauses_is_evaluated_before(tmp_path):
    first = run_of(tmp_path / "run", "run.evaluate_every=4", "run.stop_after_round=3")
    assert [record.evaluated for record in first] == [False, False, True]
    assert [each.evaluated for each in run_of(tmp_path / "run", resume=True)] == [*[False] * 2, *[True] * 3]


def test_a_run_that_ends_early_shows_the_last_round_that_was_evaluated(tmp_path):
    records = run_of(tmp_path / "run", "run.evaluate_every=2", more=[Counts(rounds=3)])
    assert len(records) == 3
    result = Result.of(tmp_path / "run", records[-1])
    assert str(result).startswith("accuracy ")
    assert str(result).endswith("after round 2, the last one that was evaluated (run.evaluate_every)")
    assert read_run(tmp_path / "run").final_result == 100 * (records[1].accuracy or 0)
    assert audit_run(tmp_path / "run").findings == ()
    assert "test set after round 2: " in (tmp_path / "run" / "model_card.md").read_text()


def test_at_least_one_round_is_evaluated():
    with pytest.raises(ConfigError, match="run.evaluate_every=0 must be"):
        load(["run.evaluate_every=0"])
