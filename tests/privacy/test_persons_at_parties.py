"""Tests of a person with records at several parties: the charge for all of them, derived independently."""

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.records.terms import StepTerms
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.planning.plan_extensions import with_held_out
from gdpfed.privacy.release import NoiseAt, Release
from gdpfed.record_steps import RecordSteps

STEPS, DELTA, NORM = 40, 1e-5, 2.0


def planned(parties, *, work="gradient_sum", budgets=(2.0,), heterogeneous="rate"):
    return record_plan(
        groups=groups_from_shares(6, budgets),
        num_rounds=STEPS,
        training=RecordTraining(
            batch_rate=0.2,
            clipping_norm=NORM,
            schedule=(1,) * STEPS,
            work=work,
            heterogeneous=heterogeneous,
            parties=parties,
        ),
        delta=DELTA,
        most_records=100,
    )


@pytest.mark.parametrize("parties", [2, 3])
def test_what_is_charged_covers_all_parts_of_a_person_in_one_sum_and_little_more(parties):
    """The charge covers all parts of a person in one sum, and is close to the exact epsilon."""
    plan = planned(parties)
    (group,) = plan.groups
    (records,) = records_of(plan)
    assert records.clipping_norm == pytest.approx(NORM / parties)
    stddev, rate = group.at(0).noise_stddev, records.groups[0].batch_rate
    drawn = [math.comb(parties, k) * rate**k * (1 - rate) ** (parties - k) for k in range(parties + 1)]
    moves = [k * records.clipping_norm / stddev for k in range(parties + 1)]
    step = losses.from_mixture_gaussian_mechanism(1.0, moves, drawn, value_discretization_interval=1e-3)
    exact = step.self_compose(STEPS).get_epsilon_for_delta(DELTA)
    assert 0.97 * group.epsilon_accounted < exact <= group.epsilon_accounted <= 2.0
    # No more noise in the sum than for persons at one party.
    assert stddev <= planned(1).groups[0].at(0).noise_stddev * (1 + 1e-3)


@pytest.mark.parametrize("heterogeneous", ["rate", "scale", "steps"])
def test_the_largest_budget_holds_for_a_person_whose_parties_have_different_ones(heterogeneous):
    plan = planned(2, work="dp_sgd", budgets=(1.0, 3.0), heterogeneous=heterogeneous)
    total = None
    for index, records in enumerate(records_of(plan)):
        (charge,) = plan.charges(index)
        step = losses.from_gaussian_mechanism(
            records.noise_multiplier,
            sampling_prob=records.groups[0].batch_rate,
            value_discretization_interval=1e-3,
            neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL,
        )
        own = step.self_compose(charge.count)
        total = own if total is None else total.compose(own)
    assert total is not None
    # A step of each: above the smaller budget, and below the larger one, in which both steps would be.
    assert 1.0 < total.get_epsilon_for_delta(DELTA) < 3.0


def test_own_noise_needs_no_smaller_norm_and_more_of_it():
    alone, several = records_of(planned(1, work="dp_sgd"))[0], records_of(planned(3, work="dp_sgd"))[0]
    assert several.clipping_norm == alone.clipping_norm == NORM
    assert several.noise_multiplier > 1.5 * alone.noise_multiplier


def test_an_event_says_for_how_many_parties_it_pays_and_says_nothing_of_one():
    event = DPSGDSteps(batch_rate=0.1, noise_multiplier=2.0, num_steps=10, parties=3)
    accountant = make_accountant("pld")
    alike = replace(event, num_steps=30, parties=1)
    assert accountant.epsilon(event, 4, DELTA) == accountant.epsilon(alike, 4, DELTA)
    assert "parties" not in alike.to_dict()
    charge = Charge(event=event, count=4, unit="record")
    assert charge_from_dict(charge.to_dict()) == charge
    with pytest.raises(PrivacyError, match="parties is 0"):
        replace(event, parties=0)


def test_terms_owe_the_noise_of_all_parties_and_count_their_steps_once():
    plan = planned(4)
    terms = terms_of(plan, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    assert isinstance(terms, StepTerms)
    assert terms.parties == 4
    assert terms.owed_noise(0) == pytest.approx(plan.groups[0].at(0).noise_stddev)
    assert terms.steps_left(0) == STEPS


def test_a_plan_lets_no_sum_through_with_the_norm_or_noise_of_persons_at_one_party():
    plan = planned(4)
    (records,) = records_of(plan)
    stddev = plan.groups[0].at(0).noise_stddev

    def broken(norm, noise):
        asked = RecordSteps(
            num_steps=1, batch_rates=records.batch_rates, clipping_norm=norm, noise_multiplier=0.0
        )
        request = Release(
            name="all clients",
            clients=np.arange(6),
            clipping_norm=plan.groups[0].at(0).clipping_norm,
            noise_multiplier=noise / plan.groups[0].at(0).clipping_norm,
            noise_at=NoiseAt.CLIENT,
            work="gradient_sum",
            unit="record",
            records=[asked] * 6,
        )
        return plan.mechanism.broken_rule(plan.groups, dict.fromkeys(range(6), 0), 0, request)

    assert broken(NORM / 4, stddev) == ""
    assert "is below the plan's" in broken(NORM, stddev)
    assert "is below the plan's" in broken(NORM / 4, stddev / 2)


def test_counts_on_held_out_persons_at_several_parties_are_refused():
    counted = with_held_out(planned(1)).held_out
    assert counted is not None
    with pytest.raises(PrivacyError, match="a person may be trained on at another party"):
        terms_of(
            replace(planned(2), held_out=counted), 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0
        )
    with pytest.raises(PrivacyError, match="a person may be at 2 parties, since one party may count a"):
        with_held_out(planned(2))
