"""Compares how fast a model is evaluated on drawn test examples: by torch, and by compiled loops.

    python -m benchmarks.evaluation [--repeats 10]

`gdpfed simulate` takes the compiled loops, on two threads here as torch does. Torch gets the examples in
batches of 1,024, and of as many as `gdpfed` gives it. Its times differ between processes, since large results
need fresh memory from the system.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.harness import CONSOLE, check_idle, fastest, publish, read_options, three
from benchmarks.simulation.random_data import draw_colour_pictures, draw_pictures, draw_plays
from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import InputError
from gdpfed.learning.models import flatten
from gdpfed.learning.training import evaluate
from gdpfed.report.console import Table
from gdpfed.simulation.compiled_evaluation import with_compiled_loops

PICTURES, ROLES, CHARACTERS = 10_000, 50, 600
LARGE_BATCH = 1024


def settings(folder: Path) -> Iterator[tuple[str, ...]]:
    """Draw test examples for each model, and yield the settings with which they are loaded."""
    draw_pictures(folder)
    yield "dataset=fmnist", f"dataset.path={folder}"
    colours, plays = folder / "colours.npz", folder / "plays.txt"
    draw_colour_pictures(colours, count=100, tested=PICTURES)
    yield "dataset=npz", f"dataset.path={colours}", "dataset.model=cnn3", "dataset.num_clients=10"
    draw_plays(plays, num_roles=ROLES, num_characters=CHARACTERS)
    yield "dataset=shakespeare", f"dataset.path={plays}", f"dataset.num_clients={ROLES}"


def row(words: tuple[str, ...], repeats: int) -> tuple[str, ...]:
    """Measure one model; return its name, the number of examples, seconds, and the ratios to the loops."""
    task = task_of(load(words))
    by_torch = evaluate.central_evaluation(task, "cpu")
    compiled, theta = with_compiled_loops(by_torch, task, "cpu"), flatten(task.build_model())
    if compiled is by_torch:
        raise InputError(f"compiled loops do not work here for dataset.model={task.model}")

    def in_large_batches() -> None:
        with patch.object(evaluate, "CPU_BATCH", LARGE_BATCH):
            by_torch(theta)

    best: Mapping[str, float] = fastest(
        repeats, large=in_large_batches, torch=lambda: by_torch(theta), loops=lambda: compiled(theta)
    )
    ratios = (f"{best[name] / best['loops']:.2f}" for name in ("large", "torch"))
    return task.model, f"{len(task.load().test):,}", *(three(each) for each in best.values()), *ratios


def main() -> None:
    """Measure each model, and show the table."""
    options = read_options(__doc__, overrides=False, repeats=10, busy=False)
    mark = check_idle(options.busy)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for words in settings(Path(folder)):
            rows.append(row(words, options.repeats))
            CONSOLE.print(rows[-1])
    batch = evaluate.CPU_BATCH
    headings = (
        *("model", "examples", f"torch, {LARGE_BATCH:,} at once (s)", f"torch, {batch} at once (s)"),
        *("compiled loops (s)", f"times, {LARGE_BATCH:,} at once", f"times, {batch} at once"),
    )
    note = f"Fastest of {options.repeats} evaluations each, in turn, by {torch.get_num_threads()} threads."
    publish([Table("One evaluation on the test examples", headings, rows, note)], options.write, mark)


if __name__ == "__main__":
    main()
