"""Records a GPU's training step as a CUDA graph, once for each shape, and replays it without Python.

A small network's step is some hundred kernels of microseconds each, for which a GPU waits: Python starts one
after the other. A graph of all of them starts at once. It repeats them on the tensors that it was recorded
on, so what changes from step to step is written into these.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import torch

WARM_UPS = 2
"""Steps before one is recorded: libraries choose their kernels and take their memory in the first ones."""
MOST_SHAPES = 8
"""Graphs that are kept, each with its memory; of more shapes the one that was used longest ago goes."""


class Replays(Protocol):
    """A training step that was recorded as a CUDA graph, and can be run again."""

    def replay(self) -> None:
        """Run the recorded step again, on the tensors on which it was recorded."""


K = TypeVar("K")
V = TypeVar("V")
Record = Callable[[Callable[[], None]], Replays]
"""Records a step, which may be carried out some times for it."""


class CudaGraphs:
    """Records training steps as CUDA graphs on one device.

    All that there are share one pool of memory, since a step leaves nothing in it: each may use what another
    one used. torch lets no graph into a pool whose graphs are all gone, so then a new pool begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._pool: Any = None

    def __call__(self, step: Callable[[], None]) -> Replays:
        """Record a step as a CUDA graph; raise RuntimeError if that is not possible."""
        current, aside = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                step()
        current.wait_stream(aside)
        # They stay while this one is recorded.
        there = list(self._graphs)
        if not there or self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Engines of other GPUs go on in threads of their own.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            step()
        self._graphs.add(graph)
        return graph


def recorder(device: torch.device, graphs: bool = True) -> Record | None:
    """Return a recorder of CUDA graphs for a CUDA device; None for other devices or if `graphs` is false."""
    return CudaGraphs(device) if graphs and device.type == "cuda" else None


def held_or_made(held: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return the cached value of a key, or make one; keep only the `MOST_SHAPES` latest used values."""
    if key in held:
        held.move_to_end(key)
        return held[key]
    if len(held) == MOST_SHAPES:
        held.popitem(last=False)
    held[key] = made = make()
    return made


def padded(number: int, sizes_an_octave: int) -> int:
    """Round a size up to one of `sizes_an_octave` sizes from n to 2 n, so that few CUDA graphs are needed.

    A graph is for one size, and sizes differ. So there are few shapes, and with 4 of them an octave at most a
    quarter is computed in vain.
    """
    unit = 1
    while unit * 2 * sizes_an_octave <= number:
        unit *= 2
    return -(-number // unit) * unit
