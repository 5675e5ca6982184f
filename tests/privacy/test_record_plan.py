"""Tests of plans that protect records: reference numbers, budgets, and requests that ledgers refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import binom, norm

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.calibration import (
    evenly_spread,
    knee_steps,
    largest_batch_rate,
    step_noise,
    steps_allowed,
    steps_epsilon,
)
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.privacy.release import NoiseAt, Release
from gdpfed.record_steps import RecordSteps

PLD = make_accountant("pld")
DELTA = 1e-5
SIX = groups_from_shares(6, (1.0, 3.0, 6.0))


def independent_epsilon(rate, sigma, steps):
    """Return epsilon of sampled Gaussian steps, computed by dp-accounting alone."""
    accountant = PLDAccountant(
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-3
    )
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    accountant.compose(SelfComposedDpEvent(event, steps))
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("epsilon", "rate", "sigma", "steps"),
    [
        (2, 0.05, 1.0, 20),
        (4, 0.05, 1.0, 136),
        (2, 0.01, 1.0, 1201),
        (2, 0.05, 1.5, 144),
        (8, 0.05, 0.8, 217),
        (4, 0.1, 2.0, 276),
    ],
)
def test_the_steps_that_a_budget_admits(epsilon, rate, sigma, steps):
    assert steps_allowed(PLD, epsilon=epsilon, delta=DELTA, batch_rate=rate, noise_multiplier=sigma) == steps


def test_a_budget_below_one_step_admits_none():
    """A budget below the epsilon of one step admits no step; a budget just above it admits one."""

    def delta_of(epsilon, rate=0.05, sigma=1.0):
        """Return delta of one sampled Gaussian step at epsilon, in closed form."""
        beyond = sigma**2 * (np.log((np.exp(epsilon) - 1 + rate) / rate) + 0.5 / sigma**2)
        kept = (1 - rate) * norm.sf(beyond, 0, sigma) + rate * norm.sf(beyond, 1, sigma)
        return kept - np.exp(epsilon) * norm.sf(beyond, 0, sigma)

    one_step = brentq(lambda epsilon: delta_of(epsilon) - DELTA, 0.01, 5)
    assert one_step == pytest.approx(1.0328, abs=1e-4)
    for epsilon, steps in ((1.0, 0), (one_step * 1.001, 1)):
        allowed = steps_allowed(PLD, epsilon=epsilon, delta=DELTA, batch_rate=0.05, noise_multiplier=1.0)
        assert allowed == steps


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "sigma"),
    [
        (1, 0.05, 20, 1.3647),
        (1, 0.05, 100, 2.1425),
        (1, 0.05, 400, 3.8753),
        (3, 0.05, 100, 1.0788),
        (3, 0.05, 1000, 2.3524),
        (2, 0.01, 2000, 1.1495),
    ],
)
def test_the_noise_that_steps_need(epsilon, rate, steps, sigma):
    found = step_noise(PLD, epsilon=epsilon, delta=DELTA, batch_rate=rate, num_steps=steps)
    assert found == pytest.approx(sigma, rel=5e-4)
    assert independent_epsilon(rate, found, steps) <= epsilon * 1.001


def test_the_largest_rate_spends_the_budget():
    rate = largest_batch_rate(PLD, epsilon=1.0, delta=DELTA, noise_multiplier=2.0, num_steps=100, at_most=0.5)
    spent = steps_epsilon(PLD, batch_rate=rate, noise_multiplier=2.0, num_steps=100, delta=DELTA)
    assert 0.998 < spent <= 1.0
    below = largest_batch_rate(
        PLD, epsilon=1.0, delta=DELTA, noise_multiplier=2.0, num_steps=100, at_most=rate / 2
    )
    assert below == rate / 2


def test_the_knee_is_where_more_steps_hardly_lower_the_noise():
    def noise_of(num_steps):
        return step_noise(PLD, epsilon=1.0, delta=DELTA, batch_rate=0.05, num_steps=num_steps)

    assert knee_steps(noise_of, num_rounds=20, most_local_steps=50) == 20
    assert noise_of(400) ** 2 / 400 == pytest.approx(0.0375, rel=5e-3)


def test_steps_are_spread_evenly_and_all_of_them():
    assert evenly_spread(201, 20) == (11, *(10,) * 19)
    assert evenly_spread(3, 5) == (1, 1, 1, 0, 0)
    assert sum(evenly_spread(7919, 30)) == 7919


def planned(groups=SIX, num_rounds=10, **training):
    settings = {"batch_rate": 0.05, "clipping_norm": 1.0, "schedule": (4,) * num_rounds} | training
    return record_plan(groups=groups, num_rounds=num_rounds, training=RecordTraining(**settings))


def test_own_rates_share_one_noise_and_spend_every_budget():
    plan = planned()
    assert {records.noise_multiplier for records in records_of(plan)} == {
        records_of(plan)[0].noise_multiplier
    }
    rates = [records.batch_rates[0] for records in records_of(plan)]
    assert rates == sorted(rates)
    assert np.mean(rates) == pytest.approx(0.05, rel=1e-6)
    for group, records in zip(plan.groups, records_of(plan), strict=True):
        spent = independent_epsilon(records.batch_rates[0], records.noise_multiplier, 40)
        assert group.epsilon * 0.985 < spent <= group.epsilon * 1.001
    assert plan.unit == "record"
    assert plan.charges(0) == (
        Charge(
            event=DPSGDSteps(
                batch_rate=rates[0],
                noise_multiplier=records_of(plan)[0].noise_multiplier,
                num_steps=4,
            ),
            count=10,
            unit="record",
        ),
    )


def test_own_norms_share_one_standard_deviation():
    plan = planned(heterogeneous="scale")
    deviations = [records.noise_multiplier * records.clipping_norm for records in records_of(plan)]
    assert deviations == pytest.approx([deviations[0]] * 3)
    assert np.mean([records.clipping_norm for records in records_of(plan)]) == pytest.approx(1.0)
    for group, records in zip(plan.groups, records_of(plan), strict=True):
        assert independent_epsilon(0.05, records.noise_multiplier, 40) <= group.epsilon * 1.001


def test_own_steps_end_when_the_budget_is_spent():
    plan = planned(heterogeneous="steps", noise_multiplier=1.2)
    for index, group in enumerate(plan.groups):
        allowed = steps_allowed(
            PLD, epsilon=group.epsilon, delta=DELTA, batch_rate=0.05, noise_multiplier=1.2
        )
        steps = [group.at(index).record_steps for index in range(10)]
        assert sum(steps) == min(allowed, 40)
        assert records_of(plan)[index].steps_allowed == allowed
        assert plan.epsilon_after(index, 10) <= group.epsilon
        beyond = steps_epsilon(PLD, batch_rate=0.05, noise_multiplier=1.2, num_steps=allowed + 1, delta=DELTA)
        assert beyond > group.epsilon


def test_records_of_one_client_have_budgets_of_their_own():
    plan = record_plan(
        groups=(Group(0.5, range(6)),),
        num_rounds=10,
        training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(4,) * 10),
        record_budgets=[(0.5, 0.7), (1.0, 0.2), (5.0, 0.1)],
    )
    (records,) = records_of(plan)
    assert [each.share for each in records.groups] == [0.7, 0.2, 0.1]
    assert records.mean_rate == pytest.approx(0.05, rel=1e-6)
    for each in records.groups:
        spent = independent_epsilon(each.batch_rate, records.noise_multiplier, 40)
        assert each.epsilon * 0.985 < spent <= each.epsilon * 1.001
    json.dumps(plan.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"heterogeneous": "scale", "noise_multiplier": 2.0}, "leaves heterogeneous=scale nothing to choose"),
        ({"heterogeneous": "steps", "noise_multiplier": 0.3}, "epsilon 1 allows 0 steps"),
        ({"schedule": (0,) * 10}, "the budget allows no whole round of steps"),
        ({"schedule": (4,) * 9}, "the schedule has 9 rounds"),
        ({"batch_rate": 1.5}, "batch_rate is 1.5"),
        ({"work": "update"}, "work=update does not release"),
    ],
)
def test_what_has_no_plan_is_refused(training, reason):
    with pytest.raises(PrivacyError, match=reason):
        planned(**training)


def test_theorem1_is_not_about_records():
    training = RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(4,) * 10)
    with pytest.raises(PrivacyError, match="theorem1 is about sums"):
        record_plan(groups=SIX, num_rounds=10, training=training, accountant="theorem1")


ONE = record_plan(
    groups=(Group(2.0, range(6)),),
    num_rounds=3,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(4, 4, 2)),
)
SUMMED = record_plan(
    groups=(Group(2.0, range(6)),),
    num_rounds=3,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(1, 1, 1), work="gradient_sum"),
    most_records=100,
)


@pytest.mark.parametrize(("most_records", "rate"), [(1000, 0.05), (10_000, 0.01), (10, 0.5)])
def test_a_batch_that_a_sum_has_no_room_for_is_drawn_once_in_a_thousand_million(most_records, rate):
    plan = record_plan(
        groups=(Group(2.0, range(6)),),
        num_rounds=1,
        training=RecordTraining(batch_rate=rate, clipping_norm=2.0, schedule=(1,), work="gradient_sum"),
        most_records=most_records,
    )
    room = plan.groups[0].clipping_norm / records_of(plan)[0].clipping_norm
    if most_records == 10:
        assert room == most_records
    else:
        assert 1e-11 < binom.sf(np.floor(room), most_records, rate) < 1e-9


def steps_of(plan, **changes):
    records = records_of(plan)[0]
    own = RecordSteps(
        num_steps=plan.groups[0].at(0).record_steps,
        batch_rates=records.batch_rates,
        clipping_norm=1.0,
        noise_multiplier=records.noise_multiplier if plan is ONE else 0.0,
    )
    return replace(own, **changes)


def asked(plan, clients=range(6), **changes):
    """Return the request that a plan asks for, with some fields replaced."""
    summed = plan is SUMMED
    bound = plan.groups[0].clipping_norm
    values = {
        "name": "all",
        "clients": np.asarray(list(clients)),
        "clipping_norm": bound,
        "noise_multiplier": plan.groups[0].noise_stddev / bound if summed else 0.0,
        "noise_at": NoiseAt.CLIENT if summed else NoiseAt.NOWHERE,
        "work": plan.works[0],
        "unit": "record",
        "records": [steps_of(plan)] * len(clients),
    }
    return Release(**(values | changes))


def opened(plan, cohort=range(6)):
    ledger = Ledger(plan)
    ledger.open_round(0, [np.asarray(list(cohort))])
    return ledger


@pytest.mark.parametrize("plan", [ONE, SUMMED], ids=["dp_sgd", "gradient_sum"])
def test_what_the_plan_says_is_charged_once(plan):
    ledger = opened(plan)
    (charged,) = ledger.charge(0, [asked(plan)])
    assert charged.take().unit == "record"
    with pytest.raises(PrivacyError, match="in 1 sums of this round already"):
        ledger.charge(0, [asked(plan, name="again")])


@pytest.mark.parametrize(
    ("plan", "changes", "reason"),
    [
        (ONE, {"records": [steps_of(ONE, num_steps=5)] * 6}, "asked for 5 steps, above the plan's 4"),
        (ONE, {"records": [steps_of(ONE, batch_rates=(0.06,))] * 6}, "asked for batch rates"),
        (ONE, {"records": [steps_of(ONE, batch_rates=(0.05, 0.05))] * 6}, "asked for batch rates"),
        (ONE, {"records": [steps_of(ONE, noise_multiplier=0.1)] * 6}, "noise multiplier 0.1 on the records"),
        (ONE, {"records": ()}, "does not say what steps"),
        (ONE, {"unit": "client"}, "the plan protects a record, not a client"),
        (ONE, {"work": "update"}, "the plan charges dp_sgd, not update"),
        (SUMMED, {"noise_multiplier": 0.0}, "noise multiplier 0 on the records"),
        (SUMMED, {"noise_at": NoiseAt.NOWHERE}, "noise is added nowhere"),
        (
            SUMMED,
            {
                "client_weights": np.full(6, 2.0),
                "client_clipping_norms": np.full(6, SUMMED.groups[0].clipping_norm / 2),
            },
            "noise multiplier .* is below",
        ),
        (SUMMED, {"records": [steps_of(SUMMED, clipping_norm=2.0)] * 6}, "noise multiplier .* is below"),
    ],
)
def test_a_request_beyond_the_plan_is_refused(plan, changes, reason):
    ledger = opened(plan)
    with pytest.raises(PrivacyError, match=reason):
        ledger.charge(0, [asked(plan, **changes)])


def test_a_client_stops_when_its_rounds_are_spent():
    plan = record_plan(
        groups=(Group(2.0, range(40)),),
        num_rounds=12,
        training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(4,) * 7, whole_rounds=True),
        sampling_rate=0.25,
    )
    assert records_of(plan)[0].most_rounds == 7
    ledger = Ledger(plan)
    everybody = np.arange(40)
    for index in range(7):
        ledger.open_round(index, ledger.with_steps_left([everybody], index))
    assert ledger.spent()[0] == plan.groups[0].epsilon_accounted
    with pytest.raises(PrivacyError, match="client 0 has no step left"):
        ledger.open_round(7, [everybody])
    (nobody,) = ledger.with_steps_left([everybody], 7)
    assert len(nobody) == 0
    ledger.open_round(7, [nobody])
    assert ledger.spent()[0] == plan.groups[0].epsilon_accounted
    restored = Ledger.from_dict(plan, json.loads(json.dumps(ledger.to_dict())))
    assert restored.participations(3) == 7


def test_training_ends_when_too_few_clients_have_steps_left():
    training = RecordTraining(
        batch_rate=0.05, clipping_norm=1.0, schedule=(4,) * 10, heterogeneous="steps", noise_multiplier=1.2
    )
    alone = record_plan(groups=SIX, num_rounds=10, training=training)
    together = record_plan(groups=SIX, num_rounds=10, training=training, minimum_cohort=6)
    steps = [[group.at(index).record_steps for index in range(10)] for group in alone.groups]
    end = next(index for index in range(10) if steps[0][index] == 0)
    for group, own in zip(together.groups, steps, strict=True):
        assert [group.at(index).record_steps for index in range(10)] == own[:end] + [0] * (10 - end)
