"""Tests of what a simulated run says if the code of a package raises while clients train."""

import json

import pytest
import torch

from gdpfed.errors import RunError
from gdpfed.learning.training.optimizers import OPTIMIZERS
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.in_process_fleet import simulate
from testing.small_runs import small_config


class Breaking(torch.optim.SGD):
    """Takes one step, and no second one."""

    taken = False

    def step(self, closure=None):
        if self.taken:
            raise ArithmeticError("no second step\nis taken")
        self.taken = True
        return super().step()


BROKEN = "training.optimizer=breaking", "training.momentum=0"


@pytest.fixture(autouse=True)
def breaking(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS._items, "breaking", Breaking)


@pytest.mark.parametrize("settings", [["secagg=off"], [], ["simulation.workers=2"]])
def test_a_packages_optimizer_that_fails_in_training_is_named_in_one_line(tmp_path, settings):
    with pytest.raises(RunError) as refusal:
        simulate(small_config(tmp_path / "run", [*BROKEN, *settings]))
    assert str(refusal.value) == (
        "training in round 1 raised ArithmeticError: no second step is taken: look for the fault in "
        "training.optimizer=breaking, and install the package again; the round is charged"
    )
    assert json.loads((tmp_path / "run" / "ledger.json").read_text())["charged_rounds"] == 1


def test_an_error_without_any_package_passes_as_it_is(tmp_path, monkeypatch):
    def fail(engine, jobs):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(BatchedEngine, "sums_of", fail)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        simulate(small_config(tmp_path / "run", ["secagg=off", "simulation.workers=1"]))


def test_an_error_of_ours_keeps_its_words(tmp_path, monkeypatch):
    def fail(engine, jobs):
        raise RunError("no memory: set fewer simulation.workers")

    monkeypatch.setattr(BatchedEngine, "sums_of", fail)
    with pytest.raises(RunError, match="^no memory: set fewer simulation.workers$"):
        simulate(small_config(tmp_path / "run", [*BROKEN, "secagg=off", "simulation.workers=1"]))
