"""Measures accuracy with the settings that `gdpfed plan --choose` proposes, and with the configured ones.

The table shows the last model and the averaged model of the same runs (method.average=polynomial). The column
"rounds" shows the configured number of rounds and the proposed one.

    python -m benchmarks.chosen [OVERRIDE ...] [--seeds 10] [--most 200] [--only METHOD ...]
"""

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import BUDGETS, METHODS, headings, row
from conf.load import load
from gdpfed.methods.choose import choose
from gdpfed.report.console import Table


def main() -> None:
    """Train each method with the proposed and with the configured settings, and show the accuracies."""
    options = read_options(__doc__, overrides=True, seeds=10, most=200, only=METHODS[1:])
    rows = []
    for method, budgets in track(
        [(name, budgets) for name in options.only for budgets in BUDGETS], "settings", console=CONSOLE
    ):
        named = [*options.overrides, f"method={method}", f"privacy.budgets={budgets}"]
        config = load(named)
        choice = choose(config, named, options.most)
        measured = row(method, budgets, choice.overrides, options.overrides, options.seeds)
        rows.append((*measured[:2], f"{config.run.num_rounds}, {choice.rounds}", *measured[2:]))
        CONSOLE.print(rows[-1])
    above = headings(options.seeds)
    title = f"Proposed settings against configured ones ({load(options.overrides).dataset.name})"
    publish([Table(title, (*above[:2], "rounds", *above[2:]), rows)], options.write)


if __name__ == "__main__":
    main()
