"""A program that times gdpfed's training steps: plain SGD, or DP-SGD with secret random batches and noise.

Per-record gradients are computed in the form that gdpfed chooses for the model, or by autograd (way "tape").
On a GPU each step is a recorded CUDA graph, or its operations are called one by one (way "called").
"""

import os
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.records.work import EDGE, NUM_CLASSES, Work, measure_each, seconds_of
from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients, TapedGradients
from gdpfed.learning.data import Split
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.learning.training.step_recording import recorder
from gdpfed.record_steps import RecordSteps
from secagg import keystream


def measured(work: Work, way: str) -> dict[str, object]:
    """Time gdpfed's training steps; return seconds per step, and how per-record gradients are computed."""
    model = build_model(work.model, (1, EDGE, EDGE), NUM_CLASSES, seed=0)
    theta, (x, y), device = flatten(model), work.records(), torch.device(work.device)
    training = LocalTraining(work.num_steps, work.expected_batch, work.learning_rate, 0.0)
    if way == "plain":
        data = Split(x.cpu().numpy(), y.cpu().numpy())
        rng = np.random.default_rng(0)
        steps = partial(local_update, model, theta, data, training, rng=rng, device=device)
        return {"seconds": seconds_of(work, steps), "form": ""}
    if way == "tape":
        gradients: RecordGradients = TapedGradients(model, cross_entropy, device)
    else:
        gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=device)
    record = recorder(device, way != "called")
    graphs = None if record is None else RecordGraphs(gradients, record, (x, y))
    told = RecordSteps(
        num_steps=work.num_steps,
        batch_rates=(work.batch_rate,),
        clipping_norm=work.clipping_norm,
        noise_multiplier=work.noise_multiplier,
    )

    def take(places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        where = torch.from_numpy(places).to(device)
        return x[where], y[where]

    def train() -> torch.Tensor:
        batches = PoissonBatches(told.batch_rates, np.zeros(len(x), dtype=np.int64))
        holder = RecordHolder(np.arange(len(x)), told, batches, keystream(os.urandom(32)))
        if graphs is not None:
            return graphs.updates(theta, training, [holder], take)
        return noised_updates(gradients, theta, training, [holder], take)

    form = gradients.form + (", a graph a step" if graphs is not None else "")
    return {"seconds": seconds_of(work, train), "form": form}


if __name__ == "__main__":
    measure_each(measured)
