"""Tests of a run's memory: it grows with the cohorts, and not with the population."""

import tracemalloc
from math import inf

import numpy as np
import pytest

from conf.load import load
from gdpfed.privacy.accountants.inference_bound import NOTHING_TOLD
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.replacement import ReplacementBound
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

COHORT = 30
# An array of one byte a client would take 10 MB.
POPULATION, MOST_BYTES = 10_000_000, 3_000_000


def overrides(num_clients, directory, method):
    return [
        f"method={method}",
        "dataset.model=linear",
        f"dataset.num_clients={num_clients}",
        f"privacy.sampling_rate={COHORT / num_clients}",
        "privacy.delta=1e-9",
        "privacy.accountant=rdp",
        "secagg=off",
        "simulation.workers=1",
        "run.num_rounds=3",
        f"run.directory='{directory}'",
    ]


@pytest.fixture
def traced():
    """Trace the memory that a run allocates, without that of modules and data.

    Gives back a function: by how many bytes the fullest moment since the last reset was above ``before``.
    """
    PreparedRun.of(load(overrides(1000, "unused", "fedavg")))
    tracemalloc.start()
    yield lambda before: tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()


def most_held(prepared, traced):
    """Return the most bytes that a run holds at once, and the sizes of the run's cohorts."""
    tracemalloc.reset_peak()
    before, sizes = tracemalloc.get_traced_memory()[0], []
    simulate_prepared(prepared, observe=lambda record: sizes.append(sum(record.cohort_sizes)))
    return traced(before), sizes


def test_planning_makes_nothing_of_the_size_of_the_population(traced):
    before = tracemalloc.get_traced_memory()[0]
    PreparedRun.of(load(overrides(POPULATION, "unused", "fedavg")))
    assert traced(before) < MOST_BYTES


@pytest.mark.parametrize("promise", [(), ("privacy.accountant=pld", "privacy.against=everyone")])
def test_training_makes_nothing_of_the_size_of_the_population(tmp_path, traced, monkeypatch, promise):
    # Composed losses have a size of their own, whatever the population.
    for name in ("inference_bound", "inference_bound_of_members"):
        monkeypatch.setattr(PrivacyPlan, name, lambda *given: NOTHING_TOLD)
    two_data_sets = ReplacementBound(inf, "planned")
    monkeypatch.setattr("gdpfed.report.plan_lines.replacement_bound", lambda *given: two_data_sets)
    for name, num_clients in (("small", 1000), ("large", POPULATION)):
        tracemalloc.stop()
        prepared = PreparedRun.of(load([*overrides(num_clients, tmp_path / name, "gdpfed"), *promise]))
        tracemalloc.start()
        held, sizes = most_held(prepared, traced)
    assert held < MOST_BYTES
    assert len(sizes) == 3
    # Poisson(30): all three in this range but once in ten thousand runs.
    assert all(8 <= size <= 60 for size in sizes)
    large, small = ({path.name: path for path in (tmp_path / run).iterdir()} for run in ("large", "small"))
    for name in ("assignment.json", "ledger.json", "plan.json"):
        assert large[name].stat().st_size < 2 * small[name].stat().st_size


def test_what_is_traced_would_show_an_array_of_one_byte_a_client(traced):
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    assert np.zeros(POPULATION, dtype=bool).size == POPULATION
    assert traced(before) > MOST_BYTES
