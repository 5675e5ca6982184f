"""Measures how close a training step is to the device's limits, and what takes its time."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt, prod
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.simulation.work import Work, print_result
from conf.load import load
from fastgrad.products import product
from gdpfed.clients.configured import order_of, task_of
from gdpfed.learning.models import flatten
from gdpfed.simulation.batched_training import Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.training_choice import choose_training, clients_at_once

REPEATS, MANY = 15, 20
PRODUCT_SIZE = 512
COPY_BYTES = {"in cache": 2**18, "in memory": 2**27}
GROUPS = {
    "products": ("aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm"),
    "copies (patches, layouts)": ("aten::copy_", "aten::cat", "aten::_to_copy", "aten::index", "Patches"),
    "pooling": ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
    "adding the patches' gradients": ("aten::add_", "PatchesBackward"),
    "ReLU": ("aten::clamp_min", "aten::relu", "aten::threshold_backward"),
}


# Where rows, columns and depth are among the arguments.
PRODUCTS = {
    "multiply": slice(7, 10),
    "multiply_by_columns": slice(8, 11),
    "multiply_transposed_each": slice(4, 7),
}
LOOPS = {
    "products": ("mm", "bmm", *PRODUCTS),
    "patches": ("patches",),
    "adding the patches' gradients": ("patches_back",),
    "bias, ReLU and pooling": ("activate", "activate_back", "pool", "pool_back"),
    "gates and cells, with the products of states": ("recur", "recur_back"),
}


class BytesMoved(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that torch operations read or write, except operations that make views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [each for each in tree_leaves((args, kwargs, result)) if torch.is_tensor(each)]
            self.total += sum(each.numel() * each.element_size() for each in tensors)
        return result


def best_seconds(act: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several runs after a warm-up."""
    act()
    best, clock = float("inf"), perf_counter if device.type == "cuda" else process_time
    for _ in range(REPEATS):
        started = clock()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - started)
    return best


def device_rates(device: torch.device) -> dict[str, float]:
    """Measure peak rates of one thread or the GPU: GFLOP/s of matrix products, GB/s of copies."""
    a, b = (torch.randn(4, PRODUCT_SIZE, PRODUCT_SIZE, device=device) for _ in range(2))
    act: Callable[[], object] = partial(torch.bmm, a, b)
    if device.type == "cpu":
        # As training computes products on this processor.
        calls = [product(*each) for each in zip(a, b, torch.empty_like(a), strict=True)]
        act = partial(_each, calls)
    rates = {"GFLOP/s": 2 * a.numel() * PRODUCT_SIZE / best_seconds(act, device) / 1e9}
    for where, size in COPY_BYTES.items():
        source = torch.randn(size // 4, device=device)
        target = torch.empty_like(source)
        seconds = best_seconds(partial(target.copy_, source), device)
        rates[f"GB/s {where}"] = 2 * size / seconds / 1e9
    return rates


@dataclass(frozen=True, eq=False)
class Steps:
    """The local training steps of several clients, whose time is measured together.

    Attributes:
        act: takes them.
        count: how many steps of one client these are.
        device: where.
        calls: of a program's pass; none without one.
    """

    act: Callable[[], object]
    count: int
    device: torch.device
    calls: Sequence[Any]


def make_steps(work: Work) -> Steps:
    """Prepare the local steps of as many clients as the simulation trains at once."""
    config = load(work.overrides)
    task = task_of(config)
    order = order_of(config, task)
    theta, device = flatten(task.build_model()), torch.device(work.device)
    training, examples = choose_training(task, device, "float32")[0], DeviceExamples(task, device)
    size = clients_at_once(training, theta, order, examples)
    batches = Batches.draw(order, range(size), with_keys=training.draws)

    def act() -> object:
        return training.updates(theta, order.training, examples, batches)

    calls: Sequence[Any] = ()
    if isinstance(training, ProgrammedTraining):
        calls = training.program(batches.positions.shape[2]).calls
    return Steps(act, size * order.training.local_steps, device, calls)


def shares_of_calls(calls: Sequence[Any], seconds: float) -> dict[str, float]:
    """Return which fraction of a compiled training step's time each kind of call takes."""
    times: dict[str, float] = {}
    for call in calls:
        name = call.func.__name__
        many = partial(_each, [call] * MANY)
        times[name] = times.get(name, 0.0) + best_seconds(many, torch.device("cpu")) / MANY
    named = {group: sum(times.get(key, 0) for key in keys) / seconds for group, keys in LOOPS.items()}
    return named | {"everything else": 1 - sum(named.values())}


def _each(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def flops_of_loops(calls: Sequence[Any]) -> int:
    """Count the operations that torch does not count: of compiled products, and in an LSTM's recurrences."""
    total = 0
    for call in calls:
        name, given = call.func.__name__, call.args
        if name in PRODUCTS:
            count = given[0] if name == "multiply_transposed_each" else 1
            total += 2 * count * prod(given[PRODUCTS[name]])
        if name in ("recur", "recur_back"):
            weights = given[2]
            gates, count = (given[0], given[4]) if name == "recur" else (given[1], given[6])
            # Weights have the shape (units, 4 units).
            rows = len(gates) // (2 * isqrt(len(weights)))
            total += 2 * len(weights) * (rows - count)
    return total


def bytes_of_calls(calls: Sequence[Any]) -> int:
    """Count the bytes of all buffers that the calls of the compiled training read or write."""
    buffers = [each for call in calls for each in (*call.args, *call.keywords.values())]
    return sum(each.nbytes for each in buffers if isinstance(each, torch.Tensor | np.ndarray))


def shares(act: Callable[[], object]) -> dict[str, float]:
    """Return the fraction of a step's time that each group of torch operations takes."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        act()
    events = profiled.key_averages()
    times = {each.key: each.self_device_time_total or each.self_cpu_time_total for each in events}
    total = sum(times.values())
    named = {group: sum(times.get(key, 0) for key in keys) / total for group, keys in GROUPS.items()}
    return named | {"everything else": 1 - sum(named.values())}


def main() -> None:
    """Measure the training step that the first command-line argument describes, and print the result."""
    torch.set_num_threads(1)
    steps = make_steps(Work(**json.loads(sys.argv[1])))
    rates = device_rates(steps.device)
    seconds = best_seconds(steps.act, steps.device)
    with FlopCounterMode(display=False) as flops:
        steps.act()
    if steps.calls:
        moved = bytes_of_calls(steps.calls) * steps.count
        parts = shares_of_calls(steps.calls, seconds / steps.count)
    else:
        with BytesMoved() as counter:
            steps.act()
        moved, parts = counter.total, shares(steps.act)
    print_result(
        {
            "rates": rates,
            "client_steps": steps.count,
            "seconds": seconds,
            "flops": flops.get_total_flops() + steps.count * flops_of_loops(steps.calls),
            "bytes": moved,
            "shares": parts,
        }
    )


if __name__ == "__main__":
    main()
