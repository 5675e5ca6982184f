"""The measured work: DP-SGD steps of one client on grey pictures of 28x28 random pixels."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from benchmarks.simulation.work import PROJECT, print_result

OPACUS_PYTHON = PROJECT / "benchmarks/records/opacus_environment/.venv/bin/python"
EDGE, NUM_CLASSES = 28, 10


@dataclass(frozen=True)
class Work:
    """Training steps of one client, equal for every contender.

    Attributes:
        num_records: that the client has.
        expected_batch: of which a step draws so many in the mean, each on its own.
        num_steps: in one run of the clock.
        repeats: runs of the clock; one more comes first, in which libraries warm up.
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

    @property
    def batch_rate(self) -> float:
        """The sampling rate q of records."""
        return self.expected_batch / self.num_records

    def records(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random pictures of shape (n, 1, 28, 28) and random labels."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(self.num_records, 1, EDGE, EDGE, generator=generator)
        return x, torch.randint(NUM_CLASSES, (self.num_records,), generator=generator)


def work_of_this_process() -> tuple[Work, str]:
    """The work and the way in the first argument of this process."""
    settings = json.loads(sys.argv[1])
    way = settings.pop("way", "")
    work = Work(**settings)
    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    return work, way


def clock(work: Work, steps: Callable[[], object], **facts: object) -> None:
    """Print the seconds of a step, for each repeated measurement."""
    steps()
    seconds = []
    for _ in range(work.repeats):
        started = perf_counter()
        steps()
        seconds.append((perf_counter() - started) / work.num_steps)
    print_result({"seconds": seconds, **facts})
