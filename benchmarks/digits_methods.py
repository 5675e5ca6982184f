"""Final test accuracy of every method on the bundled digits, mean and standard deviation over seeds.

Every cell is a whole ``flwr run`` with the demo's setting: same clients, same secure aggregation, same
accounting. The last line is dp_fedavg at the step that the weighted methods effectively take
(sum of omega_m r_m, 0.50 here), since a shorter step alone already averages noise out.

    python benchmarks/digits_methods.py [--seeds 3] [OVERRIDE ...]
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from conf.load import load
from gdpfed.launch.simulation_backend import Launch
from gdpfed.methods import make_method
from gdpfed.runs.records import read_rounds

LINES = (
    ("fedavg (no privacy)", ["method=fedavg"]),
    ("gdpfed_plus", ["method=gdpfed_plus"]),
    ("gdpfed_op", ["method=gdpfed_op"]),
    ("gdpfed", ["method=gdpfed"]),
    ("dp_fedavg", ["method=dp_fedavg"]),
    ("dp_fedavg, step 0.50", ["method=dp_fedavg", "method.server_learning_rate=0.5"]),
)


def final_accuracy(overrides: Sequence[str]) -> float:
    """Accuracy in percent after the last round of one run."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        clients = load(overrides).dataset.num_clients
        with Launch.training(overrides, num_clients=clients, directory=directory, resuming=False) as launch:
            while launch.running():
                pass
            launch.check()
        return 100 * read_rounds(directory)[-1].accuracy


def main() -> None:
    """Run what is asked and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of every method")
    parser.add_argument("overrides", nargs="*", help="settings besides the demo's")
    options = parser.parse_args()
    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    clock = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *clock, console=Console(stderr=True)) as progress:
        bar = progress.add_task("runs", total=options.seeds * len(LINES))
        for name, method in LINES:
            overrides = ["dataset=digits", *method, *options.overrides]
            plan = make_method(load(overrides)).plan
            accuracies = []
            for seed in range(options.seeds):
                progress.update(bar, description=f"{name}, seed {seed}")
                accuracies.append(final_accuracy([*overrides, f"run.seed={seed}"]))
                progress.advance(bar)
            rows.append((name, plan.noise_magnitude, accuracies))
    print(f"| method | Lambda | test accuracy (%), mean ± sd of {options.seeds} seeds | by seed |")
    print("|---|---|---|---|")
    for name, magnitude, accuracies in rows:
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        by_seed = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        print(f"| {name} | {magnitude:.2f} | {statistics.fmean(accuracies):.1f} ± {spread:.1f} | {by_seed} |")


if __name__ == "__main__":
    main()
