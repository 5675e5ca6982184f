"""Measures the final accuracy of every method on the digits data, as a mean over seeds.

Every cell is a whole ``flwr run`` with the demo's setting: same clients, same secure aggregation, same
accounting. The last line is dp_fedavg at the step that the weighted methods effectively take
(sum of omega_m r_m, 0.50 here), since a shorter step alone already averages noise out.

    python -m benchmarks.methods [--seeds 3] [OVERRIDE ...]
"""

from collections.abc import Sequence

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options, train_over_flower
from conf.load import load
from gdpfed.methods import make_method
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread

LINES = {
    "fedavg (no privacy)": ["method=fedavg"],
    "gdpfed_star": ["method=gdpfed_star"],
    "gdpfed_plus": ["method=gdpfed_plus"],
    "gdpfed_op": ["method=gdpfed_op"],
    "gdpfed": ["method=gdpfed"],
    "dp_fedavg": ["method=dp_fedavg"],
    "dp_fedavg, step 0.50": ["method=dp_fedavg", "method.server_learning_rate=0.5"],
}


def row(name: str, accuracies: Sequence[float], overrides: Sequence[str]) -> tuple[str, ...]:
    """Return a table row: Lambda (the GDPFed paper's noise magnitude), and accuracies in percent."""
    method = make_method(load(overrides))
    magnitude = method.weighting.noise_magnitude(method.plan)
    by_seed = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
    return name, f"{magnitude:.2f}", Spread.of(accuracies).text(), by_seed


def main() -> None:
    """Train each method with each seed, and show the final accuracies."""
    options = read_options(__doc__, overrides=True, seeds=3)
    lines = {
        name: ["dataset=digits", "privacy.against=outsiders", *method, *options.overrides]
        for name, method in LINES.items()
    }
    accuracies: dict[str, list[float]] = {name: [] for name in lines}
    cells = [(name, seed) for name in lines for seed in range(options.seeds)]
    for name, seed in track(cells, "runs", console=CONSOLE):
        records = train_over_flower([*lines[name], f"run.seed={seed}"])
        accuracies[name].append(100 * records[-1].shown[1])
    headings = ("method", "Lambda", f"test accuracy (%), mean ± sd of {options.seeds} seeds", "by seed")
    rows = [row(name, accuracies[name], overrides) for name, overrides in lines.items()]
    publish([Table("Final accuracy on the digits", headings, rows)], options.write)


if __name__ == "__main__":
    main()
