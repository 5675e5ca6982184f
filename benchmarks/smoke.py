"""Runs every benchmark at tiny size, to see that each still works.

    python -m benchmarks.smoke [--only NAME ...]

Each is its own command, with the words that make it small and, where no word does, with constants of its
module set to less. It runs in a process of its own, and so do Flower's, Ray's and the rivals' programs, whose
environments `make bench-smoke` makes first.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from benchmarks.harness import CONSOLE, PROJECT
from benchmarks.simulation.random_data import draw_plays
from testing.stays import write_stays

ALONE = "simulation.workers=1"
ONE_ROUND = ("run.num_rounds=1", "dataset.num_clients=6", "privacy.sampling_rate=1", ALONE)
FEW = ("dataset.num_clients=24", "run.num_rounds=2", "privacy.delta=1e-3", ALONE)
SHORT_TEXT = (
    *("dataset=shakespeare", "dataset.num_clients=24", "dataset.path={folder}/plays.txt"),
    *("run.num_rounds=1", "privacy.sampling_rate=1", "dataset.local_steps=1", ALONE),
    "dataset.model_options={hidden_units:4,num_layers:1}",
)
FIXED_NORM = "privacy.clipping=fixed"
STAYS = ("dataset=eicu", "privacy=record_level", "method=dp_sum", "run.num_rounds=1", "secagg=off", ALONE)
PICTURES = ("dataset.path={folder}/images", "dataset.image_size=32", "dataset.num_clients=4")


@dataclass(frozen=True)
class Tiny:
    """How one benchmark is made small: its command line, and constants to replace.

    Attributes:
        words: its command line; `{folder}` stands for a folder with small data, which is gone afterwards.
        constants: of its module, and what they are instead; a function gets the folder and what they were.
        alone: whether all of it runs in one process, without Flower, Ray, a rival or a worker.
    """

    words: tuple[str, ...] = ()
    constants: Mapping[str, Any] | None = None
    alone: bool = True


def _and(*more: str) -> Callable[[Path, Any], object]:
    """Return a function that adds these settings to a benchmark's usual ones."""
    return lambda folder, usual: (*usual, *more)


def _with(**less: int) -> Callable[[Path, Any], object]:
    """Return a function that gives a benchmark's class these values as defaults."""
    return lambda folder, usual: partial(usual, **less)


def _first(folder: Path, usual: Any) -> object:
    """Return only the first entry of ``usual``, a list or mapping that is a constant of a benchmark."""
    return dict(list(usual.items())[:1]) if isinstance(usual, Mapping) else usual[:1]


def _first_and_last(folder: Path, usual: Mapping[str, Any]) -> object:
    """Return only two entries of ``usual``, a mapping that is a module constant of a benchmark."""
    entries = list(usual.items())
    return dict([entries[0], entries[-1]])


def _first_settings(folder: Path, usual: Mapping[str, Any]) -> object:
    """Reduce a benchmark's grids of settings: keep only the first value of each setting."""
    return {
        name: (function, {key: values[:1] for key, values in grid.items()})
        for name, (function, grid) in usual.items()
    }


def _less(folder: Path, usual: Any) -> object:
    """Return smaller sizes for the benchmark of secure aggregation: few, short vectors."""
    return replace(
        usual, steps=(12, 50_000), dimensions=(50_000, 80_000), repeats=2, members=(20, 5000), sizes=(10, 20)
    )


def _folder(folder: Path, usual: object) -> object:
    """Return the temporary folder instead of the project's, so that no picture in docs/ is overwritten."""
    return folder


BENCHMARKS: dict[str, Tiny] = {
    "all": Tiny(("--list",)),
    "adapters": Tiny(
        ("--seeds=1", *SHORT_TEXT[1:-1]),
        {
            "PROJECT": _folder,
            "CELLS": _first,
            "PUBLIC": _and("run.num_rounds=1", "dataset.local_steps=1", ALONE),
        },
    ),
    "attacks": Tiny(("run.num_rounds=1", ALONE), {"TRAININGS": _first}),
    # Its loops are audited in tests of their own; Opacus has an environment of its own.
    "audited_loops": Tiny(("--runs=1",), alone=False),
    "average": Tiny(
        ("--seeds=1",),
        {"SETTING": _and(*ONE_ROUND), "METHODS": ("gdpfed_star",)},
    ),
    "backhaul": Tiny(("dataset.model=softmax", "training.local_steps=4")),
    "canaries": Tiny(
        ("--repeats=2",),
        {
            "GAP_RUNS": 1,
            "FAULT_RUNS": 1,
            "FAULTS": _first,
            "POPULATION": _and("dataset.num_clients=200", "dataset.num_rounds=3", ALONE),
        },
    ),
    # Its table has a test of its own.
    "canary_power": Tiny(
        ("--seconds=1",),
        {"PLANTED_FAULTS": _first, "power_table": _with(most_runs=1, sound_runs=1)},
        alone=False,
    ),
    "cost": Tiny(("--seeds=2", "--", *ONE_ROUND)),
    "chosen": Tiny(("--seeds=1", "--most=10", "--only", "gdpfed_star", "--", "dataset=digits", *ONE_ROUND)),
    "eicu": Tiny(
        ("--output={folder}/made", "dataset.path={folder}/patient.csv"),
        {"SEEDS": "0", "SWEEPS": {"eicu": ("Persons", (*STAYS, "privacy.budgets=[8]"))}},
    ),
    "evaluation": Tiny(
        ("--rounds=1", "--busy"),
        {"MODELS": ("cnn3",), "TESTED": 300, "COLOUR_CLIENTS": 12, "COLOUR_COHORT": 4, "WAYS": _first},
    ),
    "exchanges": Tiny(("--nodes=3", "--rounds=2", "--warm"), alone=False),
    "features": Tiny(
        (
            "--seeds=1",
            *PICTURES,
            "run.num_rounds=1",
            "dataset.local_steps=1",
            "dataset.sampling_rate=1",
            ALONE,
        ),
        {"FEATURES": {"hog": 372}},
    ),
    # Its steps are commands, in processes of their own; what it does with them has a test of its own.
    "first_minutes": Tiny(
        (),
        {
            "STEPS": (
                ("a model", ("gdpfed", "demo", "--private-only", *FEW)),
                ("both", ("gdpfed", "report", "runs", "--output", "comparison")),
            )
        },
        alone=False,
    ),
    "first_step": Tiny(("--clients=2", "--only", "half", "--", *SHORT_TEXT, FIXED_NORM)),
    "labels": Tiny(
        ("--seeds=1",),
        {"SETTING": _and("dataset.num_clients=6", "run.num_rounds=1", ALONE)},
    ),
    "load": Tiny(("--nodes=6", "--rounds=8")),
    "machines": Tiny(
        ("--cohort=12", "--rounds=1", "--busy"), {"ALONE": (1,), "CLUSTERS": ((1,),)}, alone=False
    ),
    "option": Tiny(
        (
            "--seeds=1",
            "--only",
            "gdpfed_star",
            "--",
            "training.local_steps=2",
            "dataset=digits",
            *ONE_ROUND,
            FIXED_NORM,
        )
    ),
    "overhead": Tiny(("--rounds=2", "dataset.num_clients=15", "privacy.sampling_rate=1"), alone=False),
    "picture_readings": Tiny(
        (
            *("--methods", "fedavg", "--only", "two convolutions, rate 0.1", "--", *PICTURES),
            *("run.num_rounds=1", "training.local_steps=1", "privacy.sampling_rate=1", ALONE),
        )
    ),
    "readings": Tiny(
        (
            *("--methods", "fedavg", "--only", "5x5, 32 and 64 channels, 512 units, a picture a class"),
            *("--", "run.num_rounds=1", "privacy.sampling_rate=1", ALONE),
        ),
        {"DATASET": "digits", "NUM_CLIENTS": 12},
    ),
    "records": Tiny(
        ("--turns=1",),
        {
            "MODELS": ("linear",),
            "ROUNDS": 1,
            "COHORT": 2,
            "POPULATIONS": (4,),
            "Work": _with(num_records=40, expected_batch=8, num_steps=2, repeats=1),
        },
        alone=False,
    ),
    "reproduced": Tiny(("--seeds=1", "--output={folder}/made", "h2fdp-figure5"), alone=False),
    "results": Tiny(
        (
            *("--seeds=1", "--output={folder}/made", "--experiments", "demo", "--datasets", "digits"),
            *("--rows", "gdpfed_star", "--", "secagg=off"),
        ),
        alone=False,
    ),
    "secagg": Tiny(
        ("--quick", "--picture={folder}/docs/growth.png"), {"QUICK": _less, "GROWTH_DIMENSION": 1000}
    ),
    "server_step": Tiny(
        ("--seeds=1",),
        {
            "SETTING": (
                "dataset=digits",
                "privacy.against=outsiders",
                "privacy.sampling_rate=0.5",
                *ONE_ROUND,
            ),
            "METHODS": ("gdpfed_star",),
        },
    ),
    "simulation": Tiny(
        ("--rounds=1", "--busy"),
        {
            "PROJECT": _folder,
            "COHORTS": (30,),
            "POPULATIONS": (6_000,),
            "GROWTH_ROUNDS": 1,
        },
        alone=False,
    ),
    "sparser": Tiny(("--seeds=1", "--only", "half", "rank 4", "--", *SHORT_TEXT, FIXED_NORM)),
    "subnets": Tiny(("--subnets=2", "--growth", "10", "--rounds=1"), alone=False),
    "taken_back": Tiny(
        ("--rounds=4", "--clients=16"),
        {"REPEATS": 1, "TAPS": (0, 1), "MODELS": {"linear": ("dataset.model=linear",)}},
    ),
    "tables": Tiny(("--rows", "50", "--columns", "5"), alone=False),
    "text_readings": Tiny(
        ("--methods", "fedavg", "--only", "one layer of 32, rate 1", "--", *SHORT_TEXT[1:-1]),
    ),
    "tree_splits": Tiny(
        ("--seeds=1", "--data={folder}"),
        {"KINDS": _first_settings, "EPSILONS": (3,), "TREES": 4, "TUNING_SEEDS": (9,)},
    ),
    "trees": Tiny(
        ("--seeds=1", "--data={folder}"),
        {
            "EPSILONS": (3,),
            "DRAWN_EPSILONS": (),
            "STEPS": (1.0,),
            "NORMS": (1.0,),
            "ROUNDS": (1, 2),
            "MODELS": _first_and_last,
        },
    ),
    "trust": Tiny((), {"PROJECT": _folder}),
    "voted": Tiny(
        ("--seeds=2", "dataset=breast_cancer", "run.num_rounds=1", "dataset.num_clients=3", ALONE),
        {"EPSILONS": (8,)},
    ),
    "worth": Tiny(("dataset.num_clients=8", "run.num_rounds=2")),
}
NO_BENCHMARKS = frozenset({"harness", "open_settings", "smoke", "table_sets", "vectors"})


def run_tiny(name: str, folder: Path) -> int:
    """Run one benchmark at tiny size in this process; return its exit status."""
    tiny = BENCHMARKS[name]
    module = import_module(f"benchmarks.{name}")
    if hasattr(module, "__path__"):
        module = import_module(f"benchmarks.{name}.__main__")
    draw_data(folder)
    words = [each.replace("{folder}", str(folder)) for each in tiny.words]
    with ExitStack() as tiny_size:
        tiny_size.enter_context(patch.object(sys, "argv", [f"benchmarks.{name}", *words]))
        for constant, value in (tiny.constants or {}).items():
            less = value(folder, getattr(module, constant)) if callable(value) else value
            tiny_size.enter_context(patch.object(module, constant, less))
        return int(module.main() or 0)


def draw_data(folder: Path) -> None:
    """Write small test data: a text of plays, a table of hospital stays, images, and a page of text."""
    (folder / "docs").mkdir()
    (folder / "docs" / "page.md").write_text("what anybody may read, " * 400, encoding="utf-8")
    write_stays(folder / "patient.csv", hospitals=40)
    draw_plays(folder / "plays.txt", num_roles=24, num_characters=450)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        for kind in ("light", "dark"):
            place = folder / "images" / part / kind
            place.mkdir(parents=True)
            for number in range(6):
                pixels = generator.integers(128, size=(32, 32, 3), dtype=np.uint8) + 127 * (kind == "light")
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def main() -> int:
    """Run all benchmarks, or the named ones; return 1 if one fails."""
    import argparse

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHMARKS), default=sorted(BENCHMARKS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        with tempfile.TemporaryDirectory() as folder:
            return max(run_tiny(name, Path(folder)) for name in options.only)
    failed = []
    for name in options.only:
        started = perf_counter()
        command = [sys.executable, "-m", "benchmarks.smoke", "--here", "--only", name]
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            cwd=PROJECT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        ended = "runs" if done.returncode == 0 else f"FAILS ({done.returncode})"
        CONSOLE.print(f"{name}: {ended}, {perf_counter() - started:.0f} s", highlight=False)
        if done.returncode:
            failed.append(name)
            CONSOLE.print(f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}", markup=False, highlight=False)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
