"""Measures accuracies under several settings that fit the incomplete description in the GDPFed paper.

The paper of GDPFed and GDPFed+ says of Fashion-MNIST: a CNN of two convolutions, 6,000 clients with ten
pictures each, 5 local steps of batch 10, 50 rounds of 2 %, clipping norm 1.5. Each reading is a network, a
pixel range, a way of dividing the pictures among clients, and a learning rate. A table cell is the accuracy
after the last round, and in brackets the best accuracy of the rounds 10, 20, ..., which a program would show
that tests every tenth round.

    python -m benchmarks.readings [OVERRIDE ...] [--data DIR] [--seeds 1] [--only READING ...]
        [--methods M ...] [--jobs 1] [--quick]

`--data`: the folder that holds FashionMNIST. `--jobs`: runs at a time, each in a process of its own.
`--quick`: without the widest network, which takes long. Budgets, rates and delta are the paper's.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
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
PRINTED = {
    "fedavg": "78.96",
    "dp_fedavg": "71.88",
    "gdpfed": "73.97",
    "pfa": "73.67",
    "idp_fedavg_scale": "74.80",
    "gdpfed_plus": "75.83",
}
METHODS = (*PRINTED, "gdpfed_star")
COMPARED_WITH = "gdpfed_plus"
EVERY = 10


def five_by_five(widths: tuple[int, int], hidden: int, padding: int = 0, dropout: float = 0.0) -> Network:
    """Return a network builder: two 5x5 convolutions, each with 2x2 pooling, and one hidden layer."""

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
    """One choice of the settings that the GDPFed paper does not state, such as network and learning rate.

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
    """Assign the pictures of each class to the clients in turn; return each picture's client, shape (n,)."""
    owners = np.empty(len(labels), dtype=np.int64)
    for number in np.unique(labels):
        (places,) = np.nonzero(labels == number)
        owners[places] = np.arange(len(places)) % num_clients
    return owners


def arrays_of(path: str | None) -> tuple[Arrays, Arrays]:
    """Load training and test pictures with pixels from -1 to 1, and their labels."""
    dataset = load_dataset(DataSource(DATASET, path=path))
    train, test = (each.take(np.arange(len(each))) for each in (dataset.train, dataset.test))
    return (train.x, train.y), (test.x, test.y)


def trained(
    reading: Reading, method: str, seed: int, data: tuple[Arrays, Arrays], words: tuple[str, ...]
) -> FinishedRun:
    """Train a method with one choice of the settings missing in the GDPFed paper; return the finished run."""
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
    """Return a table cell: accuracy after the last round and, in brackets, the best of rounds 10, 20, ..."""
    last = Spread.of([run.results[-1] for run in runs])
    best = Spread.of([max(run.results[EVERY - 1 :: EVERY] or run.results[-1:]) for run in runs])
    return f"{last.text()} ({best.mean:.1f})"


def readings_table(
    data: str, printed: Mapping[str, str], found: Mapping[tuple[str, str], list[FinishedRun]]
) -> Table:
    """Make the table of all readings of a data set.

    `printed`: the paper's accuracies by method. `found`: the runs by reading and method, in the order of rows
    and columns.
    """
    methods = list(dict.fromkeys(method for _, method in found))
    rows = [["printed in the paper", "", *(printed.get(method, "") for method in methods)]]
    for name in dict.fromkeys(name for name, _ in found):
        dimension = found[name, methods[0]][0].dimension
        rows.append([name, f"{dimension:,}", *(cell(found[name, method]) for method in methods)])
    headings = ("reading", "parameters", *(f"{method} (%)" for method in methods))
    note = (
        f"After the last round, and in brackets the best of the rounds {EVERY}, {2 * EVERY}, ...;"
        f" seeds a cell: {max(map(len, found.values()))}."
    )
    return Table(f"Readings of the paper's setting of {data}", headings, rows, note)


def differences(name: str, runs: Mapping[str, list[FinishedRun]]) -> Table:
    """Make a table of each method's mean accuracy difference to GDPFed+, with 95 % intervals over seeds."""
    base = [run.final_result for run in runs[COMPARED_WITH]]
    rows = []
    for method, own in runs.items():
        if method != COMPARED_WITH:
            more = [run.final_result - other for run, other in zip(own, base, strict=True)]
            rows.append((method, str(len(more)), Spread.of(more).with_interval()))
    headings = ("method", "seeds", "test accuracy (%) more, with its 95 % interval")
    return Table(f"Differences to {COMPARED_WITH}, by seed: {name}", headings, rows)


_arrays: tuple[Arrays, Arrays]


def _load(path: str | None) -> None:
    """Load the pictures into a global variable, once in each worker process."""
    global _arrays
    _arrays = arrays_of(path)


@contextmanager
def runs_of(
    cells: Sequence[tuple[str, str, int]], words: tuple[str, ...], path: str | None, jobs: int
) -> Iterator[Iterable[FinishedRun]]:
    """Return a context manager whose value iterates over a trained run for each (settings, method, seed)."""
    if jobs == 1:
        _load(path)
        yield map(_trained_there, cells, repeat(words))
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_load, initargs=(path,)) as pool:
        yield pool.map(_trained_there, cells, repeat(words))


def _trained_there(cell_of: tuple[str, str, int], words: tuple[str, ...]) -> FinishedRun:
    name, method, seed = cell_of
    return trained(READINGS[name], method, seed, _arrays, words)


def main() -> None:
    """Train each method with each reading (possible settings of the GDPFed paper); show the accuracies."""
    options = read_options(
        __doc__,
        overrides=True,
        data="",
        seeds=1,
        only=tuple(READINGS),
        methods=METHODS,
        jobs=1,
        quick=False,
    )
    chosen = [name for name in options.only if not (options.quick and READINGS[name].network is WIDE)]
    methods = options.methods
    cells = [(name, method, seed) for name in chosen for seed in range(options.seeds) for method in methods]
    found: dict[tuple[str, str], list[FinishedRun]] = {}
    words = tuple(options.overrides)
    with runs_of(cells, words, options.data or None, options.jobs) as runs:
        for (name, method, seed), run in track(
            zip(cells, runs, strict=True), "runs", total=len(cells), console=CONSOLE
        ):
            found.setdefault((name, method), []).append(run)
            CONSOLE.print(f"{name}, {method}, seed {seed}: {run.final_result:.1f} %", soft_wrap=True)
    tables = [readings_table("Fashion-MNIST", PRINTED, found)]
    if COMPARED_WITH in methods and options.seeds > 1:
        tables += [differences(name, {method: found[name, method] for method in methods}) for name in chosen]
    publish(tables, options.write)


if __name__ == "__main__":
    main()
