"""Measures the gain from a server learning rate that is computed from the planned noise (`step_of_noise`).

The table shows the last model and the averaged model of the same runs (method.average=polynomial), on digits.

    python -m benchmarks.server_step [--seeds 10]
"""

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import BUDGETS, headings, row
from conf.load import load
from gdpfed.methods import make_method
from gdpfed.methods.weighting import step_of_noise
from gdpfed.report.console import Table

METHODS = ("gdpfed_star", "idp_fedavg_scale", "gdpfed_plus", "dp_fedavg")
SETTING = ("dataset=digits", "privacy.against=outsiders", "privacy.sampling_rate=0.1")


def step(method: str, budgets: str) -> str:
    """Return the setting of the server's learning rate that follows from the planned noise."""
    planned = make_method(load([*SETTING, f"method={method}", f"privacy.budgets={budgets}"]))
    plan, weighting = planned.plan, planned.weighting
    rule = step_of_noise(weighting.noise_per_step(plan), plan.num_rounds)
    return f"method.server_learning_rate={rule / weighting.effective_step(plan):.4g}"


def main() -> None:
    """Train each method with the usual and with the computed server learning rate, and show the table."""
    options = read_options(__doc__, overrides=False, seeds=10)
    cells = [(name, budgets) for name in METHODS for budgets in BUDGETS]
    rows = [
        row(*cell, [step(*cell)], SETTING, options.seeds)
        for cell in track(cells, "settings", console=CONSOLE)
    ]
    title = "A step that follows from the noise, on the digits"
    publish([Table(title, headings(options.seeds), rows)], options.write)


if __name__ == "__main__":
    main()
