"""Tests of extensions: those of docs/extending.md word for word, and those that ask for uncharged sums."""

import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import ConfigError, PrivacyError, RunError
from gdpfed.report.ending import show_ending
from gdpfed.report.finished_run import read_run
from gdpfed.report.run_status import RunStatus
from gdpfed.rounds.extensions.base import Extension, RoundLeftOut
from gdpfed.rounds.extensions.correlated_noise import CorrelatedNoise
from gdpfed.rounds.extensions.table import EXTENSIONS, OWN, extensions_of
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import MODEL_CARD_FILE
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.project import DOCS
from testing.small_runs import final_model, small_config

PAGE = DOCS / "extending.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FEDAVG = (
    "dataset.num_clients=12",
    "privacy.sampling_rate=1",
    "method=fedavg",
    "secagg=off",
    "run.num_rounds=5",
)


def of_page(name):
    """Return a class of docs/extending.md by name, and the number of lines of its code block."""
    (block,) = [text for text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if f"class {name}(" in text]
    module: dict[str, Any] = {}
    exec(block, module)  # noqa: S102 - the page of this project
    return module[name], len([line for line in block.splitlines() if line.strip()])


@pytest.fixture
def named(monkeypatch):
    """Return a function that replaces all registered extensions by those that it gets, for this test."""

    def name(**extensions):
        monkeypatch.setattr(EXTENSIONS, "_items", extensions)

    return name


def config(*overrides):
    return load([*FEDAVG, *overrides])


def test_training_stops_when_nothing_becomes_better_and_goes_on_counting_when_resumed(tmp_path, named):
    stop, lines = of_page("EarlyStop")
    named(early_stop=stop)
    assert lines <= 30
    still = ("run.extensions={early_stop: {patience: 2}}", "training.learning_rate=1e-8")
    simulate(config(*still, f"run.directory={tmp_path / 'run'}", "run.stop_after_round=2"))
    assert Checkpoint.load(tmp_path / "run").method_state["early_stop.seen"].tolist()[1] == 1
    simulate(load_run([f"run.resume={tmp_path / 'run'}", "run.stop_after_round=null"]))
    assert [record.round for record in read_rounds(tmp_path / "run")] == [1, 2, 3]


def test_the_model_of_the_best_round_is_released(tmp_path, named, monkeypatch):
    best, lines = of_page("BestRound")
    models: dict[float, Any] = {}
    evaluated = best.evaluated

    def noted(self, ended):
        evaluated(self, ended)
        models.setdefault(ended.record.shown[1], ended.released.copy())

    monkeypatch.setattr(best, "evaluated", noted)
    named(best_round=best)
    assert lines <= 30
    wild = ("run.extensions={best_round: {}}", "training.learning_rate=2")
    simulate(config(*wild, f"run.directory={tmp_path / 'run'}"))
    assert len(models) > 1
    # The file has the tensors by name, and the vector in the order of the model.
    released, expected = np.sort(final_model(tmp_path / "run")), np.sort(models[max(models)])
    np.testing.assert_array_equal(released, expected)
    assert audit_run(tmp_path / "run").findings == ()


def test_what_is_said_of_a_run_is_said_of_the_model_that_it_released(tmp_path, named):
    """A run that ends early says why, and all its outputs show the results of the released model."""
    named(early_stop=of_page("EarlyStop")[0], best_round=of_page("BestRound")[0])
    both, path = "run.extensions={early_stop: {patience: 1}, best_round: {}}", tmp_path / "run"
    simulate(config(both, "training.learning_rate=2", "run.num_rounds=20", f"run.directory={path}"))
    values = [record.shown[1] for record in read_rounds(path)]
    best, why = 100 * max(values), f"1 rounds brought nothing better than {max(values):.3f}"
    assert values[-1] < max(values)
    with (console := Console(width=120)).capture() as screen:
        show_ending(console, path)
    told = f"accuracy {best:.1f} % of the released model, which an extension chose, after {len(values)} of 20"
    early = f"before round {len(values) + 1}: {why}"
    assert told in screen.get()
    assert f"ended            {early}" in screen.get()
    assert read_run(path).final_result == pytest.approx(best)
    assert RunStatus.read(path).figure == ("accuracy", max(values))
    card = (path / MODEL_CARD_FILE).read_text()
    assert f"* rounds: {len(values)} of 20, ended {early}\n" in card
    assert f"* accuracy on the server's test set: {best:.1f} %\n* these figures are of the released" in card
    assert audit_run(path).findings == ()
    (path / MODEL_CARD_FILE).write_text(card.replace(why, "all is well"))
    assert any("says rounds" in line for line in audit_run(path).findings)


def test_a_tracker_is_told_of_every_round(tmp_path, named, monkeypatch):
    told: list[Any] = []
    log = SimpleNamespace(
        log=lambda figures, step: told.append((step, *figures)), finish=lambda: told.append("end")
    )
    package = ModuleType("wandb")

    def init(project, name):
        told.append((project, name))
        return log

    package.__dict__["init"] = init
    monkeypatch.setitem(sys.modules, "wandb", package)
    tracker, lines = of_page("WeightsAndBiases")
    named(wandb=tracker)
    assert lines <= 30
    simulate(config("run.extensions={wandb: {project: ours}}", f"run.directory={tmp_path / 'run'}"))
    rounds = [(index + 1, "accuracy", "loss") for index in range(5)]
    assert told == [("ours", "run"), *rounds, "end"]


class AsksForLess(Extension):
    """Extension that removes the noise from what the method asks for, from the second round on."""

    key = "rogue"

    def asked(self, order, requests):
        return (
            [replace(each, noise_multiplier=0.0) for each in requests]
            if order.round_index
            else list(requests)
        )


class AsksForMore(AsksForLess):
    """Extension that asks for every sum a second time, under another name."""

    def asked(self, order, requests):
        return [*requests, *(replace(each, name=f"{each.name} again") for each in requests)]


class SumsBesides(AsksForLess):
    """Extension that asks before the rounds for a sum that the plan does not charge."""

    def asked(self, order, requests):
        return list(requests)

    def before_rounds(self, run):
        (request, *_) = run.prepared.method.requests(run.theta, 0, run.prepared.largest_cohorts(0))
        run.sum_once(request, 0)


class GoesAroundTheLedger(SumsBesides):
    """Extension that has clients sum requests that no ledger has charged."""

    def before_rounds(self, run):
        requests = run.prepared.method.requests(run.theta, 0, run.prepared.largest_cohorts(0))
        run.loop.fleet.sum_updates(run.prepared.order, requests)


class RoundOfItsOwn(SumsBesides):
    """Extension that runs the second round itself, and asks for its sums twice."""

    def before_rounds(self, run):
        self.run = run

    def replaces(self, round_index):
        return round_index == 1

    def round(self, theta, round_index, cohorts, sum_updates):
        requests = self.run.prepared.method.requests(theta, round_index, cohorts)
        sum_updates(requests)
        sum_updates([replace(each, name=f"{each.name} again") for each in requests])


@pytest.mark.parametrize(
    ("rogue", "line"),
    [
        (AsksForLess, "round 1, group 0: noise"),
        (AsksForMore, "round 0, group 0 again: client .* is in 1 sums of this round already"),
        (SumsBesides, "the plan has .*, or never"),
        (GoesAroundTheLedger, "a fleet sums what a ledger has charged, not a SumRequest"),
        (RoundOfItsOwn, "round 1, group 0 again: client .* is in 1 sums of this round already"),
    ],
)
def test_an_extension_has_nothing_summed_that_is_not_charged(tmp_path, named, rogue, line):
    named(rogue=rogue)
    wanted = [
        *("method=dp_fedavg", "run.num_rounds=2", "run.extensions={rogue: {}}", "privacy.sampling_rate=1")
    ]
    with pytest.raises(PrivacyError, match=line):
        simulate(small_config(tmp_path / "run", [*wanted, "privacy.against=outsiders"]))


class SecondKey(SumsBesides):
    key = "clipping.mine"


def typed(project: str):
    raise AssertionError(f"called with {project!r}, which is no text")


@pytest.mark.parametrize(
    ("overrides", "error", "line"),
    [
        (["run.extensions={nothing: {}}"], ConfigError, "extension 'nothing' is not known"),
        (["run.extensions=early_stop"], ConfigError, "run.extensions=early_stop must name extensions with"),
        (
            ["run.extensions={early_stop: {patiense: 3}}"],
            ConfigError,
            "option 'patiense' is not known.* use patience$",
        ),
        (
            ["run.extensions={early_stop: {patience: x}}"],
            ConfigError,
            "early_stop: .*: option 'patience' is 'x': give a number$",
        ),
        (
            ["run.extensions={early_stop: {patience: true}}"],
            ConfigError,
            "'patience' is True: give a number$",
        ),
        (["run.extensions={typed: {project: 3}}"], ConfigError, "option 'project' is 3: give a text$"),
        (["run.extensions={none: {days: 3}}"], ConfigError, "it takes no options: leave days out$"),
        (["run.extensions={needs: {}}"], ConfigError, "option 'project' is missing: give it$"),
        (
            ["run.extensions={noise: {}}"],
            ConfigError,
            "CorrelatedNoise: make it an Extension .*no SumExtension",
        ),
        (
            ["run.extensions={early_stop: {}, again: {}}"],
            ConfigError,
            "key 'early_stop' of EarlyStop is taken",
        ),
    ],
)
def test_what_is_not_an_extension_is_one_line(tmp_path, named, overrides, error, line):
    stop, _ = of_page("EarlyStop")
    prepared = PreparedRun.of(config(f"run.directory={tmp_path / 'other'}"))
    named(
        early_stop=stop,
        again=stop,
        noise=lambda: CorrelatedNoise(prepared.method.plan),
        none=of_page("BestRound")[0],
        needs=lambda project: stop(),
        typed=typed,
    )
    with pytest.raises(error, match=line):
        simulate(config(*overrides, f"run.directory={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


def test_clients_count_for_the_model_that_other_extensions_have_chosen(tmp_path, named):
    named(best_round=of_page("BestRound")[0])
    counting = (
        *("dataset=breast_cancer", "privacy=record_level", "method=dp_sum", "privacy.batch_rate=1"),
        *("run.evaluation=both", "run.extensions={best_round: {}}", "run.num_rounds=2"),
        *("privacy.budgets=[8]", "dataset.num_clients=4"),
    )
    run = PreparedRun.of(load([*counting, f"run.directory={tmp_path / 'run'}"]))
    assert [each.key for each in extensions_of(run)][-2:] == ["best_round", "held_out_counts"]


def test_the_keys_of_the_project_are_all_different():
    assert len({each.key for each in OWN}) == len(OWN)
    assert all("." not in each.key for each in OWN)


class LeavesOut(SumsBesides):
    """Extension that leaves the second round out."""

    def before_rounds(self, run):
        """Do nothing."""

    def start(self, order, theta):
        if order.round_index == 1:
            raise RoundLeftOut("nobody works today")
        return theta


def test_a_round_that_is_left_out_has_nobody_in_it_and_charges_nobody(tmp_path, named):
    named(rogue=LeavesOut)
    simulate(config("run.extensions={rogue: {}}", f"run.directory={tmp_path / 'run'}"))
    records = read_rounds(tmp_path / "run")
    assert [sum(each.cohort_sizes) for each in records] == [12, 0, 12, 12, 12]
    assert records[1].failures == {"round": "nobody works today"}
    assert audit_run(tmp_path / "run").findings == ()


def test_a_run_without_options_has_no_extension(tmp_path):
    run = PreparedRun.of(config(f"run.directory={tmp_path / 'run'}", "method.average=none"))
    assert list(extensions_of(run)) == []
    with pytest.raises(RunError, match=r"keeps no state in a checkpoint, but found early_stop\.seen"):
        raise RunError(_refusal(run))


def _refusal(run):
    try:
        run.method.load_state_dict({"early_stop.seen": np.zeros(2)})
    except ValueError as error:
        return str(error)
    return ""
