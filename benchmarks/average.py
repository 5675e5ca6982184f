"""What method.average=polynomial brings: the last model and the average of the same runs on the digits.

The columns are differences within one run, so that noise and cohorts are the same on both sides.

    python -m benchmarks.average [--seeds 3]
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from conf.load import load
from gdpfed.report.console import Table
from gdpfed.rounds.average import ReleasedAverage
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

METHODS = ("fedavg", "gdpfed_star", "idp_fedavg_sample", "idp_fedavg_scale", "gdpfed_plus", "dp_fedavg")
BUDGETS = ("[2,6,12]", "[0.5,1.5,3]")
SETTING = ("dataset=digits", "privacy.against=outsiders", "secagg=off", "privacy.sampling_rate=0.1")


class Averaging(Observer):
    """Averages the models of a run beside it."""

    def __init__(self) -> None:
        self.average = ReleasedAverage("polynomial")

    def round_ended(self, ended: RoundEnded) -> None:
        """Take in the round's model."""
        self.average.add(ended.theta)
        self.last = ended.theta

    def accuracies(self, run: PreparedRun) -> tuple[float, float]:
        """Of the last model and of the average, in percent."""
        models = self.last, self.average.released(self.last)
        last, average = (run.evaluate_model(each).accuracy or 0.0 for each in models)
        return 100 * last, 100 * average


def measured(method: str, budgets: str, seed: int) -> tuple[float, float]:
    """Train once; accuracy of the last model and of the average."""
    with tempfile.TemporaryDirectory() as directory:
        place = f"run.directory={Path(directory) / 'run'}"
        overrides = (f"method={method}", f"privacy.budgets={budgets}", f"run.seed={seed}", place)
        run, averaging = PreparedRun.of(load([*SETTING, *overrides])), Averaging()
        simulate_prepared(run, make_observers=lambda prepared, announce: [averaging])
        return averaging.accuracies(run)


def row(method: str, budgets: str, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """Means over the seeds, and the gain with its own spread."""
    last, average = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    gains = [after - before for before, after in pairs]
    spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
    shown = "none" if method == "fedavg" else budgets.strip("[]").replace(",", ", ")
    return method, shown, f"{last:.1f}", f"{average:.1f}", f"{average - last:+.1f} ± {spread:.1f}"


def main() -> None:
    """Train each method with each seed and show what averaging changes."""
    options = read_options(__doc__, overrides=False, seeds=3)
    cells = [(name, budgets) for name in METHODS for budgets in BUDGETS[: 1 if name == "fedavg" else None]]
    rows = [
        row(*cell, [measured(*cell, seed) for seed in range(options.seeds)])
        for cell in track(cells, "settings", console=CONSOLE)
    ]
    headings = ("method", "budgets", "last model (%)", "average (%)", f"gain, ± sd of {options.seeds} seeds")
    publish([Table("The released average on the digits", headings, rows)], options.write)


if __name__ == "__main__":
    main()
