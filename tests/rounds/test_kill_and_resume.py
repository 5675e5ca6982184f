"""Test of runs that are killed and resumed: charges never fall, no round is charged or summed twice."""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gdpfed.files
from conf.load import load
from gdpfed.errors import RunError
from gdpfed.methods import make_method
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.state import REQUESTS
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate

NUM_ROUNDS, NUM_CLIENTS = 3, 12
PRIVATE = (
    f"dataset.num_clients={NUM_CLIENTS}",
    "dataset.model=linear",
    f"run.num_rounds={NUM_ROUNDS}",
    "training.local_steps=1",
    "method=gdpfed_star",
    "privacy.sampling_rate=0.6",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
    "secagg=off",
)
# A run passes more than twice as many points as it has writes, sums and lines of its record.
LAST_POINT = 30


class Killed(BaseException):
    """Exception that ends a process at a point, and that nothing in the project catches."""


class Process:
    """One process of a run, killed at a given point: before or after a write, a sum or a line of the log."""

    def __init__(self, point, sums, path):
        self.left, self.sums, self.path = count(), sums, path
        self.point = point

    def pass_point(self):
        if next(self.left) == self.point:
            raise Killed

    def around(self, function):
        def passed(*arguments, **named):
            self.pass_point()
            result = function(*arguments, **named)
            self.pass_point()
            return result

        return passed

    def summing(self, function):
        def passed(fleet, order, *arguments, **named):
            assert saved_ledger(self.path)["charged_rounds"] == order.round_index + 1
            self.sums.append(order.round_index)
            return self.around(function)(fleet, order, *arguments, **named)

        return passed

    def run(self, config):
        """Run the process, and return whether it came to its end."""
        with ExitStack() as patched:
            for owner, name, wrapped in (
                (gdpfed.files, "write_whole", self.around),
                (RunDirectory, "append_round", self.around),
                (Fleet, "sum_updates", self.summing),
            ):
                patched.enter_context(patch.object(owner, name, wrapped(getattr(owner, name))))
            try:
                simulate(config, make_observers=lambda run, announce: [])
            except Killed:
                return False
            except RunError:
                # Every round may have been killed between its charge and its sum, which the run's end says.
                assert not any(record.summed for record in read_rounds(self.path))
        return True


def saved_ledger(path):
    file = path / "ledger.json"
    return json.loads(file.read_text()) if file.exists() else {"charged_rounds": 0, "participations": []}


@pytest.fixture(scope="module")
def plan():
    return make_method(load(PRIVATE)).plan


@settings(max_examples=6)
@example(points=[21, 7, 7])
@given(points=st.lists(st.integers(0, LAST_POINT), max_size=4))
def test_what_is_charged_never_falls_and_no_round_is_charged_twice(plan, points):
    with TemporaryDirectory() as folder:
        path, sums = Path(folder) / "run", list[int]()
        before: tuple[int, Sequence[float]] = (0, [0.0] * len(plan.groups))
        for point in [*points, None]:
            if not (path / "checkpoint.safetensors").exists():
                if (path / MODEL_FILE).exists():
                    break
                # It was killed before its first round, so nothing is lost with it.
                assert before[0] == 0
                shutil.rmtree(path, ignore_errors=True)
                config = load([*PRIVATE, f"run.directory={path}"])
            else:
                config = load_run([f"run.resume={path}"])
            ended = Process(point, sums, path).run(config)
            if (path / "ledger.json").exists():
                ledger = RunDirectory(path).load_ledger(plan, "the run", REQUESTS)
                spent = ledger.spent()
                assert all(s <= group.epsilon for s, group in zip(spent, plan.groups, strict=True))
                assert before[0] <= ledger.charged_rounds <= NUM_ROUNDS
                assert all(was <= now for was, now in zip(before[1], spent, strict=True))
                before = ledger.charged_rounds, spent
            assert ended or point is not None
        assert before[0] == NUM_ROUNDS
        assert len(sums) == len(set(sums)) <= NUM_ROUNDS
        records = read_rounds(path)
        assert [record.round for record in records] == list(range(1, NUM_ROUNDS + 1))
        drawn = [sum(sizes) for sizes in zip(*(record.cohort_sizes for record in records), strict=True)]
        assert drawn == list(ledger.total_participations())
