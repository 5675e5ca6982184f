"""Audits runs with canaries: how close is measured epsilon to stated epsilon, and are planted faults found?

A fault is found if the scale is above 1. The scale is the number by which the planned noise would have to be
divided to explain what was seen. Mean and standard deviation over the repeats say how far a measurement is
from the opposite result; a normal variable exceeds five deviations less than once in a million times.

    python -m benchmarks.canaries [--repeats 6] [--everyone] [--write docs/privacy.md]

--everyone: measure the same under privacy.against=everyone, with faults in correlated noise.
"""

import statistics
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from conf.load import load
from gdpfed.extras.canaries.measure import Measurement, Settings, measure
from gdpfed.report.console import Table
from testing.broken_programs import FAULTS, STREAM_FAULTS, broken

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
NOTHING = "nothing"
OUTSIDERS = {"sums": "all sums", "server": "server", "model": "last model"}
EVERYONE = {"everyone": "everyone", "model": "last model"}


def measurement(settings: Sequence[str], epsilon: float, runs: int) -> Measurement:
    """Audit a small simulated population with canaries; return the measured epsilon at one budget."""
    words = [*POPULATION, *settings, f"privacy.budgets=[{epsilon}]"]
    return measure(load(words), Settings(num_runs=runs))


def gap_row(settings: Sequence[str], views: Iterable[str], epsilon: float) -> tuple[str, ...]:
    """Return a table row: stated and measured epsilon at one budget, for each adversary."""
    by_view = {figure.view: figure for figure in measurement(settings, epsilon, GAP_RUNS).final}
    cells = [
        f"{by_view[view].stated:.2f}: {by_view[view].measured:.2f} ({by_view[view].any_law:.2f})"
        for view in views
    ]
    return f"{epsilon:g}", *cells


def fault_row(settings: Sequence[str], name: str, repeats: int) -> tuple[str, ...]:
    """Audit a planted fault several times at epsilon 3; return a table row on how often it was found."""
    scales = []
    for _ in range(repeats):
        with nullcontext() if name == NOTHING else broken(name):
            scales.append(max(figure.scale for figure in measurement(settings, 3, FAULT_RUNS).final))
    mean, spread = statistics.fmean(scales), statistics.stdev(scales)
    found = sum(scale > 1 for scale in scales)
    return (
        name,
        f"{mean:.2f} ± {spread:.2f}",
        f"{found} of {repeats}",
        f"{abs(mean - 1) / spread:.0f}" if spread else "-",
    )


def main() -> None:
    """Compare measured with stated epsilon at three budgets, and count how often each fault is found."""
    options = read_options(__doc__, overrides=False, repeats=6, everyone=False)
    everyone = ["privacy.against=everyone", "privacy.accountant=pld"]
    settings = everyone if options.everyone else ["privacy.against=outsiders"]
    views = EVERYONE if options.everyone else OUTSIDERS
    gaps = [gap_row(settings, views, epsilon) for epsilon in track((1, 3, 6), "gap", console=CONSOLE)]
    names = (NOTHING, *(STREAM_FAULTS if options.everyone else FAULTS))
    faults = [fault_row(settings, name, options.repeats) for name in track(names, "faults", console=CONSOLE)]
    tables = [
        Table(f"Stated: measured (any law), {2000 * GAP_RUNS} canaries", ("budget", *views.values()), gaps),
        Table(
            f"Faults at epsilon 3, {2000 * FAULT_RUNS} canaries",
            ("what is wrong", "scale", "found", "1 is so many deviations away"),
            faults,
        ),
    ]
    publish(tables, options.write)


if __name__ == "__main__":
    main()
