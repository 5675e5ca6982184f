"""Our training steps, as a program: DP-SGD with secret batches and noise, or plain SGD.

Gradients of records are computed in the form that is chosen, or by a tape.
"""

import os
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.records.work import EDGE, NUM_CLASSES, clock, work_of_this_process
from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients, TapedGradients
from gdpfed.learning.data import Split
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.record_steps import RecordSteps
from secagg import keystream

CPU = torch.device("cpu")


def main() -> None:
    """Measure the work in the first argument."""
    work, way = work_of_this_process()
    model = build_model(work.model, (1, EDGE, EDGE), NUM_CLASSES, seed=0)
    theta, (x, y) = flatten(model), work.records()
    training = LocalTraining(work.num_steps, work.expected_batch, work.learning_rate, 0.0)
    if way == "plain":
        data = Split(x.numpy(), y.numpy())
        rng = np.random.default_rng(0)
        clock(work, partial(local_update, model, theta, data, training, rng=rng, device=CPU), form="")
        return
    if way == "tape":
        gradients: RecordGradients = TapedGradients(model, cross_entropy, CPU)
    else:
        gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=CPU)
    steps = RecordSteps(
        num_steps=work.num_steps,
        batch_rates=(work.batch_rate,),
        clipping_norm=work.clipping_norm,
        noise_multiplier=work.noise_multiplier,
    )

    def take(places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        where = torch.from_numpy(places)
        return x[where], y[where]

    def train() -> torch.Tensor:
        batches = PoissonBatches(steps.batch_rates, np.zeros(len(x), dtype=np.int64))
        holder = RecordHolder(np.arange(len(x)), steps, batches, keystream(os.urandom(32)))
        return noised_updates(gradients, theta, training, [holder], take)

    clock(work, train, form=gradients.form)


if __name__ == "__main__":
    main()
