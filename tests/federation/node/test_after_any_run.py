"""Tests that no run takes a ledger out of use: one that costs nearly nothing leaves room for others."""

from dataclasses import replace
from typing import Any

import pytest

from gdpfed.extras.fedpcs.path_terms import PathTerms
from gdpfed.extras.h2fdp.subnet_sums import WindowTerms
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import CorrelatedGaussian
from gdpfed.privacy.events import DPSGDSteps, Event, Gaussian, LocalWindows, SampledGaussian
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.mechanisms.allocated.terms import AllocatedTerms
from gdpfed.privacy.mechanisms.records.terms import RecordTerms, StepTerms
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms

DELTA = 1e-5
RUN: Any = {"group": 0, "epsilon": 1.0, "delta": DELTA, "accountant": "pld", "sums_hidden": True}
LOUD, USUAL = 1e9, 40.0


def of(event: Event, count: int = 1) -> dict[str, Any]:
    return {"charges": (Charge(event=event, count=count, unit=event.unit or "client"),)}


def of_records(event: Event, count: int = 1) -> dict[str, Any]:
    return {"charges": (Charge(event=event, count=count, unit="record"),)}


def sums(run: str, sigma: float, **changes: Any) -> Terms:
    event: dict[str, Any] = {
        "sampling": "poisson",
        "sampling_rate": 0.1,
        "group_size": 100,
        "noise_stddev": sigma,
        "clipping_norm": 1.0,
    }
    return SumTerms(run=run, **of(SampledGaussian(**event | changes), 3), **RUN)


def allocated(run: str, sigma: float) -> Terms:
    event = AllocatedGaussian(block_rounds=4, noise_stddev=sigma, clipping_norm=1.0)
    return AllocatedTerms(run=run, **of(event, 2), **RUN)


def turns(run: str, sigma: float) -> Terms:
    event = CorrelatedGaussian(num_rounds=6, noise_stddev=sigma, clipping_norm=1.0, taps=(0.3,), turns=(0, 4))
    return ScheduledTerms(run=run, most_turns=2, separation=4, **of(event), **RUN)


def records(work: Any, rate: float, rounds: int) -> RecordTerms:
    return RecordTerms(num_rounds=rounds, work=work, clipping_norm=1.0, batch_rates=(rate,), shares=(1.0,))


def steps(run: str, sigma: float, work: str = "dp_sgd") -> Terms:
    event = DPSGDSteps(batch_rate=0.1, noise_multiplier=sigma, num_steps=1)
    return StepTerms(run=run, records=records(work, 0.1, 3), **of_records(event, 3), **RUN)


def windows(run: str, sigma: float, bound: Any = "window") -> Terms:
    event = LocalWindows(bound=bound, batch_rate=0.1, noise_multiplier=sigma, num_steps=20, window_steps=10)
    work = "window_steps" if bound == "window" else "convex_steps"
    return WindowTerms(run=run, records=records(work, 0.1, 2), **of_records(event), **RUN)


def path(run: str, sigma: float) -> Terms:
    event = Gaussian(noise_stddev=sigma, clipping_norm=1.0, adjacency="replace_one")
    return PathTerms(run=run, most_rounds=2, records=records("dp_sgd", 1.0, 3), **of_records(event, 3), **RUN)


def vote(run: str, sigma: float) -> Terms:
    told = Gaussian(noise_stddev=sigma, clipping_norm=1.0)
    return replace(sums(run, sigma), vote=(Charge(event=told, count=1),))


KINDS = {
    "poisson": sums,
    "replaced": lambda run, sigma: sums(run, sigma, adjacency="replace_one"),
    "discrete": lambda run, sigma: sums(run, sigma, noise="discrete_gaussian"),
    "replaced, discrete": lambda run, sigma: sums(
        run, sigma, adjacency="replace_one", noise="discrete_gaussian"
    ),
    "fixed size": lambda run, sigma: sums(run, sigma, sampling="fixed_size"),
    "fixed size, replaced": lambda run, sigma: sums(
        run, sigma, sampling="fixed_size", adjacency="replace_one"
    ),
    "several sums": lambda run, sigma: sums(run, sigma, num_sums=2),
    "vote": vote,
    "allocation": allocated,
    "turns": turns,
    "dp_sgd": steps,
    "gradient_sum": lambda run, sigma: steps(run, sigma, "gradient_sum"),
    "windows": windows,
    "convex windows": lambda run, sigma: windows(run, sigma, "convex"),
    "path": path,
}
BY_TURN = {"turns": (0, 4), "path": (0, 1)}


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_costs_nearly_nothing_leaves_room_for_every_other(tmp_path, kind, unit):
    first: Terms = KINDS[kind]("first", budget.MOST_BLOCK_NOISE if kind == "allocation" else LOUD)
    if first.unit != unit:
        return
    path, limit = tmp_path / "ledger.json", 8.0
    own: Any = {unit: Budget((limit,), DELTA, path)}
    budget.begin(own, first)
    with locked_ledger(path) as file:
        for index in BY_TURN.get(kind, ()):
            file.ledger.charge("first", index, int(kind == "path"))
        file.save()
        assert file.ledger.epsilon(DELTA, unit=unit, limit=limit) < 0.05
    for made in KINDS.values():
        terms: Terms = made("second", USUAL)
        if terms.unit == unit:
            budget.consider(own, terms)
    budget.begin(own, KINDS[kind]("again", USUAL))
