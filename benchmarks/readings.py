"""Settings that the paper leaves open, tried out: network, pixel range, division of pictures, round.

The paper of GDPFed and GDPFed+ says of Fashion-MNIST: a CNN of two convolutions, 6,000 clients with ten
pictures each, 5 local steps of batch 10, 50 rounds of 2 %, clipping norm 1.5. Each reading is a network, a
scale of the pixels and a way of dealing the pictures. A cell is the accuracy after the last round, and in
brackets the best of the rounds 10, 20, ..., which a program shows that tests each tenth round.

    python -m benchmarks.readings [--data DIR] [--seeds 1] [--only READING ...] [--methods M ...] [--quick]

`--data`: the folder that holds FashionMNIST. `--quick`: without the widest network, which takes long.
Budgets, rates and delta are the paper's.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track
from torch import nn

import gdpfed
from benchmarks.harness import CONSOLE, publish, read_options
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.models.networks import cnn2, named_layers, num_features
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.report.console import Table
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.metric_display import Spread

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Network = Callable[[tuple[int, ...], int], nn.Module]

DATASET = "fmnist"
NUM_CLIENTS = 6000
SETTING = (
    "privacy.against=outsiders",
    "privacy.budgets=[0.5,1.5,3]",
    "privacy.clipping_norm=1.5",
    "privacy.sampling_rate=0.02",
    "run.num_rounds=50",
    "training.local_steps=5",
    "training.batch_size=10",
    "training.learning_rate=0.1",
    "training.momentum=0",
    "secagg=off",
)
PRINTED = {"fedavg": "78.96", "dp_fedavg": "71.88", "gdpfed_plus": "75.83"}
EVERY = 10


def five_by_five(widths: tuple[int, int], hidden: int, padding: int = 0, dropout: float = 0.0) -> Network:
    """A network with two 5x5 convolutions, each with 2x2 pooling, and one hidden layer."""

    def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        features = {
            "convolution1": nn.Conv2d(input_shape[0], widths[0], 5, padding=padding),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "convolution2": nn.Conv2d(widths[0], widths[1], 5, padding=padding),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
        }
        return named_layers(
            **features,
            hidden=nn.Linear(num_features(named_layers(**features), input_shape), hidden),
            relu3=nn.ReLU(),
            **({"dropout": nn.Dropout(dropout)} if dropout else {}),
            output=nn.Linear(hidden, num_classes),
        )

    return build


@dataclass(frozen=True)
class Reading:
    """One possible interpretation of the paper's setting.

    `network`: of an input's shape and the number of classes. `pixels`: their least and largest value.
    `one_a_class`: whether each client has as many pictures of each class. `changes`: settings.
    """

    network: Network
    pixels: tuple[float, float] = (-1.0, 1.0)
    one_a_class: bool = False
    changes: tuple[str, ...] = ()


SMALL, WIDE = five_by_five((10, 20), 50), five_by_five((32, 64), 512, padding=2)
READINGS = {
    "8x8 and 4x4, 16 and 32 channels, 32 units": Reading(cnn2),
    "the same, pixels 0 to 1": Reading(cnn2, pixels=(0.0, 1.0)),
    "the same, a picture a class": Reading(cnn2, one_a_class=True),
    "the same, rate 0.2": Reading(cnn2, changes=("training.learning_rate=0.2",)),
    "5x5, 10 and 20 channels, 50 units": Reading(SMALL),
    "5x5 10/20/50, pixels 0 to 1": Reading(SMALL, pixels=(0.0, 1.0)),
    "5x5 10/20/50, a picture a class": Reading(SMALL, one_a_class=True),
    "5x5 10/20/50, rate 0.2": Reading(SMALL, changes=("training.learning_rate=0.2",)),
    "5x5, 32 and 64 channels, 512 units, a picture a class": Reading(WIDE, one_a_class=True),
}


def one_each(labels: npt.NDArray[np.int64], num_clients: int) -> npt.NDArray[np.int64]:
    """The owner of each picture, shape (n,): pictures of each class are dealt to clients in turn."""
    owners = np.empty(len(labels), dtype=np.int64)
    for number in np.unique(labels):
        (places,) = np.nonzero(labels == number)
        owners[places] = np.arange(len(places)) % num_clients
    return owners


def arrays_of(path: str | None) -> tuple[Arrays, Arrays]:
    """Training and test pictures with pixels from -1 to 1, and their labels."""
    dataset = load_dataset(DataSource(DATASET, path=path))
    train, test = (each.take(np.arange(len(each))) for each in (dataset.train, dataset.test))
    return (train.x, train.y), (test.x, test.y)


def trained(
    reading: Reading, method: str, seed: int, data: tuple[Arrays, Arrays], words: tuple[str, ...]
) -> FinishedRun:
    """Train one reading with one method; the returned run is in memory, without its folder."""
    (x, y), (x_test, y_test) = data
    low, high = reading.pixels
    x, x_test = (low + (high - low) / 2 * (each + 1) for each in (x, x_test))
    owners = {"owners": one_each(y, NUM_CLIENTS)} if reading.one_a_class else {"clients": NUM_CLIENTS}
    with tempfile.TemporaryDirectory() as folder:
        return gdpfed.simulate(
            *(f"method={method}", *SETTING, f"privacy.delta={paper_delta(NUM_CLIENTS)!r}"),
            *(*reading.changes, *words, f"run.seed={seed}", f"run.directory={Path(folder) / 'run'}"),
            data=(x, y, x_test, y_test),
            model=reading.network,
            observe=lambda record: None,
            **owners,
        )


def cell(runs: list[FinishedRun]) -> str:
    """A table cell: accuracy after the last round, and the best of every tenth round, over the seeds."""
    last = Spread.of([run.results[-1] for run in runs])
    best = Spread.of([max(run.results[EVERY - 1 :: EVERY] or run.results[-1:]) for run in runs])
    return f"{last.text()} ({best.mean:.1f})"


def main() -> None:
    """Train every reading with every method, and show the table below the paper's figures."""
    options = read_options(
        __doc__,
        overrides=True,
        data="",
        seeds=1,
        only=tuple(READINGS),
        methods=tuple(PRINTED),
        quick=False,
    )
    chosen = [name for name in options.only if not (options.quick and READINGS[name].network is WIDE)]
    methods = options.methods
    rows = [["printed in the paper", "", *(PRINTED[method] for method in methods)]]
    data = arrays_of(options.data or None)
    for name in track(chosen, "readings", console=CONSOLE):
        runs = {
            method: [
                trained(READINGS[name], method, seed, data, tuple(options.overrides))
                for seed in range(options.seeds)
            ]
            for method in methods
        }
        dimension = runs[methods[0]][0].dimension
        rows.append([name, f"{dimension:,}", *(cell(runs[method]) for method in methods)])
    headings = ("reading", "parameters", *(f"{method} (%)" for method in methods))
    note = (
        f"After the last round, and in brackets the best of the rounds {EVERY}, {2 * EVERY}, ...;"
        f" seeds a cell: {options.seeds}."
    )
    publish([Table("Readings of the paper's setting of Fashion-MNIST", headings, rows, note)], options.write)


if __name__ == "__main__":
    main()
