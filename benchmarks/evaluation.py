"""Compares how long the tests after each round of a simulated run take: by torch, and by compiled loops.

    python -m benchmarks.evaluation [--rounds 10]

`gdpfed simulate` takes the compiled loops. Torch gets the test examples in batches of 1,024, and of as many
as `gdpfed` gives it. Each run has a process of its own, and torch all cores.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import CONSOLE, Measured, check_idle, publish, read_options, three
from benchmarks.simulation.random_data import draw_colour_pictures, draw_pictures
from benchmarks.simulation.work import Work, run_alone
from gdpfed.learning.training.evaluate import CPU_BATCH
from gdpfed.report.console import Table

MODELS = ("cnn2", "cnn3")
TESTED = 10_000
COLOUR_CLIENTS, COLOUR_EXAMPLES, COLOUR_COHORT = 1_000, 10, 60
LOOPS = 0
WAYS = {LOOPS: "compiled loops", CPU_BATCH: f"torch, {CPU_BATCH} at once", 1024: "torch, 1,024 at once"}


def drawn_work(model: str, folder: Path, rounds: int) -> Work:
    """Draw data for a model, and return the run."""
    if model == "cnn2":
        draw_pictures(folder)
        return Work(str(folder), rounds=rounds)
    colours = folder / "colours.npz"
    draw_colour_pictures(colours, count=COLOUR_CLIENTS * COLOUR_EXAMPLES, tested=TESTED)
    return Work(str(colours), model, COLOUR_CLIENTS, COLOUR_COHORT, rounds)


def rows(work: Work) -> Iterator[tuple[str, ...]]:
    """Measure each way; yield model, way, seconds of a test, their ratio to the loops, seconds of a round."""
    floor = 0.0
    for batch, way in WAYS.items():
        with CONSOLE.status(f"{work.model}, {way} ..."):
            told = {**vars(work), "watched": False, "more": [], "batch": batch}
            found = run_alone("simulated", told, threads=os.cpu_count() or 1)
        tested = Measured(way, found["tested"])
        floor = floor or tested.median
        whole = statistics.median(map(sum, zip(found["seconds"], found["tested"], strict=True)))
        yield work.model, way, tested.spread(), f"{tested.median / floor:.2f}", three(whole)


def main() -> None:
    """Measure each model, and show the table."""
    options = read_options(__doc__, overrides=False, rounds=10, busy=False)
    mark = check_idle(options.busy)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for row in rows(drawn_work(model, Path(folder), options.rounds)):
                found.append(row)
                CONSOLE.print(row)
    headings = (
        *("model", "tested by", "seconds a test: median (least, most)", "times compiled loops"),
        "seconds a round with it",
    )
    note = f"Tests on {TESTED:,} drawn pictures after each of {options.rounds} rounds; one more came first."
    publish([Table("Tests of a simulated run", headings, found, note)], options.write, mark)


if __name__ == "__main__":
    main()
