"""Tests of noised counts on held-out records: what plans and clients' ledgers charge for these counts."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.planning.plan_extensions import with_held_out
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sums_once import RECORD_MOVES
from gdpfed.record_steps import RecordSteps

TRAINING = RecordTraining(batch_rate=0.1, clipping_norm=1.0, schedule=(1, 1), work="gradient_sum")
PLAIN = record_plan(
    groups=groups_from_shares(4, (1.0, 3.0)), num_rounds=2, training=TRAINING, delta=1e-5, most_records=50
)
PLAN: Any = with_held_out(PLAIN)
KEPT: dict[str, Any] = {"epsilons": [9.0], "delta": 1e-5}


def terms(plan, run):
    return terms_of(plan, 0, run, dropout_tolerance=0.1, corrupt_tolerance=0.0)


def request(**changes):
    bound = RECORD_MOVES * 50
    told: dict[str, Any] = {
        "name": "held-out records",
        "clients": np.arange(4),
        "clipping_norm": bound,
        "noise_multiplier": PLAN.held_out.noise_stddev / bound,
        "noise_at": NoiseAt.CLIENT,
        "work": "held_out_counts",
        "unit": "record",
        "start": np.zeros(3, np.float32),
    }
    return SumRequest(**told | changes)


def test_the_noise_is_that_of_the_least_budget_and_training_keeps_its_own():
    # delta(epsilon) of one Gaussian release (Balle and Wang, 2018), by its two normal tails.
    mu = RECORD_MOVES / PLAN.held_out.noise_stddev
    tail = [0.5 * math.erfc((1.0 / mu + sign * mu / 2) / math.sqrt(2)) for sign in (-1, 1)]
    assert tail[0] - math.e * tail[1] == pytest.approx(1e-5, rel=1e-4)
    assert PLAN.groups == PLAIN.groups
    assert PLAN.fingerprint() != PLAIN.fingerprint()


def test_plans_without_a_proof_are_refused():
    with pytest.raises(PrivacyError, match="secagg=off shows those of each client"):
        with_held_out(replace(PLAIN, sums_hidden=False))
    one_round = make_plan(
        groups=groups_from_shares(40, (1.0,)), num_rounds=1, sampling_rate=0.2, clipping_norm=1.0
    )
    with pytest.raises(PrivacyError, match="two rounds or more"):
        with_held_out(one_round)


def test_a_record_is_trained_on_or_held_out_and_pays_for_one():
    ledger, first = ClientLedger(), terms(PLAN, "one")
    alone = ledger.epsilon(1e-5, unit="record", also=first)
    assert alone == pytest.approx(1.0, rel=0.01)
    ledger.begin(first, **KEPT)
    for index in range(3):
        ledger.charge("one", index, int(index < 2))
    with pytest.raises(PrivacyError, match="has had its counts"):
        ledger.charge("one", 2)
    assert ledger.epsilon(1e-5, unit="record") == pytest.approx(alone)
    assert ClientLedger.from_dict(ledger.to_dict()).run("one").sent == {"held_out_counts"}
    # The same rule twice keeps them apart; another rule, or a run that holds nothing out, does not.
    twice = ledger.epsilon(1e-5, unit="record", also=terms(PLAN, "two"))
    mixed = ledger.epsilon(1e-5, unit="record", also=replace(terms(PLAN, "two"), held_out_by="another"))
    without = ledger.epsilon(1e-5, unit="record", also=terms(PLAIN, "two"))
    assert alone < twice < mixed
    assert without > alone


def test_terms_with_other_counts_are_refused():
    first = terms(PLAN, "one")
    assert Terms.from_scalars(first.to_scalars()) == first
    assert "held_out" not in terms(PLAIN, "one").to_scalars()
    (charge,) = first.held_out
    for wrong in (
        replace(charge, count=2),
        replace(charge, event=replace(charge.event, clipping_norm=1.0)),
        replace(charge, event=replace(charge.event, noise_stddev=0.0)),
    ):
        with pytest.raises(PrivacyError, match="held_out is not one noised sum"):
            replace(first, held_out=(wrong,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": 0.001}, "below the plan's"),
        ({"work": "update"}, "once, after its last round, or never"),
        ({"clients": np.array([0, 1, 1, 2])}, "asked twice"),
        ({"clients": np.array([0, 1, 2, 9])}, "not in the plan"),
        ({"client_weights": np.array([1.0, 1.0, 1.0, 9.0])}, "count alike"),
        ({"noise_at": NoiseAt.NOWHERE}, "every client adds"),
    ],
)
def test_a_ledger_charges_the_planned_counts_once_and_after_the_last_round(changes, words):
    ledger = Ledger(PLAN, kinds=(SumRequest, RecordSteps))
    with pytest.raises(PrivacyError, match="after its last round"):
        ledger.charge_once(request())
    for index in range(2):
        ledger.open_round(index, [np.arange(2), np.arange(2, 4)])
    with pytest.raises(PrivacyError, match=words):
        ledger.charge_once(request(**changes))
    ledger.charge_once(request())
    again = Ledger.from_dict(PLAN, ledger.to_dict(), kinds=(SumRequest, RecordSteps))
    with pytest.raises(PrivacyError, match="once"):
        again.charge_once(request())
