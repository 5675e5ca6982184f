"""Tests of the benchmark of simulation speed: what it does on a busy machine, its tables and random data."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import harness
from benchmarks.simulation import __main__ as command
from benchmarks.simulation import contenders
from benchmarks.simulation.limits import flops_of_loops
from benchmarks.simulation.random_data import draw_colour_pictures, draw_plays
from benchmarks.simulation.work import Work
from conf.load import load
from fastgrad.lowering import lower
from fastgrad.modules import cross_entropy
from fastgrad.products import product, products_of_records
from fastgrad.program import Program
from fastgrad.vectors import HAS_VECTORS
from gdpfed.clients.configured import task_of
from gdpfed.errors import InputError
from gdpfed.learning.models import build_model, flatten

needs_vectors = pytest.mark.skipif(not HAS_VECTORS, reason="a processor without AVX2")


def asked(*, busy=False, against=("loop",), parts=("race",), lstm=False, cnn3=False, resnet18=False):
    return SimpleNamespace(parts=parts, against=against, busy=busy, lstm=lstm, cnn3=cnn3, resnet18=resnet18)


def test_a_busy_machine_is_refused_or_marked(monkeypatch, capsys):
    busy = {"percent": 13.0}

    def looked(seconds):
        return busy["percent"]

    monkeypatch.setattr(command, "check_idle", lambda fine: harness.check_idle(fine, looked))
    with pytest.raises(SystemExit, match=r"^the CPUs are 13 % busy, above 12.5 %: wait .* --busy"):
        command.ready(asked())
    mark = command.ready(asked(busy=True))
    assert mark == "Measured on a busy machine (CPUs 13 % busy before it began): indicative only."
    harness.publish([], None, mark)
    assert capsys.readouterr().out.endswith(f"at the end. {mark}\n")
    busy["percent"] = 12.5
    assert command.ready(asked()) == command.ready(asked(busy=True)) == ""


def test_the_mark_is_no_part_of_the_command_whose_tables_are_written(monkeypatch):
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "-m", "benchmarks.simulation", "--busy", "--rounds", "2"]
    )
    assert harness.present_command() == "python -m benchmarks.simulation --rounds 2"


def test_without_pfl_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "PFL_PYTHON", harness.PROJECT / "benchmarks/nowhere/python")
    with pytest.raises(InputError, match=r"environment is missing .*: make it by `make pfl-environment`"):
        contenders.check_pfl()
    monkeypatch.setattr(command, "check_idle", lambda fine: "")
    with pytest.raises(SystemExit, match="make pfl-environment"):
        command.ready(asked(against=("pfl", "loop")))
    assert command.ready(asked(against=("pfl",), parts=("limit",))) == ""


@pytest.mark.parametrize("kind", ["lstm", "cnn3"])
def test_growth_is_of_one_model_alone(kind):
    with pytest.raises(SystemExit, match="^only cnn2 has a growth: name the other parts"):
        command.ready(asked(parts=command.PARTS, **{kind: True}))


def test_two_models_are_two_races():
    with pytest.raises(SystemExit, match="several races: run one after the other$"):
        command.ready(asked(lstm=True, cnn3=True))


def test_a_network_that_pfl_lacks_is_not_raced_against_it():
    with pytest.raises(SystemExit, match="^--resnet18 is torchvision's, .* use --against loop$"):
        command.ready(asked(resnet18=True, against=("pfl", "loop")))


def test_colour_pictures_are_shared_out_as_the_work_asks_for(tmp_path):
    draw_colour_pictures(tmp_path / "colours.npz", count=40)
    work = Work(str(tmp_path / "colours.npz"), model="cnn3", num_clients=4, cohort=2)
    config = load(work.overrides)
    task = task_of(config)
    assert task.load().input_shape == (3, 32, 32)
    assert {len(task.client_indices(client)) for client in range(4)} == {config.training.batch_size}


def test_the_products_of_states_are_counted():
    calls = [
        call
        for call in make_program_calls(count=3, length=5, units=4)
        if call.func.__name__ in ("recur", "recur_back")
    ]
    # Each of four positions multiplies 3 states by 4 x 16 weights, there and back.
    assert flops_of_loops(calls) == 2 * (2 * 4 * 3 * 4 * 16)


@needs_vectors
def test_compiled_products_are_counted():
    left, right, out = torch.zeros(3, 5), torch.zeros(5, 7), torch.empty(3, 7)
    by_rows, by_columns = product(left, right, out), product(left, torch.zeros(7, 5).t(), out)
    of_records = products_of_records(torch.zeros(2, 5, 3), torch.zeros(2, 5, 7), torch.empty(2, 3, 7))
    assert [flops_of_loops([each]) for each in (by_rows, by_columns, of_records)] == [210, 210, 420]


def make_program_calls(*, count, length, units):
    options = (("hidden_units", units), ("num_layers", 1))
    model = build_model("lstm", (length,), 7, seed=0, input_dtype=np.int64, options=options)
    parameters = torch.from_numpy(flatten(model))
    program = Program(lower(model, (length,)), cross_entropy, count, parameters, torch.empty_like(parameters))
    return program.calls


def test_the_texts_that_are_drawn_are_what_the_work_asks_for(tmp_path):
    path = tmp_path / "plays.txt"
    draw_plays(path, num_roles=7, num_characters=command.CHARACTERS_A_ROLE)
    work = Work(str(path), model="lstm", num_clients=7, cohort=2)
    task = task_of(load(work.overrides))
    sizes = {len(task.client_indices(client)) for client in range(7)}
    assert len(sizes) == 1
    assert min(sizes) >= load(work.overrides).training.batch_size
