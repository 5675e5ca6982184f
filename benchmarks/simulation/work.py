"""The training rounds that all compared programs carry out; each program runs in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

PROJECT = Path(__file__).resolve().parents[2]
PFL_PYTHON = PROJECT / "benchmarks/simulation/pfl_environment/.venv/bin/python"
RESULT_LINE = "result "


@dataclass(frozen=True)
class Work:
    """What every measured program has to do: rounds of DP-FedAvg with cohorts of a fixed size.

    Attributes:
        data: directory with the files of Fashion-MNIST's form; of `cnn3`, the file of colour pictures; of
            `lstm`, a text of plays.
        model: of pictures, or lstm.
        cohort: clients a round, exactly.
        rounds: how many are measured; one more comes first, in which libraries warm up.
    """

    data: str
    model: str = "cnn2"
    num_clients: int = 6000
    cohort: int = 120
    rounds: int = 10
    device: str = "cpu"

    @property
    def overrides(self) -> list[str]:
        """The settings (key=value) with which gdpfed carries out the measured rounds."""
        kind = ["dataset=fmnist", f"dataset.model={self.model}"]
        if self.model == "cnn3":
            step = ["local_steps=5", "batch_size=10", "learning_rate=0.1", "momentum=0"]
            kind = ["dataset=npz", "dataset.model=cnn3", *(f"dataset.{each}" for each in step)]
        if self.model == "lstm":
            kind = ["dataset=shakespeare", "dataset.local_steps=5", "dataset.momentum=0"]
        return [
            *kind,
            f"dataset.path={self.data}",
            f"dataset.num_clients={self.num_clients}",
            "method=dp_fedavg",
            "privacy.sampling=fixed_size",
            "privacy.accountant=rdp",
            "privacy.delta=1e-6",
            f"privacy.sampling_rate={self.cohort / self.num_clients:.12g}",
            "secagg=off",
            f"run.num_rounds={self.rounds + 1}",
            f"run.device={self.device}",
        ]


def run_alone(
    module: str,
    settings: Mapping[str, object],
    *,
    package: str = "benchmarks.simulation",
    python: Path = Path(sys.executable),
    before: Sequence[str] = (),
    threads: int = 1,
) -> dict[str, Any]:
    """Run a benchmark module in its own process; return the result that it prints."""
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603 - our own programs
        [str(python), *before, "-m", f"{package}.{module}", json.dumps(settings)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": str(threads)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT_LINE)]
    if not lines:
        raise RuntimeError(f"{module} printed no result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT_LINE))
    return result


def print_result(result: Mapping[str, object]) -> None:
    """Print a measured result in the form that :func:`run_alone` reads."""
    print(RESULT_LINE + json.dumps(result), flush=True)


class TorchLSTM(nn.Module):
    """An LSTM made of PyTorch's own layers, with the sizes of the model ``lstm``.

    `vocabulary`: how many characters there are.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.layers = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.last = nn.Linear(256, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return scores of the next character: (B, L) to (B, vocabulary)."""
        scores: torch.Tensor = self.last(self.layers(self.embedding(characters))[0][:, -1])
        return scores
