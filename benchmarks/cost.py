"""Measures how much accuracy privacy costs: a private method against no privacy, seed by seed.

Both train the same clients from the same first model. Sums are not masked (secagg=off): that changes who sees
an update but not the total, so accuracies are the same as with secure aggregation.

    python -m benchmarks.cost [OVERRIDE ...] [--seeds 10] [--method gdpfed_star]
"""

import tempfile
from pathlib import Path

from rich.progress import track

import gdpfed
from benchmarks.harness import CONSOLE, publish, read_options
from gdpfed.errors import InputError
from gdpfed.report.comparison import lines_of
from gdpfed.report.comparison_tables import differences_table
from gdpfed.report.console import Table

WITHOUT = "fedavg"
LEAST_SEEDS = 2


def main() -> None:
    """Train with and without privacy with each seed; show accuracies and their difference."""
    options = read_options(__doc__, overrides=True, seeds=10, method="gdpfed_star")
    if options.seeds < LEAST_SEEDS:
        raise InputError(f"--seeds {options.seeds}: an interval needs {LEAST_SEEDS} seeds at least")
    cells = [(method, seed) for method in (WITHOUT, options.method) for seed in range(options.seeds)]
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            gdpfed.simulate(
                *("dataset=digits", f"method={method}", "secagg=off", *options.overrides),
                *(f"run.seed={seed}", f"run.directory={Path(folder) / f'{method}-{seed}'}"),
                observe=lambda record: None,
            )
            for method, seed in track(cells, "runs", console=CONSOLE)
        ]
        lines = lines_of(runs)
        differences = differences_table(lines)
    if differences is None:
        raise InputError(f"--method {options.method} is {WITHOUT} itself: name a private one")
    rows = [(line.label, str(len(line.runs)), line.final_result.text()) for line in lines]
    accuracies = Table("Accuracy on the digits", ("method", "seeds", "test accuracy (%), mean ± sd"), rows)
    publish([accuracies, differences], options.write)


if __name__ == "__main__":
    main()
