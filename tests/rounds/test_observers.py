"""Tests of observers, which a run calls in order after it has written files, and of released mean models."""

from math import comb, inf

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import ConfigError, RunError
from gdpfed.methods.fedavg import FedAvg
from gdpfed.report.run_observers import default_observers
from gdpfed.rounds.extensions.average import ReleasedAverage
from gdpfed.rounds.extensions.base import Extensions
from gdpfed.rounds.observers import Observer
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import CHECKPOINT_FILE, MODEL_FILE
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.small_runs import final_model

SMALL = ("dataset.num_clients=12", "privacy.sampling_rate=0.8", "method=fedavg", "secagg=off")


def config(*overrides):
    return load([*SMALL, "run.num_rounds=4", *overrides])


class Witness(Observer):
    """Observer that notes each call, and checks what is on disk at that moment."""

    def __init__(self, path):
        self.path, self.moments, self.rounds, self.conclusions = path, [], [], []

    def opened(self, run):
        assert run.path == self.path
        self.moments.append(("opened", run.completed_rounds))

    def round_ended(self, ended):
        assert read_rounds(self.path)[-1] == ended.record
        checkpoint = Checkpoint.load(self.path)
        assert checkpoint.completed_rounds == ended.record.round == ended.round_index + 1
        np.testing.assert_array_equal(checkpoint.theta, ended.theta)
        self.moments.append(("round ended", ended.round_index))
        self.rounds.append(ended)

    def concluded(self, run):
        assert not (self.path / MODEL_FILE).exists()
        assert (self.path / CHECKPOINT_FILE).exists()
        self.moments.append(("concluded", len(run.records)))
        self.conclusions.append(run)

    def closed(self):
        self.moments.append(("closed", None))


def test_observers_are_told_every_moment_and_what_it_brought(tmp_path):
    witness = Witness(tmp_path / "run")
    simulate(config(f"run.directory={tmp_path / 'run'}"), make_observers=lambda run, announce: [witness])
    rounds = [("round ended", index) for index in range(4)]
    assert witness.moments == [("opened", 0), *rounds, ("concluded", 4), ("closed", None)]
    assert all(ended.released is ended.theta for ended in witness.rounds)
    assert [each.survivors for ended in witness.rounds for each in ended.sums] == [
        survivors for record in read_rounds(tmp_path / "run") for survivors in record.survivors
    ]
    (conclusion,) = witness.conclusions
    assert [*conclusion.spent, *conclusion.against_server] == [inf, inf]
    assert len(conclusion.released) == len(final_model(tmp_path / "run"))


def test_a_resumed_run_tells_its_observers_the_rounds_that_are_left(tmp_path):
    directory, witness = tmp_path / "run", Witness(tmp_path / "run")
    simulate(config(f"run.directory={directory}", "run.stop_after_round=3"))
    (directory / "seal.json").unlink()
    line = (directory / "rounds.jsonl").read_text().splitlines(keepends=True)[-1]
    with (directory / "rounds.jsonl").open("a") as file:
        file.write(line.replace('"round": 3', '"round": 4'))
    simulate(config(f"run.resume={directory}"), make_observers=lambda run, announce: [witness])
    assert witness.moments == [("opened", 3), ("round ended", 3), ("concluded", 4), ("closed", None)]
    assert [record.round for record in read_rounds(directory)] == [1, 2, 3, 4]


class FullDisk(Observer):
    def round_ended(self, ended):
        raise OSError("the disk is full")


def test_a_run_that_an_observer_ends_is_closed_and_not_concluded_and_can_go_on(tmp_path):
    directory, witness = tmp_path / "run", Witness(tmp_path / "run")
    with pytest.raises(OSError, match="the disk is full"):
        simulate(
            config(f"run.directory={directory}"), make_observers=lambda run, announce: [witness, FullDisk()]
        )
    assert witness.moments == [("opened", 0), ("round ended", 0), ("closed", None)]
    simulate(config(f"run.resume={directory}"))
    assert [record.round for record in read_rounds(directory)] == [1, 2, 3, 4]


def test_observers_of_a_directory_that_is_refused_are_closed(tmp_path):
    witness = Witness(tmp_path / "run")

    def make_observers(run, announce):
        """Write into the directory as another process would, and return the observer."""
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "file").touch()
        return [witness]

    with pytest.raises(RuntimeError, match="is not empty"):
        simulate(config(f"run.directory={tmp_path / 'run'}"), make_observers=make_observers)
    assert witness.moments == [("closed", None)]


def test_the_average_of_models_is_released_and_survives_a_pause(tmp_path):
    averaged = "method.average=polynomial"
    whole, parts = Witness(tmp_path / "whole"), tmp_path / "parts"
    simulate(
        config(f"run.directory={tmp_path / 'whole'}", averaged),
        make_observers=lambda run, announce: [*default_observers(run, announce), whole],
    )
    iterates = [ended.theta for ended in whole.rounds]
    # The weight of model t is in proportion to (t + 1) (t + 2) ... (t + 8).
    weights = np.array([comb(t + 8, 8) for t in range(len(iterates))], dtype=np.float64)
    mean = np.average(iterates, axis=0, weights=weights)
    np.testing.assert_allclose(whole.rounds[-1].released, mean, rtol=1e-5, atol=1e-7)
    assert np.abs(mean - iterates[-1]).max() > 1e-3
    np.testing.assert_array_equal(whole.rounds[0].released, iterates[0])
    simulate(config(f"run.directory={parts}", averaged, "run.stop_after_round=2"))
    with pytest.raises(RunError, match=r"method\.average=polynomial, not none"):
        simulate(load_run([f"run.resume={parts}", "method.average=none"]))
    simulate(load_run([f"run.resume={parts}"]))
    np.testing.assert_array_equal(final_model(tmp_path / "whole"), final_model(parts))
    assert "an average of the models of all rounds" in (parts / "model_card.md").read_text()


def test_an_average_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"method\.average=mean is not known: use auto, none or polynomial"):
        config("method.average=mean")
    with pytest.raises(ValueError, match="average of models does not fit this run"):
        Extensions([ReleasedAverage()]).restore({"released.average": np.zeros(3)}, 1)


class AveragedFedAvg(FedAvg):
    """FedAvg method that releases the mean of its models so far."""

    def __init__(self, plan, weighting, *, server_learning_rate):
        super().__init__(plan, weighting, server_learning_rate=server_learning_rate)
        self.models = 0
        self.total = None

    def step(self, theta, sums):
        theta = super().step(theta, sums)
        self.models += 1
        self.total = theta.astype(np.float64) if self.total is None else self.total + theta
        return theta

    def released(self, theta):
        return theta if self.total is None else (self.total / self.models).astype(np.float32)

    def state_dict(self):
        return {} if self.total is None else {"total": self.total, "models": np.array(self.models)}

    def load_state_dict(self, state):
        if state:
            self.total, self.models = np.array(state["total"]), int(state["models"])


def test_an_averaged_model_is_released_and_survives_a_pause(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.rounds.run.make_method", AveragedFedAvg.from_config)
    whole, parts = Witness(tmp_path / "whole"), tmp_path / "parts"
    simulate(
        config(f"run.directory={tmp_path / 'whole'}"),
        make_observers=lambda run, announce: [*default_observers(run, announce), whole],
    )
    simulate(config(f"run.directory={parts}", "run.stop_after_round=2"))
    checkpoint = Checkpoint.load(parts)
    assert (
        np.abs(checkpoint.theta - np.asarray(checkpoint.method_state["total"], np.float64) / 2).max() > 0.01
    )
    simulate(config(f"run.resume={parts}"))
    iterates = [ended.theta for ended in whole.rounds]
    mean = np.mean(iterates, axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(whole.rounds[-1].released, mean)
    assert np.abs(mean - iterates[-1]).max() > 0.01
    # A model file has its tensors by name, which is another order than that of theta.
    np.testing.assert_array_equal(np.sort(final_model(tmp_path / "whole")), np.sort(mean))
    np.testing.assert_array_equal(final_model(tmp_path / "whole"), final_model(parts))
    figures = [
        [(record.accuracy, record.loss) for record in read_rounds(path)]
        for path in (tmp_path / "whole", parts)
    ]
    assert figures[0] == figures[1]


class OwnStep(FedAvg):
    """FedAvg method whose step returns what the test's function `returned` makes of the model."""

    returned = staticmethod(lambda theta: theta)

    def step(self, theta, sums):
        return self.returned(super().step(theta, sums))


def own_step(returned):
    class Returning(OwnStep):
        pass

    Returning.returned = staticmethod(returned)
    return Returning.from_config


def test_a_step_in_double_precision_trains_as_one_in_single_precision(tmp_path, monkeypatch):
    simulate(config(f"run.directory={tmp_path / 'single'}"))
    monkeypatch.setattr("gdpfed.rounds.run.make_method", own_step(lambda theta: theta.astype(np.float64)))
    simulate(config(f"run.directory={tmp_path / 'double'}"))
    np.testing.assert_array_equal(final_model(tmp_path / "double"), final_model(tmp_path / "single"))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda theta: None, r"shape \(\) of object"),
        (lambda theta: theta[:-1], r"shape \(\d+,\) of float32"),
        (lambda theta: theta.astype(str), r"shape \(\d+,\) of <U32"),
    ],
)
def test_a_step_that_returns_no_model_is_one_line(tmp_path, monkeypatch, returned, words):
    monkeypatch.setattr("gdpfed.rounds.run.make_method", own_step(returned))
    message = (
        rf"method=fedavg: step returned {words}, not \(\d+,\) of float32; the round is charged. Correct it"
    )
    with pytest.raises(RunError, match=message):
        simulate(config(f"run.directory={tmp_path / 'run'}"))
