"""Training loops of other projects, with or without a planted fault, to test the audit of loops.

Each loop gives its units the rows of a matrix as contributions. Flower's is its own strategy for differential
privacy on the server, with clients in this process; Opacus' is its own engine in a process of its own
environment; the plain one is DP-SGD in a few lines of numpy.
"""

import json
import logging
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from gdpfed.errors import RunError
from gdpfed.privacy.promised_loop import Released, TrainingLoop
from testing.local_grid import identify_task
from testing.project import PROJECT

FlowerFault = Literal["", "noise of two thirds", "weights by examples"]
FLOWER_FAULTS: tuple[FlowerFault, ...] = get_args(FlowerFault)
SGDFault = Literal[
    "", "noise of two thirds", "no clipping", "every record in every step", "epsilon of half the steps"
]
SGD_FAULTS: tuple[SGDFault, ...] = get_args(SGDFault)
Vectors = npt.NDArray[np.float64]

DELTA, NORM = 1e-3, 2.0
# One client in so many has more examples than the others, so many times as many.
LARGE_OF, LARGE = 5, 20
TWO_THIRDS = 2 / 3
# Flower divides by the norm of an update, and ends where one is zero.
TINY = 1e-9


class RowsGrid:
    """A Flower grid whose nodes always answer with the model plus a fixed row of a matrix."""

    def __init__(self, rows: Vectors, examples: npt.NDArray[np.int64]) -> None:
        self._rows, self._examples = rows, examples

    def get_node_ids(self) -> list[int]:
        """Return the nodes' ids 1, 2, ...; node k answers with the model plus row k - 1 of the matrix."""
        return list(range(1, len(self._rows) + 1))

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> list[Message]:
        """Return the answer of every node."""
        return [self._answer(each) for each in messages]

    def _answer(self, message: Message) -> Message:
        number = message.metadata.dst_node_id - 1
        (name,) = message.content.array_records
        (model,) = message.content.array_records[name].to_numpy_ndarrays()
        moved = ArrayRecord({"model": Array(model + self._rows[number] + TINY)})
        counted = MetricRecord({"num-examples": int(self._examples[number])})
        return Message(RecordDict({name: moved, "counted": counted}), reply_to=message)


class TooQuiet(DifferentialPrivacyServerSideFixedClipping):
    """Flower's strategy with a fault: its noise is only two thirds of what it states."""

    def _add_noise_to_aggregated_arrays(self, aggregated_arrays: ArrayRecord) -> ArrayRecord:
        asked, self.noise_multiplier = self.noise_multiplier, TWO_THIRDS * self.noise_multiplier
        noised = super()._add_noise_to_aggregated_arrays(aggregated_arrays)
        self.noise_multiplier = asked
        return noised


def flower_loop(
    fault: FlowerFault = "", *, units: int = 100, dimension: int = 300, rounds: int = 3
) -> TrainingLoop:
    """Return a training loop with Flower's server-side DP strategy, in which all clients take part."""
    sigma = 1.0
    examples = np.ones(units, dtype=np.int64)
    if fault == "weights by examples":
        examples[::LARGE_OF] = LARGE
    kind = TooQuiet if fault == "noise of two thirds" else DifferentialPrivacyServerSideFixedClipping

    def run(rows: Vectors) -> Released:
        identify_task()
        plain = FedAvg(min_train_nodes=units, min_available_nodes=units, fraction_evaluate=0.0)
        strategy = kind(plain, noise_multiplier=sigma, clipping_norm=NORM, num_sampled_clients=units)
        models = [np.zeros(dimension)]

        def look(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:
                models.append(arrays.to_numpy_ndarrays()[0])

        grid: Any = RowsGrid(rows, examples)
        logger, first = logging.getLogger("flwr"), ArrayRecord({"model": Array(models[0])})
        usual = logger.level
        logger.setLevel(logging.ERROR)
        try:
            strategy.start(grid, first, num_rounds=rounds, evaluate_fn=look)
        finally:
            logger.setLevel(usual)
        return Released(models=np.stack(models), step=1 / units)

    return TrainingLoop(
        run=run,
        num_units=units,
        dimension=dimension,
        num_rounds=rounds,
        noise_multiplier=sigma,
        clipping_norm=NORM,
        delta=DELTA,
        name="Flower, DP on the server",
    )


SGD: dict[str, Any] = {
    "num_units": 200,
    "dimension": 400,
    "num_rounds": 8,
    "noise_multiplier": 1.0,
    "clipping_norm": NORM,
    "delta": DELTA,
    "sampling_rate": 0.25,
}


def opacus_loop(python: str | Path, fault: SGDFault = "") -> TrainingLoop:
    """Return a training loop with Opacus, which states epsilon by its own accountant."""
    nothing = np.zeros((0, SGD["dimension"]))

    def run(rows: Vectors) -> Released:
        found = _by_opacus(python, rows, fault)
        # The learning rate is the expected batch, over which Opacus takes the mean.
        return Released(models=found["models"], step=-1.0, asked=found["asked"])

    epsilon = float(_by_opacus(python, nothing, fault)["epsilon"])
    return TrainingLoop(run=run, epsilon=epsilon, name="Opacus", **SGD)


def _by_opacus(python: str | Path, rows: Vectors, fault: str) -> dict[str, Any]:
    with TemporaryDirectory(prefix="gdpfed-opacus-") as folder:
        work, released = Path(folder) / "work.npz", Path(folder) / "released.npz"
        np.savez(work, rows=rows, numbers=json.dumps(SGD | {"fault": fault}))
        words = [str(python), "-m", "testing.opacus_rows", str(work), str(released)]
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RunError(f"Opacus ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
        with np.load(released) as found:
            return dict(found)


def plain_loop(fault: SGDFault = "", *, tells: bool = True, generator: np.random.Generator) -> TrainingLoop:
    """Return a training loop of DP-SGD in numpy, which adds noise to sums of clipped rows.

    `tells`: whether it says who was in a batch.
    """
    sigma, epsilon = SGD["noise_multiplier"], 0.5 if fault == "epsilon of half the steps" else None

    def run(rows: Vectors) -> Released:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        clipped = rows if fault == "no clipping" else rows / np.maximum(1.0, lengths / NORM)
        rate = 1.0 if fault == "every record in every step" else SGD["sampling_rate"]
        asked = generator.random((SGD["num_rounds"], len(rows))) < rate
        stddev = NORM * sigma * (TWO_THIRDS if fault == "noise of two thirds" else 1.0)
        noise = generator.normal(0.0, stddev, (SGD["num_rounds"], rows.shape[1]))
        return Released(sums=asked @ clipped + noise, asked=asked if tells else None)

    return TrainingLoop(run=run, epsilon=epsilon, name="DP-SGD in numpy", **SGD)
