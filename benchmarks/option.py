"""Measures how much one setting changes the accuracy of each method, seed by seed.

The table shows the last model and the averaged model of the same runs (method.average=polynomial).

    python -m benchmarks.option SETTING [OVERRIDE ...] [--seeds 10] [--only METHOD ...]
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from conf.load import load
from gdpfed.report.comparison_tables import ends_of
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread
from gdpfed.rounds.extensions.average import ReleasedAverage
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

METHODS = ("fedavg", "gdpfed_star", "idp_fedavg_sample", "idp_fedavg_scale", "gdpfed_plus", "dp_fedavg")
BUDGETS = ("[2,6,12]", "[0.5,1.5,3]")


class Averaging(Observer):
    """Averages the models of a run; the run calls it after every round."""

    def __init__(self) -> None:
        self.average = ReleasedAverage()

    def round_ended(self, ended: RoundEnded) -> None:
        """Add the round's model to the average."""
        self.average.stepped(ended.theta)
        self.last = ended.theta


def cells_of(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair of method and budgets to train; fedavg, which has no privacy, occurs only once."""
    return [(name, each) for name in methods for each in BUDGETS[: 1 if name == "fedavg" else None]]


def accuracies(overrides: Sequence[str]) -> tuple[float, float]:
    """Train once; return the accuracy of the last model and of the averaged model, in percent."""
    with tempfile.TemporaryDirectory() as directory:
        usual = ("secagg=off", "privacy.against=outsiders")
        run = PreparedRun.of(load([*usual, *overrides, f"run.directory={Path(directory) / 'run'}"]))
        averaging = Averaging()
        simulate_prepared(run, make_observers=lambda prepared, announce: [averaging])
        models = averaging.last, averaging.average.released(averaging.last)
        last, average = (run.evaluate_model(each).accuracy or 0.0 for each in models)
        return 100 * last, 100 * average


def row(
    method: str, budgets: str, settings: Sequence[str], overrides: Sequence[str], seeds: int
) -> tuple[str, ...]:
    """Return a method's table row for these budgets: mean accuracy without the tested setting and with it."""
    common = [f"method={method}", f"privacy.budgets={budgets}", *overrides]
    shown = ["none" if method == "fedavg" else budgets.strip("[]").replace(",", ", ")]
    plain = [accuracies([*common, f"run.seed={seed}"]) for seed in range(seeds)]
    tried = [accuracies([*common, *settings, f"run.seed={seed}"]) for seed in range(seeds)]
    for which in range(2):
        before, after = ([each[which] for each in runs] for runs in (plain, tried))
        shown += [f"{fmean(before):.1f}", f"{fmean(after):.1f}", gain(before, after)]
    return method, *shown


def gain(before: Sequence[float], after: Sequence[float]) -> str:
    """Write the mean gain by seed, and its 95 % interval by Student's t if there are several seeds."""
    found = Spread.of([b - a for a, b in zip(before, after, strict=True)])
    return f"{found.mean:+.1f}" + (f" ({ends_of(found)})" if found.count > 1 else "")


def headings(seeds: int) -> tuple[str, ...]:
    """Return the column headings for the table rows that `row` returns."""
    gained = gain_heading(seeds)
    return ("method", "budgets", "last model (%)", "with it", gained, "average (%)", "with it", gained)


def gain_heading(seeds: int) -> str:
    """Return the heading of a column of gains over these many seeds."""
    return "gain" if seeds == 1 else f"gain (95 % interval, {seeds} seeds)"


def main() -> None:
    """Train each method with and without the measured setting, and show the table."""
    options = read_options(__doc__, overrides=True, seeds=10, only=METHODS)
    if not options.overrides:
        sys.exit("name the setting that is to be measured, as in privacy.clipping=adaptive")
    setting, *overrides = options.overrides
    cells = track(cells_of(options.only), "settings", console=CONSOLE)
    rows = [row(*cell, [setting], overrides, options.seeds) for cell in cells]
    title = f"{setting} ({load(overrides).dataset.name})"
    publish([Table(title, headings(options.seeds), rows)], options.write)


if __name__ == "__main__":
    main()
