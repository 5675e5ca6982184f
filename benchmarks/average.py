"""Compares the accuracy of a run's last model and of the run's averaged model (method.average=polynomial).

The columns are differences within one run, so that noise and cohorts are the same on both sides.

    python -m benchmarks.average [--seeds 10]
"""

from collections.abc import Sequence
from statistics import fmean

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import METHODS, accuracies, cells_of, gain, gain_heading
from gdpfed.report.console import Table

SETTING = ("dataset=digits", "privacy.sampling_rate=0.1")


def row(method: str, budgets: str, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """Return a method's table row: mean accuracies of last and averaged models, and the gain by averaging."""
    last, average = zip(*pairs, strict=True)
    shown = "none" if method == "fedavg" else budgets.strip("[]").replace(",", ", ")
    return method, shown, f"{fmean(last):.1f}", f"{fmean(average):.1f}", gain(last, average)


def main() -> None:
    """Train each method with each seed, and show the gain in accuracy from averaging the models of a run."""
    options = read_options(__doc__, overrides=False, seeds=10)
    rows = []
    for method, budgets in track(cells_of(METHODS), "settings", console=CONSOLE):
        words = [*SETTING, f"method={method}", f"privacy.budgets={budgets}"]
        pairs = [accuracies([*words, f"run.seed={seed}"]) for seed in range(options.seeds)]
        rows.append(row(method, budgets, pairs))
    headings = ("method", "budgets", "last model (%)", "average (%)", gain_heading(options.seeds))
    publish([Table("The released average on the digits", headings, rows)], options.write)


if __name__ == "__main__":
    main()
