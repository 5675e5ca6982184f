"""Chooses how simulated clients are trained (by compiled code, or many at once) and how many at a time."""

from collections.abc import Callable

import psutil
import torch
from torch import nn

from fastgrad.fitting import UncompiledError, fitted
from fastgrad.lowered import NotLoweredError
from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import flatten, trainable
from gdpfed.learning.models.build import MODELS, DropoutKeys
from gdpfed.learning.task import Task
from gdpfed.learning.training.step_recording import CudaGraphs, Record
from gdpfed.methods.base import Theta
from gdpfed.registry import is_ours
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.step_graphs import GraphedTraining

TRIED_RECORDS = 3
# float32 sums in another order; a program that is wrong is further off.
MOST_OFF = 1e-3


def choose_training(
    task: Task, device: torch.device, precision: str, graphs: bool = False
) -> tuple[BatchedTraining | ProgrammedTraining, str]:
    """Choose how to train a task's model; return a trainer and its description.

    A program is taken on a CPU in float32, if it computes what autograd computes on drawn records. `graphs`:
    whether a step may be recorded, where a device can.
    """
    words = ""
    if precision == "float32":
        try:
            return _programmed(task, device), ", by compiled loops"
        except UncompiledError as error:
            words = f", without compiled loops ({error})"
        except NotLoweredError:
            pass
    if graphs and device.type == "cuda" and _renew(task) is None:
        return _graphed(task, device, precision, CudaGraphs(device))
    return _plain(task, device, precision), words


def _plain(task: Task, device: torch.device, precision: str) -> BatchedTraining:
    loss, apart, renew = task.make_loss(), _apart(task), _renew(task)
    return BatchedTraining(task.build_model(), device, precision, loss, apart=apart, renew=renew)


def _renew(task: Task) -> Callable[[], nn.Module] | None:
    """Return what builds a package's model again, which may keep something of a client."""
    return None if is_ours(MODELS.get(task.model)) else task.build_model


def _apart(task: Task) -> bool:
    """Whether a package's code computes the loss: it may look at all records that it is given."""
    return not (is_ours(LOSSES.get(task.loss)) and is_ours(type(task.known_form.labels)))


def _graphed(task: Task, device: torch.device, precision: str, record: Record) -> tuple[BatchedTraining, str]:
    """Return a trainer, with CUDA graphs unless recording them fails, and a text that names the case."""
    model, loss, apart = task.build_model(), task.make_loss(), _apart(task)
    training = GraphedTraining(model, device, precision, loss, record, apart=apart)
    x, y = (each.to(device) for each in task.drawn(TRIED_RECORDS))
    if refusal := training.tried(torch.from_numpy(flatten(model)), x, y, momentum=0.0):
        return _plain(task, device, precision), f", without graphs ({refusal})"
    return training, ", a graph a step"


def _programmed(task: Task, device: torch.device) -> ProgrammedTraining:
    """Return a trainer with compiled code; raise NotLoweredError if the code fails or computes wrongly."""
    model, loss, form = task.build_model(), task.make_loss(), task.known_form
    training = ProgrammedTraining(fitted(model, form.input_shape, device), loss)
    x, y = task.drawn(TRIED_RECORDS)
    theta = torch.from_numpy(flatten(model))
    training.load(theta)
    weights = torch.full((TRIED_RECORDS,), 1 / TRIED_RECORDS)
    ours = training.in_order(training.gradient(x, y, weights))
    DropoutKeys(model).set(0)
    leaves = list(trainable(model.train()).values())
    parts = torch.autograd.grad(loss(model(x), y).mean(), leaves)
    theirs = torch.cat([part.reshape(-1) for part in parts])
    if not (ours - theirs).norm() <= MOST_OFF * theirs.norm():
        raise NotLoweredError("the compiled program computes other numbers than the model")
    return training


MOST = 1024
MEMORY_SHARE = 0.5
# A CPU gains nothing from more than this at once: the overhead of a call is spread, and caches overflow.
CPU_BYTES = 64 * 2**20
# Updates that are encoded while they lie in cache, in float64 and in integers.
CACHE_BYTES, BYTES_AN_ENTRY = 4 * 2**20, 2 * 8
# Parameters, gradient, velocity and their copies in float32, update and steps in 64 bits.
BYTES_A_PARAMETER = 5 * 4 + 3 * 8
# Two moments with a place to compute, and where a round began.
MORE_OF_OPTIMIZERS = 4 * 4


def clients_at_once(
    training: BatchedTraining | ProgrammedTraining,
    theta: Theta,
    order: TrainingOrder,
    examples: DeviceExamples,
) -> int:
    """Return how many clients to train together, so that one step needs at most half of the free memory.

    What one client needs is measured: the tensors that a forward pass of its batch keeps for the way back,
    counted twice, since their gradients exist beside them. A program has one client in its buffers, and only
    updates are many.
    """
    if isinstance(training, ProgrammedTraining):
        return max(1, min(MOST, CACHE_BYTES // (BYTES_AN_ENTRY * len(theta))))
    need = 2 * kept_bytes(training, theta, order, examples) + BYTES_A_PARAMETER * len(theta)
    need += 0 if order.training.is_sgd else MORE_OF_OPTIMIZERS * len(theta)
    if training.device.type == "cpu":
        budget = min(CPU_BYTES, MEMORY_SHARE * psutil.virtual_memory().available)
    else:
        budget = MEMORY_SHARE * torch.cuda.mem_get_info(training.device)[0]
    return max(1, min(MOST, int(budget) // need))


def kept_bytes(
    training: BatchedTraining, theta: Theta, order: TrainingOrder, examples: DeviceExamples
) -> int:
    """Return how many bytes autograd keeps of one client's forward pass."""
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batches = Batches.draw(order, [0])
    weights = torch.from_numpy(batches.weights[0]).to(training.device)
    start = torch.from_numpy(theta).to(training.device)[None]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        keys = torch.from_numpy(batches.keys[0]).to(training.device)
        training.gradients(start, *examples.take(batches.positions[0]), weights, keys)
    return sum(kept.values())
