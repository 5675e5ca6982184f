"""Measures the bytes and seconds that correlated noise costs if clients subtract part of the noise later.

Under correlated noise a client exchanges more messages: after a round with its update, it takes part in the
sums of the next rounds without an update, to subtract noise. Bytes are those of the secure sums' messages as
Flower serialises them, both ways, over nodes in this process, whose training does not count. A small model's
messages are mostly keys and secret shares, whose number grows with that of the clients; a large model's are
mostly vectors.
Seconds are those of simulated rounds without masks, one run after the other, the first round left out.

    python -m benchmarks.taken_back [--rounds 8] [--clients 24] [--write docs/privacy.md] [OVERRIDE ...]
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid

from benchmarks.harness import publish, read_options, steady_seconds, three
from conf.load import load
from gdpfed.clients.messages import STAGES
from gdpfed.report.console import Table
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.in_process_fleet import simulate
from server_app.train import train
from testing.local_grid import LocalGrid

SETTING = (
    "method=dp_fedavg",
    "privacy.against=everyone",
    "privacy.budgets=[3]",
    "privacy.sampling_rate=0.25",
)
MODELS = {
    "linear": ("dataset.model=linear",),
    "mlp": ("dataset.model=mlp", "dataset.model_options={hidden_units:400}"),
}
TAPS = (0, 1, 2)
MEGA = 1e6
REPEATS = 3


class WeighingGrid(LocalGrid):
    """Carries messages between server and simulated nodes, and counts the bytes of secure sum messages."""

    weight: int = 0

    def _deliver(self, message: Message) -> Message | None:
        in_sum = any(stage in message.content for stage in STAGES)
        sent = message_to_proto(message).ByteSize()
        reply = super()._deliver(message)
        if in_sum and reply is not None:
            self.weight += int(sent + message_to_proto(reply).ByteSize())
        return reply


def megabytes(options: argparse.Namespace, more: Sequence[str]) -> float:
    """Return how many MB a client sends and receives for all secure sums of a run, on average."""
    with tempfile.TemporaryDirectory() as folder:
        grid, overrides = WeighingGrid(options.clients), _overrides(options, folder)
        train(cast("Grid", grid), load([*overrides, *more, "training.local_steps=1"]), LocalGrid.RUN)
    weight, clients = grid.weight, int(options.clients)
    return weight / clients / MEGA


def seconds(options: argparse.Namespace, more: Sequence[str]) -> float:
    """Measure the seconds of a simulated round without masks."""
    medians = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            path = simulate(load([*_overrides(options, folder), *more, "secagg=off"]))
            medians.append(statistics.median(steady_seconds(read_rounds(path))))
    return min(medians)


def _overrides(options: argparse.Namespace, folder: str) -> Sequence[str]:
    return [
        *(f"dataset.num_clients={options.clients}", f"run.num_rounds={options.rounds}", *SETTING),
        *(*options.overrides, f"run.directory='{Path(folder) / 'run'}'"),
    ]


def rows_of(options: argparse.Namespace, model: str) -> list[tuple[str, ...]]:
    """Return one model's three table rows: clients subtract noise in none, one or two of the later rounds."""
    every = [(*MODELS[model], f"privacy.noise_taps={taps}") for taps in TAPS]
    sent = [megabytes(options, more) for more in every]
    took = [seconds(options, more) for more in every]
    return [
        (model, str(taps), f"{mb:.3f}", f"{mb / sent[0]:.2f}", three(each), f"{each / took[0]:.2f}")
        for taps, mb, each in zip(TAPS, sent, took, strict=True)
    ]


def main() -> None:
    """Measure bytes and seconds for each number of rounds in which noise is subtracted; show the table."""
    options = read_options(__doc__, overrides=True, rounds=8, clients=24)
    headings = (
        *("model", "taps p", "MB a client, whole run", "against p = 0"),
        *("seconds a round, simulated without masks", "against p = 0"),
    )
    rows = [row for model in MODELS for row in rows_of(options, model)]
    publish([Table("What it costs to take noise back", headings, rows)], options.write)


if __name__ == "__main__":
    main()
