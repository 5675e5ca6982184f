"""Measures the cosine between a model's first training step with noise and the same step without noise.

All coordinates of the model are trained, or only some of them.

Clients train once from the seeded start, as in a run's first round. C is the median norm of their updates,
as adaptive clipping would choose it, and g the mean of the clipped ones; ||g||^2 is estimated by the mean
product of two different clients' updates. The noise v has d coordinates, each of the planned deviation for a
step of C.

    cosine = ||g|| / sqrt(||g||^2 + E ||v||^2)

is that of the angle between the noised step and the step without noise. It says whether a model that is too
large to be trained here could learn at all. The variants are those of benchmarks.sparser.

    python -m benchmarks.first_step [OVERRIDE ...] [--clients 16] [--only VARIANT ...]
"""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.sparser import MASKS, RANKS, SETTING, lowered, mask_of
from conf.load import load
from conf.schema import Config
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.works import Job, update
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method
from gdpfed.report.console import Table
from secagg import Encoding


def first_updates(config: Config, clients: int) -> npt.NDArray[np.float32]:
    """Compute the unclipped updates of the first clients in round 1, with shape (clients, parameters)."""
    order = replace(order_of(config, task_of(config)), device="cpu")
    task = order.task
    theta = flatten(task.build_model())
    every = track(range(clients), "clients", console=CONSOLE, transient=True)
    # An update is neither clipped nor encoded here, so any encoding serves.
    encoding = Encoding(
        grid=1.0,
        num_contributors=1,
        dimension=len(theta),
        clipping_norm=math.inf,
        integer_noise_stddev=0.0,
    )
    jobs = (Job(order, theta, encoding, each) for each in every)
    return np.stack([update.work(job).float().numpy() for job in jobs])


def common_norm(updates: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Return the median norm C of updates (n, d), and an estimate of the norm of their clipped mean."""
    norms = np.linalg.norm(updates, axis=1).astype(np.float64)
    bound = float(np.median(norms))
    factors = np.minimum(1.0, bound / norms)
    whole = (factors.astype(np.float32) @ updates).astype(np.float64)
    pairs = len(norms) * (len(norms) - 1)
    squared = float(whole @ whole - ((factors * norms) ** 2).sum()) / pairs
    return bound, math.sqrt(max(squared, 0.0))


def row(variant: str, updates: npt.NDArray[np.float32], noise_per_step: float) -> tuple[str, ...]:
    """Return a table row: number of coordinates, ||step|| / C, ||noise|| / C, cosine(step, step + noise).

    C is the clipping norm. The cosine is that of the angle between the steps with and without noise.
    """
    bound, step = common_norm(updates)
    dimension = updates.shape[1]
    noise = noise_per_step * math.sqrt(dimension)
    cosine = step / math.hypot(step, noise * bound)
    return variant, f"{dimension:,}", f"{step / bound:.2f}", f"{noise:.2f}", f"{cosine:.3f}"


def main() -> None:
    """Compute the first training step of each variant; show the lengths of step and noise, and the cosine."""
    options = read_options(__doc__, overrides=True, clients=16, only=(*MASKS, *RANKS))
    common = [*SETTING, *options.overrides]
    config = load(common)
    planned = make_method(config)
    noise_per_step = planned.weighting.noise_per_step(planned.plan)
    updates = first_updates(config, options.clients)
    rows = [row("all", updates, noise_per_step)]
    for variant in options.only:
        if variant in RANKS:
            low = load([*common, f"dataset.model={lowered(config.dataset.model, variant)}"])
            kept = first_updates(low, options.clients)
        else:
            kept = updates[:, mask_of(0, 0, MASKS[variant], updates.shape[1])]
        rows.append(row(variant, kept, noise_per_step))
        CONSOLE.print(*rows[-1])
    title = f"The first step under noise ({config.dataset.name}, {config.dataset.model})"
    headings = ("trained", "noised", "step / C", "noise / C", "cosine")
    publish([Table(title, headings, rows)], options.write)


if __name__ == "__main__":
    main()
