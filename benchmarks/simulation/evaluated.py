"""A program that simulates one run, which is tested in a chosen way, and prints the seconds of each round."""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from benchmarks.simulation.work import Work, print_result
from conf.load import load
from gdpfed.learning.training import evaluate
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import in_process_fleet


def main() -> None:
    """Simulate the run that the first command-line argument describes; print seconds of tests and of rounds.

    `batch`: examples that torch gets at once; 0 for compiled loops.
    """
    settings = json.loads(sys.argv[1])
    batch = settings.pop("batch")
    with ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        if batch:
            stack.enter_context(patch.object(evaluate, "CPU_BATCH", batch))
            stack.enter_context(
                patch.object(
                    in_process_fleet, "with_compiled_loops", lambda evaluate_model, *_: evaluate_model
                )
            )
        in_process_fleet.simulate_prepared(
            PreparedRun.of(load([*Work(**settings).overrides, f"run.directory={run}"]))
        )
        records = read_rounds(run)[1:]
    evaluated, whole = ([record.seconds[part] for record in records] for part in ("evaluate", "total"))
    print_result({"evaluated": evaluated, "whole": whole})


if __name__ == "__main__":
    main()
