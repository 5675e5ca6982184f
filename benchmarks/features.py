"""Measures the accuracy of linear models on fixed image features of several kinds, with and without privacy.

python -m benchmarks.features dataset.path=data/cifar10-images [--seeds 10]
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.harness import CONSOLE, over_seeds, publish, read_options
from conf.load import load
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.in_process_fleet import simulate_prepared

FEATURES = {"random_prior": 256, "hog": 372, "scattering": 1328}
CELLS = (("fedavg", "[2,6,12]"), ("gdpfed_star", "[2,6,12]"), ("gdpfed_star", "[0.5,1.5,3]"))
SETTING = (
    "dataset=image_folder",
    "dataset.image_size=32",
    "dataset.model=linear",
    "dataset.num_clients=600",
    "dataset.sampling_rate=0.1",
    "dataset.local_steps=20",
    "dataset.learning_rate=2",
    "privacy.clipping_norm=3",
    "run.num_rounds=30",
    "secagg=off",
    "privacy.against=outsiders",
)


def accuracy(overrides: Sequence[str]) -> float:
    """Train a linear model on image features once; return its accuracy in percent."""
    records: list[RoundLogEntry] = []
    with tempfile.TemporaryDirectory() as directory:
        place = f"run.directory={Path(directory) / 'run'}"
        run = PreparedRun.of(load([*SETTING, *overrides, place]))
        simulate_prepared(run, observe=records.append, make_observers=lambda prepared, announce: [])
    return 100 * (records[-1].accuracy or 0.0)


def main() -> None:
    """Train each method on each kind of image features with each seed, and show the accuracies."""
    options = read_options(__doc__, overrides=True, seeds=10)
    rows = []
    for name, numbers in track(FEATURES.items(), "features", console=CONSOLE):
        row = [name, str(numbers)]
        for method, budgets in CELLS:
            fixed = (f"dataset.features={name}", f"method={method}", f"privacy.budgets={budgets}")
            found = [
                accuracy([*options.overrides, *fixed, f"run.seed={seed}"]) for seed in range(options.seeds)
            ]
            row.append(Spread.of(found).with_interval())
        CONSOLE.print(row)
        rows.append(tuple(row))
    headings = ("features", "numbers", "fedavg (%)", "gdpfed_star, 2, 6, 12 (%)", "0.5, 1.5, 3 (%)")
    title = f"A linear model on features of pictures, {over_seeds(options.seeds)}"
    publish([Table(title, headings, rows)], options.write)


if __name__ == "__main__":
    main()
