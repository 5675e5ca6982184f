"""The number of clients to train at once: as many as cache and memory hold."""

import psutil
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.examples import Batches, DeviceExamples
from gdpfed.simulation.programmed_training import ProgrammedTraining

MOST = 1024
MEMORY_SHARE = 0.5
# A CPU gains nothing from more than this at once: the overhead of a call is spread, and caches overflow.
CPU_BYTES = 64 * 2**20
# Updates that are encoded while they lie in cache, in float64 and in integers.
CACHE_BYTES, BYTES_AN_ENTRY = 4 * 2**20, 2 * 8
# Parameters, gradient, velocity and their copies in float32, update and steps in 64 bits.
BYTES_A_PARAMETER = 5 * 4 + 3 * 8


def clients_at_once(
    training: BatchedTraining | ProgrammedTraining,
    theta: Theta,
    order: TrainingOrder,
    examples: DeviceExamples,
) -> int:
    """A number of clients for which one step needs at most half of the memory that is free.

    What one client needs is measured: the tensors that a forward pass of its batch keeps for the way back,
    counted twice, since their gradients exist beside them. A program has one client in its buffers, and only
    updates are many.
    """
    if isinstance(training, ProgrammedTraining):
        return max(1, min(MOST, CACHE_BYTES // (BYTES_AN_ENTRY * len(theta))))
    need = 2 * kept_bytes(training, theta, order, examples) + BYTES_A_PARAMETER * len(theta)
    if training.device.type == "cpu":
        budget = min(CPU_BYTES, MEMORY_SHARE * psutil.virtual_memory().available)
    else:
        budget = MEMORY_SHARE * torch.cuda.mem_get_info(training.device)[0]
    return max(1, min(MOST, int(budget) // need))


def kept_bytes(
    training: BatchedTraining, theta: Theta, order: TrainingOrder, examples: DeviceExamples
) -> int:
    """Bytes that autograd keeps of one client's forward pass, each storage counted once."""
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
