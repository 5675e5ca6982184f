"""What measurements with canaries find: how near they come to what is stated, and which faults they see.

A fault is found where the scale is above 1: the plan's noise would have to be divided by it to explain
what was seen. Mean and deviation over the repeats say how far a measurement is from the other verdict; a
normal law passes five deviations less than once in a million times.

    python -m benchmarks.canaries [--repeats 6] [--write docs/privacy.md]
"""

import statistics
from contextlib import nullcontext

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from conf.load import load
from gdpfed.canaries.lower_bounds import VIEWS
from gdpfed.canaries.measure import Measurement, Settings, measure
from gdpfed.report.table import Table
from testing.broken_programs import FAULTS, broken

POPULATION = (
    "dataset=digits",
    "dataset.model=mlp",
    "dataset.num_clients=2000",
    "dataset.num_rounds=16",
    "privacy.sampling_rate=0.2",
    "privacy.delta=1e-3",
    "privacy.group_shares=[1]",
    "method=dp_fedavg",
    "secagg.dropout_tolerance=0",
    "secagg=off",
)
GAP_RUNS, FAULT_RUNS = 10, 4


def measurement(epsilon: float, runs: int) -> Measurement:
    """One measurement of the population at one budget."""
    return measure(load([*POPULATION, f"privacy.budgets=[{epsilon}]"]), Settings(num_runs=runs))


def gap_row(epsilon: float) -> tuple[str, ...]:
    """Stated and measured against each view."""
    by_view = {figure.view: figure for figure in measurement(epsilon, GAP_RUNS).final}
    cells = [
        f"{by_view[view].stated:.2f}: {by_view[view].measured:.2f} ({by_view[view].any_law:.2f})"
        for view in VIEWS
    ]
    return f"{epsilon:g}", *cells


def fault_row(name: str, repeats: int) -> tuple[str, ...]:
    """How often a fault is found, and by how much, at epsilon 3."""
    scales = []
    for _ in range(repeats):
        with nullcontext() if name not in FAULTS else broken(name):
            scales.append(max(figure.scale for figure in measurement(3, FAULT_RUNS).final))
    mean, spread = statistics.fmean(scales), statistics.stdev(scales)
    found = sum(scale > 1 for scale in scales)
    return name, f"{mean:.2f} ± {spread:.2f}", f"{found} of {repeats}", f"{abs(mean - 1) / spread:.0f}"


def main() -> None:
    """Measure the gap at three budgets, then each fault again and again."""
    options = read_options(__doc__, overrides=False, repeats=6)
    gaps = [gap_row(epsilon) for epsilon in track((1, 3, 6), "gap", console=CONSOLE)]
    names = ("nothing", *FAULTS)
    faults = [fault_row(name, options.repeats) for name in track(names, "faults", console=CONSOLE)]
    tables = [
        Table(
            f"Stated: measured (any law), {2000 * GAP_RUNS} canaries",
            ("budget", "all sums", "server", "last model"),
            gaps,
        ),
        Table(
            f"Faults at epsilon 3, {2000 * FAULT_RUNS} canaries",
            ("what is wrong", "scale", "found", "1 is so many deviations away"),
            faults,
        ),
    ]
    publish(tables, options.write)


if __name__ == "__main__":
    main()
