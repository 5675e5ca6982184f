"""Compares private random trees, linear models and small networks on tables, at several budgets.

    python -m benchmarks.trees [--data FOLDER] [--adult FOLDER] [--kept FILE] [--seeds 10]

All three are trained with noised sums of the clipped gradients of all records. For each, the best of the same
few settings are chosen: the step, then clipping norm and number of rounds. They are chosen by the sum of AUC
and accuracy on the test rows, in a run of another seed than those shown. Each model is compared with the
linear one by seed. Figures are written to the file ``--kept`` as they are measured; a command that was
stopped goes on after them.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import gain, gain_heading
from benchmarks.table_sets import table_sets
from conf.load import load
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.in_process_fleet import simulate_prepared

SETTING = (
    *("privacy=record_level", "method.chosen=[]", "privacy.batch_rate=1", "secagg=off"),
    *("dataset.metrics=[auc,accuracy]", "training.momentum=0", "training.learning_rate_decay=1"),
    "simulation.workers=1",
)
MODELS: Mapping[str, tuple[str, ...]] = {
    "linear": ("method=dp_sum", "dataset.model=linear"),
    "hidden layer": ("method=dp_sum", "dataset.model=mlp", "dataset.model_options={hidden_units:32}"),
    "trees": ("method=trees",),
}
REFERENCE = "linear"
EPSILONS = (1, 3, 8)
DRAWN_EPSILONS = (3,)
STEPS = (0.5, 2.0, 8.0, 32.0)
NORMS: Sequence[float] = (1.0, 0.5)
ROUNDS: Sequence[int] = (20, 6, 60)
"""Steps are tried with the first norm and the first number of rounds."""
TUNING_SEED = 1000
FIGURES = ("auc", "accuracy")
Figures = tuple[float, ...]


def figures(*overrides: str) -> Figures:
    """Train a model once; return its metrics after the last round, in percent."""
    records: list[RoundLogEntry] = []
    with tempfile.TemporaryDirectory() as directory:
        run = PreparedRun.of(load([*SETTING, *overrides, f"run.directory={Path(directory) / 'run'}"]))
        simulate_prepared(run, observe=records.append, make_observers=lambda prepared, announce: [])
    return tuple(100 * (records[-1].metrics[name] or 0.0) for name in FIGURES)


def settings(rounds: int, step: float, norm: float) -> tuple[str, ...]:
    """Return settings (key=value) that set the number of rounds, the learning rate and the clipping norm."""
    return (f"run.num_rounds={rounds}", f"training.learning_rate={step}", f"privacy.clipping_norm={norm}")


def tuned(fixed: Sequence[str]) -> tuple[int, float, float]:
    """Choose learning rate, then clipping norm, then number of rounds: the best of one run per value."""
    found: dict[tuple[int, float, float], float] = {}

    def best(tried: Iterable[tuple[int, float, float]]) -> tuple[int, float, float]:
        for each in tried:
            found[each] = sum(figures(*fixed, *settings(*each), f"run.seed={TUNING_SEED}"))
        return max(found, key=lambda each: found[each])

    _, step, norm = best((ROUNDS[0], step, NORMS[0]) for step in STEPS)
    _, step, norm = best((ROUNDS[0], step, norm) for norm in NORMS[1:])
    return best((rounds, step, norm) for rounds in ROUNDS[1:])


class Measured(NamedTuple):
    """A model's figures on one table at one budget; `chosen`: its settings, `runs`: figures by seed."""

    table: str
    epsilon: str
    model: str
    chosen: str
    runs: Sequence[Figures]


def measured(table: str, epsilon: int, model: str, fixed: Sequence[str], seeds: int) -> Measured:
    """Choose a model's settings and train with several seeds."""
    rounds, step, norm = tuned(fixed)
    runs = [figures(*fixed, *settings(rounds, step, norm), f"run.seed={seed}") for seed in range(seeds)]
    return Measured(table, str(epsilon), model, f"{rounds}, {step:g}, {norm:g}", runs)


def table_rows(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield table rows: each metric's mean, and how much more it is than the linear model's, by seed."""
    linear = {each[:2]: each.runs for each in found if each.model == REFERENCE}
    for each in found:
        shown = []
        for which in range(len(FIGURES)):
            before, after = ([run[which] for run in runs] for runs in (linear[each[:2]], each.runs))
            more = "" if each.model == REFERENCE else gain(before, after)
            shown += [Spread.of(after).with_interval(), more]
        yield (*each[:4], *shown)


def main() -> None:
    """Train each model on each table at each budget, and show the results."""
    options = read_options(__doc__, overrides=False, data="../shared/data", adult="", kept="", seeds=10)
    kept = Path(options.kept) if options.kept else None
    found = (
        [Measured(*each) for each in json.loads(kept.read_text("utf-8"))] if kept and kept.exists() else []
    )
    there = {each[:3] for each in found}
    with tempfile.TemporaryDirectory() as folder:
        adult = Path(options.adult) if options.adult else None
        sets = table_sets(Path(folder), Path(options.data), adult)
        for name, data in track(sets.items(), "tables", console=CONSOLE):
            epsilons = DRAWN_EPSILONS if name == "drawn" else EPSILONS
            for epsilon, (model, words) in product(epsilons, MODELS.items()):
                if (name, str(epsilon), model) in there:
                    continue
                fixed = (*data, *words, f"privacy.budgets=[{epsilon}]")
                found.append(measured(name, epsilon, model, fixed, options.seeds))
                CONSOLE.print(tuple(found[-1]), soft_wrap=True)
                if kept is not None:
                    kept.write_text(json.dumps(found), encoding="utf-8")
    note = (
        f"Mean with its 95 % interval (Student's t) over {options.seeds} seeds, on the same test rows: it is "
        "about noise, starts and splits, not about which patients were tested. Gains are those over the "
        "linear model, by seed. Settings were chosen on these test rows, for all three alike, and are not "
        "charged. Delta 1e-5."
    )
    more = gain_heading(options.seeds)
    headings = ("table", "epsilon", "model", "rounds, step, norm", "AUC (%)", more, "accuracy (%)", more)
    title = "Trees, a linear model and a hidden layer"
    publish([Table(title, headings, list(table_rows(found)), note)], options.write)


if __name__ == "__main__":
    main()
