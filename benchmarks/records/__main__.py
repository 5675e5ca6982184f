"""Measures record-level DP-SGD: one client's steps beside Opacus and plain SGD, and rounds of many clients.

The clients have random pictures of 28x28 pixels, which does not change the work. Contenders of a race run in
turn, each time in a process of its own, on all cores; the seconds are those of all their turns.

    python -m benchmarks.records [--parts race parties branches] [--turns 3] [--ways hooks ew ghost loader]
        [--device cuda]

On a GPU only the race is measured, with larger batches and with ResNet-18 too. The records lie in the GPU's
memory. Opacus has an environment of its own; the variable OPACUS_PYTHON names another interpreter. If neither
is there, the interpreter that runs this program is taken.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.harness import CONSOLE, publish, read_options, three
from benchmarks.records.work import EDGE, NUM_CLASSES, Work, opacus_python
from benchmarks.simulation.work import run_alone
from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import RecordSteps
from gdpfed.report.console import Table
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort
from secagg import Contributors, Encoding

PARTS = ("race", "parties", "branches")
MODELS = ("linear", "cnn2")
OURS, PLAIN = "ours", "plain SGD, batches of the same size"
OPACUS_WAYS = {
    "hooks": "Opacus {}, hooks (its default)",
    "ew": "Opacus {}, expanded weights",
    "ghost": "Opacus {}, ghost clipping",
    "loader": "Opacus {}, hooks, its own loader",
}
GPU_WORKS: tuple[dict[str, Any], ...] = (
    {"model": "cnn2", "expected_batch": 256},
    {"model": "cnn2", "expected_batch": 2048},
    {"model": "resnet18", "expected_batch": 64, "num_records": 2000},
)
COHORT, RECORDS_A_PARTY, POPULATIONS = 20, 60, (20, 1000)
ROUNDS = 7


def race(works: Sequence[Work], turns: int, ways: Sequence[str]) -> list[Table]:
    """Make a table for each model and batch size: records per second of gdpfed, plain SGD and Opacus."""
    found: list[dict[str, list[float]]] = [{} for _ in works]
    forms = [""] * len(works)
    contenders = [("our_steps", ""), *(("opacus_steps", way) for way in ways), ("our_steps", "plain")]
    for _ in range(turns):
        for program, way in contenders:
            for number, result in enumerate(_results(program, works, way)):
                if program == "opacus_steps":
                    name = OPACUS_WAYS[way].format(result["version"])
                else:
                    name = PLAIN if way else OURS
                    forms[number] = forms[number] or result["form"]
                found[number].setdefault(name, []).extend(result["seconds"])
        for work, seconds in zip(works, found, strict=True):
            CONSOLE.print(f"{work.model}: {median(seconds[OURS]):.4f} s a step", soft_wrap=True)
    return [_race_table(*each) for each in zip(works, found, forms, strict=True)]


def _results(program: str, works: Sequence[Work], way: str) -> list[dict[str, Any]]:
    """Run a benchmark program in its own process; return its results for each model and batch size."""
    python = opacus_python() if program == "opacus_steps" else Path(sys.executable)
    settings = {"works": [vars(work) for work in works], "way": way}
    threads = works[0].threads
    found: list[dict[str, Any]] = run_alone(
        program, settings, package="benchmarks.records", threads=threads, python=python
    )["results"]
    return found


def _race_table(work: Work, seconds: Mapping[str, Sequence[float]], form: str) -> Table:
    steps = {name: median(each) for name, each in seconds.items()}
    rows = [
        (
            name,
            f"{work.expected_batch / step:,.0f}",
            f"{1e3 * step:.2f} ({1e3 * min(seconds[name]):.2f}, {1e3 * max(seconds[name]):.2f})",
            f"{step / steps[OURS]:.2f}",
        )
        for name, step in steps.items()
    ]
    place = " on a GPU" if work.device == "cuda" else ""
    title = f"{work.model}{place}, {work.num_records:,} records, {work.expected_batch:,} a step in the mean"
    headings = ("", "records a second", "ms a step: median (least, most)", "times ours")
    over = steps[OURS] / steps[PLAIN]
    note = f"Ours: {form}. A step takes {over:.2f} times as long as one of plain SGD on as many records."
    return Table(title, headings, rows, note)


def branches(work: Work, turns: int) -> Table:
    """Make a table for a network with branches: seconds per step by compiled gradients and by autograd."""
    seconds: dict[str, list[float]] = {}
    for way in ["", "tape"] * turns:
        (result,) = _results("our_steps", [work], way)
        seconds.setdefault(result["form"], []).extend(result["seconds"])
    rows = [
        (form, f"{three(median(each))} ({three(min(each))}, {three(max(each))})")
        for form, each in seconds.items()
    ]
    title = f"{work.model}, {work.expected_batch} records a step in the mean"
    return Table(title, ("", "seconds a step: median (least, most)"), rows)


def parties(model: str) -> Table:
    """Make a table: how long a round with a fixed cohort size takes in small and in large populations."""
    times: dict[int, list[float]] = {size: [] for size in POPULATIONS}
    with tempfile.TemporaryDirectory() as directory:
        runs = {size: _round_of_cohort(model, size, Path(directory)) for size in POPULATIONS}
        for _ in range(ROUNDS + 1):
            for size, run in runs.items():
                started = perf_counter()
                run()
                times[size].append(perf_counter() - started)
    rows = [
        (f"{size:,}", f"{three(median(each[1:]))} ({three(min(each[1:]))})") for size, each in times.items()
    ]
    title = f"{model}, a cohort of {COHORT} parties with {RECORDS_A_PARTY} records each, 5 steps"
    return Table(title, ("parties in all", "seconds a round: median (least)"), rows)


def _round_of_cohort(model: str, num_clients: int, directory: Path) -> Any:
    path, generator = directory / f"{num_clients}.npz", np.random.default_rng(0)
    count = num_clients * RECORDS_A_PARTY
    pixels = generator.random((count, 1, EDGE, EDGE), dtype=np.float32)
    labels = generator.integers(NUM_CLASSES, size=count)
    labels[:NUM_CLASSES] = np.arange(NUM_CLASSES)
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:NUM_CLASSES], y_test=np.arange(NUM_CLASSES))
    task = Task(DataSource("npz", path=str(path)), model, "iid", num_clients, seed=0).described()
    theta = flatten(task.build_model())
    order = TrainingOrder(task, LocalTraining(1, 1, 0.1, 0.0), 0, "cpu", work="dp_sgd")
    encoding = Encoding.for_sum(
        Contributors(COHORT), dimension=len(theta), clipping_norm=float("inf"), noise_multiplier=0.0
    )
    steps = RecordSteps(num_steps=5, batch_rates=(0.5,), clipping_norm=1.0, noise_multiplier=1.0)
    clients = list(range(0, num_clients, num_clients // COHORT))[:COHORT]
    cohort = Cohort(clients, encoding, {client: ClientPart(records=steps) for client in clients})
    engine = BatchedEngine(task, torch.device("cpu"))
    return partial(engine.sum_updates, order, theta, cohort)


def main() -> None:
    """Measure record-level DP-SGD in gdpfed and Opacus, and plain SGD; show the tables."""
    options = read_options(
        __doc__, overrides=False, parts=PARTS, turns=3, device="cpu", ways=tuple(OPACUS_WAYS)
    )
    work = Work(threads=len(os.sched_getaffinity(0)))
    tables: list[Table] = []
    if options.device == "cuda":
        works = [replace(work, device="cuda", **each) for each in GPU_WORKS]
        publish(race(works, options.turns, options.ways), options.write)
        return
    if "race" in options.parts:
        tables += race([replace(work, model=model) for model in MODELS], options.turns, options.ways)
    if "parties" in options.parts:
        tables += [parties(model) for model in MODELS]
    if "branches" in options.parts:
        few = replace(work, model="resnet18", num_records=80, expected_batch=8, num_steps=2, repeats=3)
        tables.append(branches(few, options.turns))
    publish(tables, options.write)


if __name__ == "__main__":
    main()
