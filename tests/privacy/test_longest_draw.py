"""Tests of the check that noise is large enough for its draws, which end at 10.2 standard deviations."""

from dataclasses import replace

import pytest
from scipy.stats import norm

from gdpfed.audit.accounting import charges_of, ends_too_soon
from gdpfed.errors import PrivacyError
from gdpfed.federation.node.budget import BudgetRefusedError, consider
from gdpfed.federation.node.own_budget import Budget
from gdpfed.privacy.accountants.longest_draw import LONGEST_DRAW, SHARE_OF_DELTA, require_drawable
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, Gaussian, GaussianMixture, LocalWindows, SampledGaussian
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import Group

SIGMA = 0.21


def sampled(noise_stddev, **more):
    event = SampledGaussian(
        sampling="poisson",
        sampling_rate=0.5,
        group_size=10,
        noise_stddev=noise_stddev,
        clipping_norm=1.0,
    )
    return replace(event, **more)


# Events of a unit, the releases in one, and how likely a unit moves one of them how far.
EVENTS = {
    "sampled": (sampled(SIGMA), 0.5, 1 / SIGMA),
    "sampled, two sums": (sampled(SIGMA, num_sums=2), 1.0, 1 / SIGMA),
    "sampled, replace_one": (sampled(SIGMA, adjacency="replace_one"), 0.5, 2 / SIGMA),
    "gaussian": (Gaussian(noise_stddev=2 * SIGMA, clipping_norm=2.0), 1.0, 1 / SIGMA),
    "gaussian, replace_one": (
        Gaussian(noise_stddev=SIGMA, clipping_norm=1.0, adjacency="replace_one"),
        1.0,
        2 / SIGMA,
    ),
    "steps": (DPSGDSteps(batch_rate=0.1, noise_multiplier=SIGMA, num_steps=3, parties=2), 0.6, 1 / SIGMA),
    "block": (AllocatedGaussian(block_rounds=4, noise_stddev=SIGMA, clipping_norm=1.0), 1.0, 1 / SIGMA),
    "mixture": (
        GaussianMixture(noise_stddev=SIGMA, sensitivities=(0.0, 1.0), weights=(0.75, 0.25)),
        0.25,
        1 / SIGMA,
    ),
    "windows": (
        LocalWindows(bound="convex", batch_rate=0.2, noise_multiplier=SIGMA, num_steps=3, window_steps=1),
        0.6,
        1 / SIGMA,
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_hundredth_of_delta_is_what_sums_beyond_the_longest_draw_may_show(name):
    event, releases, move = EVENTS[name]
    charge = Charge(event=event, count=5, unit=event.unit or "client")
    least_delta = 5 * releases * norm.sf(LONGEST_DRAW - move) / SHARE_OF_DELTA
    require_drawable([charge], 1.01 * least_delta, 30.0)
    require_drawable([charge], 0.99 * least_delta, 31.0)
    with pytest.raises(PrivacyError, match="no draw is longer than 10.2 standard deviations"):
        require_drawable([charge], 0.99 * least_delta, 30.0)


def test_discrete_noise_and_no_noise_are_accounted_for_elsewhere():
    for event in (sampled(0.01, noise="discrete_gaussian"), sampled(0.0)):
        require_drawable([Charge(event=event, count=1, unit="client")], 1e-9, 1.0)


def plan(epsilon, delta):
    groups = [Group(epsilon, range(100))]
    return make_plan(groups=groups, num_rounds=1, sampling_rate=1.0, clipping_norm=1.0, delta=delta)


def test_a_plan_whose_draws_are_too_short_is_refused_and_one_for_usual_budgets_is_not():
    assert plan(20.0, 1e-5).groups[0].epsilon_accounted <= 20
    with pytest.raises(PrivacyError, match="choose smaller budgets"):
        plan(20.0, 1e-15)


def test_a_node_refuses_terms_whose_draws_are_too_short(tmp_path, caplog):
    terms = terms_of(plan(15.0, 1e-9), 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    own = Budget(epsilons=(25.0,), delta=1e-15, ledger=tmp_path / "ledger.json")
    with pytest.raises(BudgetRefusedError, match="does not fit this client's own budget"):
        consider({"client": own}, terms)
    assert "no draw is longer than 10.2 standard deviations" in caplog.text
    # More than 30 is not judged by the draws, and neither is what was agreed to earlier.
    consider({"client": replace(own, epsilons=(35.0,))}, terms)
    assert Terms.from_scalars(terms.to_scalars()) == terms


@pytest.mark.parametrize(
    ("delta", "budget", "found"), [(1e-9, 30, False), (1e-15, 30, True), (1e-15, 31, False)]
)
def test_the_audit_finds_noise_whose_draws_are_too_short(delta, budget, found):
    charge = Charge(event=sampled(0.45, sampling_rate=1.0), count=1, unit="client")
    assert ends_too_soon(charges_of([charge.to_dict()]), delta, budget) == found
