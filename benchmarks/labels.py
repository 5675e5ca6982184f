"""Measures accuracy in multi-label classification and in segmentation, with and without privacy.

The labels of a digit are the segments of a seven-segment display that show it. The segmentation tells pixels
with ink from pixels without, in a picture with noise.

python -m benchmarks.labels [--seeds 10]
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import track

from benchmarks.harness import CONSOLE, over_seeds, publish, read_options
from conf.load import load
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.report.console import Table
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.in_process_fleet import simulate_prepared

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgcde", "abc", "abcdefg", "abcdfg")
"""That are lit for each digit."""
INKED, NOISE = 0.5, 0.3
SETTING = ("dataset=npz", "dataset.num_clients=60", "run.num_rounds=20", "secagg=off")
SETS = ("dataset.loss=binary_cross_entropy", "training.learning_rate=2")
PIXELS = ("dataset.model=fcn", "training.learning_rate=0.5")
METHODS: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("method=fedavg", "privacy.sampling_rate=0.5"),
    "clients, 3, 6, 12": ("method=gdpfed_star", "privacy.sampling_rate=0.5", "privacy.budgets=[3,6,12]"),
    "records, 3": ("privacy=record_level", "method=dp_sum"),
}
METRICS = {
    "sets": ("mean_auc", "exact_match", "micro_f1", "hamming_loss", "mean_ece"),
    "pixels": ("mean_iou", "pixel_accuracy", "pixel_ece"),
}


def write_arrays(folder: Path) -> dict[str, tuple[str, ...]]:
    """Write a multi-label and a segmentation data set of digit images; return settings that load them."""
    digits, generator = load_dataset(DataSource("digits")), np.random.default_rng(0)
    lit = np.array([[segment in shown for segment in "abcdefg"] for shown in SEGMENTS], dtype=np.int64)
    sets, pixels = dict[str, npt.NDArray[np.generic]](), dict[str, npt.NDArray[np.generic]]()
    for part, examples in (("train", digits.train), ("test", digits.test)):
        split = examples.take(np.arange(len(examples)))
        sets |= {f"x_{part}": split.x, f"y_{part}": lit[split.y.astype(np.int64)]}
        noisy = split.x + NOISE * generator.normal(size=split.x.shape)
        pixels |= {f"x_{part}": noisy, f"y_{part}": (split.x[:, 0] > INKED).astype(np.int64)}
    for name, arrays in (("sets", sets), ("pixels", pixels)):
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]  # numpy's own
    paths = {name: f"dataset.path={folder / name}.npz" for name in METRICS}
    return {"sets": (paths["sets"], *SETS), "pixels": (paths["pixels"], *PIXELS)}


def figures(*overrides: str) -> Mapping[str, float | None]:
    """Train a model once; return its metrics after the last round."""
    records: list[RoundLogEntry] = []
    with tempfile.TemporaryDirectory() as directory:
        run = PreparedRun.of(load([*SETTING, *overrides, f"run.directory={Path(directory) / 'run'}"]))
        simulate_prepared(run, observe=records.append, make_observers=lambda prepared, announce: [])
    return records[-1].metrics


def main() -> None:
    """Train each method on the multi-label and the segmentation data with each seed, and show the metrics."""
    options, rows = read_options(__doc__, overrides=False, seeds=10), list[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as folder:
        for kind, data in track(write_arrays(Path(folder)).items(), "kinds", console=CONSOLE):
            chosen = f"dataset.metrics=[{','.join(METRICS[kind])}]"
            found = {
                method: [
                    figures(*data, chosen, *settings, f"run.seed={seed}") for seed in range(options.seeds)
                ]
                for method, settings in METHODS.items()
            }
            for metric in METRICS[kind]:
                spreads = [
                    Spread.of([100 * (each[metric] or 0.0) for each in runs]).with_interval()
                    for runs in found.values()
                ]
                rows.append((kind, MetricDisplay.of(metric).words, *spreads))
    headings = ("labels", "metric", *(f"{method} (%)" for method in METHODS))
    note = (
        "Of Hamming loss and calibration error less is better. Columns name whose presence is protected, and "
        f"budgets epsilon. Shown: {over_seeds(options.seeds)}."
    )
    publish([Table("Sets of labels, and a class at every pixel", headings, rows, note)], options.write)


if __name__ == "__main__":
    main()
