"""The choice of a training: by programs if the model has one, else by vmap over many clients."""

import torch

from fastgrad.fitting import UncompiledError, fitted
from fastgrad.lowering import NotLoweredError
from gdpfed.learning.data.own import ExampleForm
from gdpfed.learning.models import flatten, trainable
from gdpfed.learning.models.dropout_keys import DropoutKeys
from gdpfed.learning.task import Task
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.programmed_training import ProgrammedTraining

TRIED_RECORDS = 3
# float32 sums in another order; a program that is wrong is further off.
MOST_OFF = 1e-3


def choose_training(
    task: Task, device: torch.device, precision: str
) -> tuple[BatchedTraining | ProgrammedTraining, str]:
    """The way a task's model is trained, and its description.

    A program is taken on a CPU in float32, if it computes what autograd computes on drawn records.
    """
    words = ""
    if precision == "float32":
        try:
            return _programmed(task, device), ", by compiled loops"
        except UncompiledError as error:
            words = f", without compiled loops ({error})"
        except NotLoweredError:
            pass
    return BatchedTraining(task.build_model(), device, precision, task.make_loss()), words


def _programmed(task: Task, device: torch.device) -> ProgrammedTraining:
    """Raises NotLoweredError where there is no program, or one that is wrong."""
    model, loss, form = task.build_model(), task.make_loss(), task.form or ExampleForm.of(task.load())
    training = ProgrammedTraining(fitted(model, form.input_shape, device), loss)
    generator = torch.Generator().manual_seed(0)
    shape = (TRIED_RECORDS, *form.input_shape)
    x = torch.randn(shape, generator=generator)
    if form.input_dtype == "int64":
        x = torch.randint(form.num_classes, shape, generator=generator)
    y = torch.randint(form.num_classes, (TRIED_RECORDS,), generator=generator)
    theta = torch.from_numpy(flatten(model))
    training.load(theta)
    weights = torch.full((TRIED_RECORDS,), 1 / TRIED_RECORDS)
    ours = training.in_order(training.gradient(x, y, weights))
    DropoutKeys(model).set(0)
    leaves = list(trainable(model.train()).values())
    parts = torch.autograd.grad(loss(model(x), y).mean(), leaves)
    theirs = torch.cat([part.reshape(-1) for part in parts])
    if not (ours - theirs).norm() <= MOST_OFF * theirs.norm():
        raise NotLoweredError("layers that compute something else")
    return training
