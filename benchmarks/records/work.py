"""The work that programs are timed on: one client's DP-SGD steps on random grey pictures, 28x28 pixels."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.simulation.work import PROJECT, print_result

OPACUS_PYTHON = Path(
    os.environ.get("OPACUS_PYTHON", PROJECT / "benchmarks/records/opacus_environment/.venv/bin/python")
)
"""The interpreter of Opacus' environment; the variable of this name gives another one."""
EDGE, NUM_CLASSES = 28, 10


@dataclass(frozen=True)
class Work:
    """The DP-SGD steps of one client that every measured program must take.

    Attributes:
        num_records: that the client has.
        expected_batch: of which a step draws so many in the mean, each on its own.
        num_steps: in one run of the clock.
        repeats: runs of the clock; one more comes first, in which libraries warm up.
        device: cpu or cuda, on which the records lie.
    """

    model: str = "cnn2"
    num_records: int = 10_000
    expected_batch: int = 256
    num_steps: int = 8
    repeats: int = 5
    threads: int = 2
    clipping_norm: float = 1.0
    noise_multiplier: float = 1.0
    learning_rate: float = 0.1
    device: str = "cpu"

    @property
    def batch_rate(self) -> float:
        """The probability q with which a step samples a record."""
        return self.expected_batch / self.num_records

    def records(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw random pictures of shape (n, 1, 28, 28) and random labels, on the device."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(self.num_records, 1, EDGE, EDGE, generator=generator)
        y = torch.randint(NUM_CLASSES, (self.num_records,), generator=generator)
        return x.to(self.device), y.to(self.device)


def opacus_python() -> Path:
    """Return a Python interpreter with Opacus: the separate environment's or, if missing, this process's.

    If neither has Opacus, return the path at which the separate environment is expected.
    """
    if not OPACUS_PYTHON.exists() and find_spec("opacus") is not None:
        return Path(sys.executable)
    return OPACUS_PYTHON


def measure_each(measure: Callable[[Work, str], dict[str, object]]) -> None:
    """Call `measure` for every work that the first command-line argument describes; print the results."""
    settings = json.loads(sys.argv[1])
    results = []
    for each in settings["works"]:
        work = Work(**each)
        torch.set_num_threads(work.threads)
        torch.manual_seed(0)
        results.append(measure(work, settings.get("way", "")))
    print_result({"results": results})


def seconds_of(work: Work, steps: Callable[[], object]) -> list[float]:
    """Run the same steps several times; return the seconds per step of each run, GPU work included."""
    finish = torch.cuda.synchronize if work.device == "cuda" else partial(int)
    steps()
    seconds = []
    for _ in range(work.repeats):
        finish()
        started = perf_counter()
        steps()
        finish()
        seconds.append((perf_counter() - started) / work.num_steps)
    return seconds
