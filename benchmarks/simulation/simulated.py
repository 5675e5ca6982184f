"""A program that simulates one run as ``gdpfed simulate`` does, and prints seconds per round and memory."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from unittest.mock import patch

import psutil

from benchmarks.simulation.work import Work, print_result
from conf.load import load
from gdpfed.learning.training import evaluate
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import in_process_fleet

SAMPLE_SECONDS = 0.02


class MemoryWatch(Thread):
    """Samples the memory of this process and its children; shared memory counts once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._ended = Event()

    def run(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                held = sum(each.memory_full_info().pss for each in (own, *own.children()))
            except psutil.NoSuchProcess:
                continue
            self.peak_bytes = max(self.peak_bytes, held)

    def end(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def tested_by_torch(batch: int) -> Iterator[None]:
    """In a ``with`` block, test models by torch on this many examples at once; 0 changes nothing."""
    if not batch:
        yield
        return
    with (
        patch.object(evaluate, "CPU_BATCH", batch),
        patch.object(in_process_fleet, "with_compiled_loops", lambda evaluate_model, *_: evaluate_model),
    ):
        yield


def main() -> None:
    """Simulate the run that the first command-line argument describes, and print seconds and peak memory."""
    settings = json.loads(sys.argv[1])
    watched, more, batch = settings.pop("watched"), settings.pop("more"), settings.pop("batch", 0)
    overrides = settings["overrides"] if "overrides" in settings else Work(**settings).overrides
    said: list[str] = []
    watch = MemoryWatch()
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        prepared = PreparedRun.of(load([*overrides, *more, f"run.directory={run}"]))
        if watched:
            watch.start()
        with tested_by_torch(batch):
            in_process_fleet.simulate_prepared(prepared, announce=said.append)
        if watched:
            watch.end()
        records = read_rounds(run)[1:]
    engine = next(line for line in said if line.startswith("training "))
    seconds = {
        "seconds": [record.training_seconds for record in records],
        "tested": [record.seconds["evaluate"] for record in records],
    }
    print_result({**seconds, "peak_mb": watch.peak_bytes / 1e6, "engine": engine})


if __name__ == "__main__":
    main()
