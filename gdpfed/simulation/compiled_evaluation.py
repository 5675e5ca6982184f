"""Evaluates the models of simulated runs on a CPU by compiled loops, if these compute what torch computes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fastgrad.fitting import fitted
from fastgrad.lowered import LoweredModel, NotLoweredError, pieces_of
from fastgrad.modules import Loss
from gdpfed.late_import import late_import
from gdpfed.learning.data import Examples
from gdpfed.learning.labels import Outputs
from gdpfed.learning.models import flatten, said
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.evaluate import CPU_BATCH, CentralEvaluation
from gdpfed.methods.base import Theta
from gdpfed.rounds.loop import EvaluateModel
from gdpfed.simulation.training_choice import MOST_OFF, TRIED_RECORDS

if TYPE_CHECKING:
    from fastgrad.program import Program

# It imports numba, which takes a while and is needed for some models only.
programs = late_import("fastgrad.program")

# A forward pass keeps no gradients: more records than in training fit into the cache, and threads wait less.
TIMES_THE_RECORDS = 4
# Of a pass, one part in fifteen is Python, which one thread runs at a time.
MOST_THREADS = 16


def with_compiled_loops(evaluate_model: EvaluateModel, task: Task, device_name: str) -> EvaluateModel:
    """Return an evaluation that computes a model's outputs by compiled loops.

    It returns ``evaluate_model`` itself if the loops do not fit: for another device or model, for dropout,
    which a test leaves out, or if outputs on drawn records are not those of torch.
    """
    if not isinstance(evaluate_model, CentralEvaluation):
        return evaluate_model
    data, model = evaluate_model.data.test, evaluate_model.model.eval()
    try:
        lowered = fitted(model, task.known_form.input_shape, choose_device(device_name))
    except NotLoweredError:
        return evaluate_model
    if lowered.draws:
        return evaluate_model
    outputs_of = CompiledOutputs(lowered, data, task.make_loss())
    x = task.drawn(TRIED_RECORDS)[0].reshape(-1, *task.known_form.input_shape)
    with torch.no_grad():
        theirs, ours = said(model, x), outputs_of.of_records(flatten(model), x)
    if ours.shape != theirs.shape or not (ours - theirs).norm() <= MOST_OFF * theirs.norm():
        return evaluate_model
    return replace(evaluate_model, outputs_of=outputs_of)


class CompiledOutputs:
    """Computes a model's outputs on examples by compiled loops, by as many threads as torch has, or 16.

    Which examples a pass computes together does not depend on the number of threads. `lowered`: the model's
    layers. `data`: the examples. `loss`: one figure a record.
    """

    def __init__(self, lowered: LoweredModel, data: Examples, loss: Loss) -> None:
        self._lowered, self._data, self._loss = lowered, data, loss
        self._order = torch.from_numpy(lowered.order)
        self._parameters, self._gradient = torch.empty(2, len(lowered.order)).unbind()
        self._programs: dict[tuple[int, int], Program] = {}

    def __call__(self, theta: Theta) -> tuple[Outputs, float]:
        """Return the outputs for all examples at parameters of shape (d,), and their mean loss."""
        self._load(theta)
        places = np.arange(len(self._data), dtype=np.int64)
        batches = [places[start : start + CPU_BATCH] for start in range(0, len(places), CPU_BATCH)]
        threads = min(torch.get_num_threads(), MOST_THREADS, len(batches))
        found: list[tuple[Outputs, float]] = [(np.empty(0), 0.0)] * len(batches)
        with ThreadPoolExecutor(threads) as pool:
            parts = pool.map(partial(self._batches, batches, threads), range(threads))
            for thread, part in enumerate(parts):
                found[thread::threads] = part
        outputs, losses = zip(*found, strict=True)
        return np.concatenate(outputs), sum(losses) / len(self._data)

    def of_records(self, theta: Theta, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of records of shape (n, ...) at parameters of shape (d,)."""
        self._load(theta)
        return self._outputs(x, 0)

    def _load(self, theta: Theta) -> None:
        torch.index_select(torch.from_numpy(theta), 0, self._order, out=self._parameters)

    def _batches(
        self, batches: Sequence[npt.NDArray[np.int64]], threads: int, thread: int
    ) -> list[tuple[Outputs, float]]:
        """Return outputs and the sum of losses of every batch that this thread computes."""
        found = []
        for places in batches[thread::threads]:
            batch = self._data.take(places)
            answers = self._outputs(torch.from_numpy(batch.x), thread)
            found.append(
                (answers.double().numpy(), float(self._loss(answers, torch.from_numpy(batch.y)).sum()))
            )
        return found

    def _outputs(self, x: torch.Tensor, thread: int) -> torch.Tensor:
        """Return the outputs of records, by the programs of one thread."""
        pieces = pieces_of(len(x), TIMES_THE_RECORDS * self._lowered.most_records)
        return torch.cat([self._program(thread, len(x[each])).outputs(x[each]).clone() for each in pieces])

    def _program(self, thread: int, num_records: int) -> "Program":
        if (thread, num_records) not in self._programs:
            self._programs[thread, num_records] = programs.Program(
                self._lowered, self._loss, num_records, self._parameters, self._gradient
            )
        return self._programs[thread, num_records]
