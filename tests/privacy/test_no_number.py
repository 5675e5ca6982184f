"""Tests of extreme floats: a result that is not a number never becomes a small epsilon."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.composition import compose, compose_against_server
from gdpfed.privacy.accountants.losses import Losses
from gdpfed.privacy.accountants.rdp import epsilon_of_renyi
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, Event, GaussianMixture, SampledGaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import MOST_ROUNDS, terms_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares

# Where a node says nothing of them, numpy's warnings are lines in its log.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DELTA = 1e-5
PLAN = make_plan(
    groups=groups_from_shares(40, (1.0, 3.0)), num_rounds=6, sampling_rate=0.2, clipping_norm=2.0, delta=DELTA
)
TERMS: Any = terms_of(PLAN, 1, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0)
SAMPLED = {"sampling": "poisson", "sampling_rate": 0.5, "group_size": 6, "clipping_norm": 1.0}
LOUD: Event = SampledGaussian(**SAMPLED, noise_stddev=1e-3)  # type: ignore[arg-type]
ODD: list[Event] = [
    SampledGaussian(**SAMPLED, noise_stddev=1e-160),  # type: ignore[arg-type]
    DPSGDSteps(num_steps=1, batch_rate=0.05, noise_multiplier=1e-160),
    GaussianMixture(noise_stddev=1e150, sensitivities=(1e-310,), weights=(1,)),
    AllocatedGaussian(block_rounds=2, noise_stddev=1e100, clipping_norm=1e4),
]


def charged(event: Event, count: int = 1) -> Charge:
    return Charge(event=event, count=count, unit=event.unit or "client")


@pytest.mark.parametrize("renyi", [math.nan, -math.inf])
def test_a_divergence_that_is_no_number_proves_no_epsilon(renyi):
    assert epsilon_of_renyi({2.0: renyi}, DELTA) == math.inf
    assert 0 < epsilon_of_renyi({2.0: renyi, 3.0: 1.0}, DELTA) < math.inf


@pytest.mark.parametrize(
    ("chances", "infinite"), [([0.5, math.nan], 0.0), ([1e56], 0.0), ([0.1], 0.0), ([1.0], math.nan)]
)
def test_losses_that_are_no_distribution_have_no_epsilon(chances, infinite):
    losses = Losses(0.1, -1, np.array(chances), infinite)
    assert losses.epsilon(DELTA) == math.inf
    assert losses.delta(np.array([0.0, 1.0])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
@pytest.mark.parametrize("odd", ODD, ids=lambda event: event.kind)
def test_beside_an_odd_release_others_cost_what_they_cost(odd, schedule):
    """Next to a release with extreme parameters, a usual one costs its full epsilon, or composing fails."""
    unit = odd.unit or "client"
    beside: Event = LOUD
    if unit == "record":
        beside = DPSGDSteps(num_steps=5, batch_rate=0.5, noise_multiplier=0.1)
    alone = compose([charged(beside)], DELTA, schedule="fixed").epsilon
    try:
        epsilon = compose([charged(beside), charged(odd)], DELTA, schedule=schedule).epsilon
    except (PrivacyError, ArithmeticError, ValueError):
        return
    assert epsilon >= alone * 0.99


def test_against_the_server_an_odd_release_is_no_bargain():
    steps = charged(DPSGDSteps(num_steps=1, batch_rate=0.05, noise_multiplier=1e-160))
    try:
        epsilon = compose_against_server([steps, steps], DELTA)
    except (PrivacyError, ArithmeticError, ValueError):
        return
    assert epsilon == math.inf or epsilon > 1e6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"charges": (charged(LOUD), charged(ODD[2]))}, "charge something else than sampled_gaussian"),
        ({"charges": (charged(LOUD), charged(ODD[3]))}, "charge something else than sampled_gaussian"),
        ({"charges": (charged(LOUD, MOST_ROUNDS + 1),)}, f"rounds; give at most {MOST_ROUNDS}"),
        ({"epsilon": 0.0}, "the terms' epsilon is 0.0; it must be positive"),
        ({"epsilon": -math.inf}, "the terms' epsilon is -inf; it must be positive"),
    ],
)
def test_terms_with_what_a_ledger_cannot_count_are_refused(changes, words):
    with pytest.raises(PrivacyError, match=words):
        replace(TERMS, **changes)


def test_how_often_a_client_is_asked_has_a_chance_at_any_number_of_rounds(monkeypatch):
    """The chance that a client is asked is a number even after 2**31 rounds, where scipy returns NaN."""
    monkeypatch.setattr("gdpfed.privacy.ledgers.terms.MOST_ROUNDS", 2**33)
    rare = SampledGaussian(**{**SAMPLED, "sampling_rate": 1e-9}, noise_stddev=0.5)  # type: ignore[arg-type]
    ledger = ClientLedger()
    ledger.begin(replace(TERMS, charges=(charged(rare, 2**32),)), epsilons=[9.0], delta=DELTA)
    for index in range(2**31, 2**31 + 30):
        ledger.charge("one", index)
    assert 0 <= ledger.chance_of_round("one", 2**31 + 30) < 1e-6
