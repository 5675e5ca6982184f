"""Compares trees with random splits, drawn without data, and trees with splits chosen by noised histograms.

    python -m benchmarks.tree_splits [--data FOLDER] [--adult FOLDER] [--seeds 10]

All records are in one place here, and every round is one sum of them all under Gaussian noise. Labels are y
in {0, 1}, p is what is predicted, g = y - p a record's gradient and h = p (1 - p) its curvature. The sums:

* random: g in the leaf of each of K trees, over sqrt(K), so a record moves them by 1 at most;
* with curvature: (g, sqrt(8) h) there, which moves them no further: g^2 + 8 h^2 is (1 - p)^2 (1 + 8 p^2) or
  p^2 (1 + 8 (1 - p)^2), and both are 1 at most, as they only grow towards the wrong answer;
* chosen: (g, sqrt(8) h) in the bin of each of F inputs, over sqrt(F). A round adds the one tree with a single
  split that gains most by these sums, sum_side G^2 / (H + lambda), which is free once they are released.

A step by curvature divides a sum G by H + lambda, with lambda in standard deviations of the noise.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import gain, gain_heading
from benchmarks.table_sets import table_sets
from benchmarks.trees import EPSILONS
from conf.load import load
from gdpfed.clients.configured import source_of
from gdpfed.extras.trees.splits import Splits, drawn_splits, widths_of
from gdpfed.learning.data import load_dataset
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread

Floats = npt.NDArray[np.float64]
DELTA, TREES, BINS = 1e-5, 100, 16
CURVATURE = math.sqrt(8)
RANDOM = {"depth": (1, 2), "rounds": (3, 10), "step": (8.0, 32.0)}
NEWTON = {"depth": (1, 2), "rounds": (3, 10), "step": (1.0, 3.0), "shrinkage": (1.0, 5.0)}
CHOSEN = {"rounds": (5, 20), "step": (0.3, 1.0), "shrinkage": (1.0, 5.0)}
TUNING_SEEDS = (1000, 1001)


@dataclass(frozen=True, eq=False)
class Rows:
    """A table's training and test rows with their labels, and the number of model inputs of each column."""

    x: Floats
    y: Floats
    x_test: Floats
    y_test: npt.NDArray[np.int64]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, overrides: Sequence[str]) -> "Rows":
        """Load the rows of the data set that the settings name."""
        data = load_dataset(source_of(load(overrides)))
        columns = data.columns
        if columns is None:
            raise ValueError(f"{' '.join(overrides)} has no declared columns")
        train, test = (part.take(np.arange(len(part))) for part in (data.train, data.test))
        inputs = (part.x.astype(np.float64) for part in (train, test))
        x, x_test = inputs
        return cls(x, train.y.astype(np.float64), x_test, test.y.astype(np.int64), widths_of(columns))


def leaves(x: Floats, splits: Splits) -> Floats:
    """Return whether each row reaches each leaf of K trees of depth D, as 1 or 0, with shape (n, K 2^D)."""
    depth = splits.inputs.shape[1]
    places = (x[:, splits.inputs] > splits.thresholds) @ (1 << np.arange(depth))
    reached: Floats = (places[:, :, None] == np.arange(2**depth)).reshape(len(x), -1).astype(np.float64)
    return reached


def noised(total: Floats, noise: float, draws: np.random.Generator) -> Floats:
    """Add Gaussian noise to a sum; the generator's seed is public, which suffices for a measurement."""
    return total + noise * draws.normal(size=total.shape)


def drawn(
    rows: Rows, epsilon: float, seed: int, *, depth: int, rounds: int, step: float, shrinkage: float = 0.0
) -> Floats:
    """Train K trees with random splits; return the scores of the test rows."""
    draws, splits = np.random.default_rng(seed), drawn_splits(rows.widths, TREES, depth, seed + 1)
    phi, phi_test = leaves(rows.x, splits), leaves(rows.x_test, splits)
    noise = gaussian_sigma(epsilon, DELTA) * math.sqrt(rounds * TREES)
    values = np.zeros(phi.shape[1])
    for _ in range(rounds):
        p = expit(phi @ values)
        total = noised(phi.T @ (rows.y - p), noise, draws)
        if shrinkage:
            curvature = noised(phi.T @ (p * (1 - p)), noise / CURVATURE, draws)
            values += step / TREES * total / (np.maximum(curvature, 0) + shrinkage * noise / math.sqrt(TREES))
        else:
            values += step / TREES * total / len(rows.y)
    found: Floats = phi_test @ values
    return found


def chosen(rows: Rows, epsilon: float, seed: int, *, rounds: int, step: float, shrinkage: float) -> Floats:
    """Train one tree a round with splits from noised histograms; return the scores of the test rows."""
    draws, inputs = np.random.default_rng(seed), rows.x.shape[1]
    bins, bins_test = (np.clip(((x + 1) / 2 * BINS).astype(int), 0, BINS - 1) for x in (rows.x, rows.x_test))
    there = (bins[:, :, None] == np.arange(BINS)).reshape(len(bins), -1).astype(np.float64)
    noise = gaussian_sigma(epsilon, DELTA) * math.sqrt(rounds * inputs)
    scores, scores_test = np.zeros(len(bins)), np.zeros(len(bins_test))
    for _ in range(rounds):
        p = expit(scores)
        g = noised(there.T @ (rows.y - p), noise, draws).reshape(inputs, BINS)
        h = noised(there.T @ (p * (1 - p)), noise / CURVATURE, draws).reshape(inputs, BINS)
        sides = []
        for each in (g, h):
            below = each.cumsum(axis=1)[:, :-1]
            sides.append(np.stack([below, each.sum(axis=1, keepdims=True) - below]))
        divisor = np.maximum(sides[1], 0) + shrinkage * noise
        gain = (sides[0] ** 2 / divisor).sum(axis=0)
        column, cut = np.unravel_index(int(gain.argmax()), gain.shape)
        low, high = step * (sides[0] / divisor)[:, column, cut]
        scores += np.where(bins[:, column] <= cut, low, high)
        scores_test += np.where(bins_test[:, column] <= cut, low, high)
    return scores_test


KINDS: Mapping[str, tuple[Callable[..., Floats], Mapping[str, Sequence[Any]]]] = {
    "random": (drawn, RANDOM),
    "random, with curvature": (drawn, NEWTON),
    "chosen": (chosen, CHOSEN),
}


def area(scores: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return the area under the ROC curve in percent."""
    return 100 * float(roc_auc_score(labels, scores))


def best_of(kind: str, rows: Rows, epsilon: float, seeds: int) -> list[float]:
    """Choose the settings with the best AUC on two tuning seeds; return their AUC with each final seed."""
    scores_of, grid = KINDS[kind]

    def tried(settings: Mapping[str, Any], numbers: Sequence[int]) -> list[float]:
        return [area(scores_of(rows, epsilon, seed, **settings), rows.y_test) for seed in numbers]

    options = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    best = max(options, key=lambda settings: sum(tried(settings, TUNING_SEEDS)))
    return tried(best, range(seeds))


def main() -> None:
    """Train each kind of tree on each table at each budget, and show the results."""
    options = read_options(__doc__, overrides=False, data="../shared/data", adult="", seeds=10)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        adult = Path(options.adult) if options.adult else None
        sets = table_sets(Path(folder), Path(options.data), adult)
        for name, overrides in track(sets.items(), "tables", console=CONSOLE):
            rows = Rows.of(overrides)
            for epsilon in EPSILONS:
                areas = [best_of(kind, rows, epsilon, options.seeds) for kind in KINDS]
                shown = [Spread.of(each).with_interval() for each in areas]
                gains = [gain(areas[0], each) for each in areas[1:]]
                found.append((name, str(epsilon), *shown, *gains))
    note = (
        f"Mean AUC with its 95 % interval (Student's t) over {options.seeds} seeds, on the same test rows, "
        "at the settings of each kind that are best for other seeds. Gains are those over random splits, by "
        f"seed. Delta 1e-5; {TREES} random trees."
    )
    gained = (f"{kind}: {gain_heading(options.seeds)}" for kind in list(KINDS)[1:])
    headings = ("table", "epsilon", *(f"{kind} (%)" for kind in KINDS), *gained)
    publish([Table("Splits drawn without data, and splits chosen", headings, found, note)], options.write)


if __name__ == "__main__":
    main()
