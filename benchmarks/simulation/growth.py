"""Seconds a round and peak memory as the cohort and the population grow, as pictures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.simulation.contenders import simulate
from benchmarks.simulation.work import Measured, Work

COHORTS = (30, 100, 300, 1000, 3000)
POPULATIONS = (6_000, 60_000, 1_000_000)
ROUNDS = 3
HEADROOM = 1.15


def over_cohorts(work: Work) -> list[tuple[int, Measured]]:
    """Cohorts of 30 to 3,000 out of 6,000 clients."""
    works = {size: replace(work, cohort=size, rounds=ROUNDS) for size in COHORTS}
    return [(size, simulate(each, watched=True)) for size, each in works.items()]


def over_populations(work: Work) -> list[tuple[int, Measured]]:
    """Populations of 6 thousand to a million, of which as many clients as ever are drawn."""
    works = {size: replace(work, num_clients=size, rounds=ROUNDS) for size in POPULATIONS}
    return [(size, simulate(each, watched=True)) for size, each in works.items()]


def draw(points: Sequence[tuple[int, Measured]], axis: str, path: Path) -> None:
    """Seconds on the left, memory on the right, over the size on a logarithmic axis."""
    sizes = [size for size, _ in points]
    figure, (time_axes, memory_axes) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    time_axes.loglog(sizes, [each.median for _, each in points], marker="o")
    memory_axes.semilogx(sizes, [each.peak_mb for _, each in points], marker="o", color="tab:orange")
    memory_axes.set_ylim(0, HEADROOM * max(each.peak_mb for _, each in points))
    for axes, label in ((time_axes, "seconds a round"), (memory_axes, "peak memory in MB")):
        axes.set_xlabel(axis)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    if max(each.median for _, each in points) < 3 * min(each.median for _, each in points):
        time_axes.set_yscale("linear")
        time_axes.set_ylim(0, HEADROOM * max(each.median for _, each in points))
    figure.savefig(path, dpi=130)
    plt.close(figure)
