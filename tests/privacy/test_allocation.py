"""Tests of random allocation: a client takes part in one round, drawn in secret, of each block of rounds."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from conf.load import load
from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.audit.allocation import block_divergences, losses_of_block
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import make_method
from gdpfed.privacy.accountants.composition import compose, compose_against_server
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.accountants.rdp import renyi_curve
from gdpfed.privacy.allocation import AllocatedGaussian, Allocation
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanisms.allocated.planner import make_allocated_plan
from gdpfed.privacy.mechanisms.allocated.report import AllocatedReport
from gdpfed.privacy.mechanisms.allocated.terms import AllocatedTerms
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped, reveals_turns
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from testing.settings import last_of_each

DELTA = 1e-5
DRAWS = 60_000
KEY = bytes(range(32))


def block(rounds, sigma):
    return AllocatedGaussian(block_rounds=rounds, noise_stddev=sigma, clipping_norm=1.0)


@pytest.mark.parametrize(("rounds", "sigma"), [(5, 1.0), (30, 0.8), (12, 4.0)])
def test_losses_are_those_that_are_drawn(rounds, sigma):
    """Delta of random allocation agrees with a simulation, if a client is removed and if one is added."""
    rng = np.random.default_rng(rounds)
    z = rng.normal(size=(DRAWS, rounds))
    without = np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)
    z[np.arange(DRAWS), rng.integers(rounds, size=DRAWS)] += 1 / sigma
    present = np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)
    both = Allocation(sigma, rounds).losses(1e-3)
    for epsilon in np.linspace(0.0, 0.9 * pld_epsilon(block(rounds, sigma), 1, DELTA), 4):
        removed = np.maximum(1 - np.exp(epsilon) / present, 0.0)
        added = np.maximum(1 - np.exp(epsilon) * without, 0.0)
        for direction, drawn in zip(both.directions, (removed, added), strict=True):
            stated = float(direction.delta(np.array([epsilon]))[0])
            error = 5 * drawn.std() / math.sqrt(DRAWS) + 1e-9
            # What is so rare that nothing was drawn of it is below 2e-4.
            assert (
                drawn.mean() - error <= stated <= drawn.mean() * 1.03 + max(error, 2e-4 * (drawn.max() == 0))
            )


@pytest.mark.parametrize(("rounds", "sigma", "blocks"), [(50, 1.0, 1), (7, 0.7, 3), (6, 9.0, 5)])
def test_the_audit_computes_the_same_by_prices_of_options(rounds, sigma, blocks):
    """The audit's epsilon, by formulas for option prices, lies at most 0.5 % below the planned epsilon."""
    planned = pld_epsilon(block(rounds, sigma), blocks, DELTA)
    audited = losses_of_block(sigma, rounds, 1e-3).self_compose(blocks).get_epsilon_for_delta(DELTA)
    assert planned * 0.995 < audited <= planned
    audited_by_order = block_divergences(sigma, rounds)
    curve = renyi_curve(block(rounds, sigma))
    assert all(curve[order] == pytest.approx(value, rel=1e-9) for order, value in audited_by_order.items())
    assert (
        compose([Charge(event=block(rounds, sigma), count=blocks)], DELTA, schedule="adaptive").epsilon
        > planned
    )


def test_moments_are_those_of_two_ratios():
    """For one secret round out of two, the Renyi divergence of order 3 equals the value by hand."""
    third, second = math.exp(3.0 / 1.5**2), math.exp(1.0 / 1.5**2)
    by_hand = math.log((2 * third + 6 * second) / 8) / 2
    assert renyi_curve(block(2, 1.5))[3.0] == pytest.approx(max(by_hand, 2 / 1.5**2 / 2), rel=1e-9)


def test_a_block_of_one_round_is_a_gaussian_and_of_many_costs_less_than_poisson_sampling():
    assert pld_epsilon(block(1, 2.0), 3, DELTA) == pytest.approx(
        compose_against_server([Charge(event=block(1, 2.0), count=3)], DELTA)
    )
    for rounds in (4, 25):
        poisson = SampledGaussian(
            sampling="poisson", sampling_rate=1 / rounds, group_size=9, noise_stddev=1.0, clipping_norm=1.0
        )
        assert pld_epsilon(block(rounds, 1.0), 1, DELTA) < pld_epsilon(poisson, rounds, DELTA)


def plan_of(rounds=10, rates=(0.1, 0.3, 0.65), budgets=(1.0, 3.0, 6.0), **options):
    return make_allocated_plan(
        groups=groups_from_shares(90, budgets),
        num_rounds=rounds,
        sampling_rate=0.3,
        clipping_norm=1.5,
        delta=DELTA,
        group_sampling_rates=rates,
        **options,
    )


@pytest.fixture(scope="module")
def plan():
    return plan_of()


def test_a_plan_meets_its_budgets_by_blocks_that_fill_the_run(plan):
    for group, turns, lengths in zip(plan.groups, (1, 3, 6), ([10], [4, 3], [2, 1]), strict=True):
        assert group.epsilon * 0.998 < group.epsilon_accounted <= group.epsilon
        assert group.participations_p99 == turns
        assert [round(1 / each.sampling_rate) for each in group.ranges] == lengths
        assert sum(each.num_rounds for each in group.ranges) == 10
    assert plan.against == "outsiders"
    # K turns are one Gaussian against the server, whatever was secret.
    known = [Charge(event=plan.charges(1)[0].event.for_members(), count=3)]
    assert plan.groups[1].epsilon_against_server == pytest.approx(compose_against_server(known, DELTA))


def test_everybody_is_drawn_once_a_block_uniformly_and_by_itself(plan):
    drawn = [draw_cohorts(plan, index, KEY) for index in range(10)]
    for m, edges in enumerate(([0, 10], [0, 4, 7, 10], [0, 2, 4, 6, 8, 9, 10])):
        for start, end in pairwise(edges):
            asked = np.concatenate([drawn[index][m] for index in range(start, end)])
            assert sorted(asked.tolist()) == list(plan.groups[m].clients)
    many = plan_of(rounds=6, rates=(0.5,), budgets=(2.0,))
    keys = [index.to_bytes(32, "big") for index in range(300)]
    where = np.array([[len(draw_cohorts(many, index, key)[0]) for index in range(3)] for key in keys])
    assert stats.chisquare(where.sum(axis=0)).pvalue > 1e-6
    # Each draws by itself: the size of a cohort is binomial.
    assert where[:, 0].var() == pytest.approx(90 / 3 * 2 / 3, rel=0.5)


def test_a_block_is_charged_when_its_first_round_begins(plan):
    ledger, spent = Ledger(plan), []
    for index in range(8):
        ledger.open_round(index, draw_cohorts(plan, index, KEY))
        spent.append(ledger.spent()[1])
    assert spent[0] == spent[3] < spent[4] == spent[6] < spent[7] == plan.groups[1].epsilon_accounted
    counts = [sum(each.count for each in plan.charges(2, rounds)) for rounds in (1, 2, 3, 9, 10)]
    assert counts == [1, 1, 2, 5, 6]
    assert Ledger.from_dict(plan, ledger.to_dict()).spent() == ledger.spent()


def terms_of(first_round=0):
    charges = tuple(
        charge_from_dict(each.to_dict()) for each in plan_of(rates=(0.3,), budgets=(3.0,)).charges(0)
    )
    return AllocatedTerms(
        run="run",
        group=0,
        epsilon=3.0,
        delta=DELTA,
        accountant="pld",
        charges=charges,
        sums_hidden=True,
        first_round=first_round,
    )


def test_a_client_takes_part_once_in_a_block_of_its_own_accord():
    ledger, terms = ClientLedger(), terms_of()
    ledger.begin(terms, epsilons=[3.0], delta=DELTA)
    assert terms.num_rounds == 10
    ledger.charge("run", 2)
    with pytest.raises(
        PrivacyError, match="round 3 of run run is not a round of this client: it took part in"
    ):
        ledger.check_round("run", 3)
    for index in (4, 9):
        ledger.charge("run", index)
    with pytest.raises(PrivacyError, match="once in the rounds 7 to 9"):
        ledger.check_round("run", 8)
    assert ledger.chance_of_round("run", 9) > 0.1
    known = [Charge(event=terms.event(0).for_members(), count=3)]
    assert ledger.epsilon_against_server(DELTA) == pytest.approx(compose_against_server(known, DELTA))


def test_who_comes_late_pays_for_the_blocks_that_are_left():
    blocks = [Counter({each.event.block_rounds: each.count for each in terms_of(first).planned_charges()})
              for first in (0, 3, 4, 7, 9)]  # fmt: skip
    assert blocks == [{4: 1, 3: 2}, {4: 1, 3: 2}, {3: 2}, {3: 1}, {3: 1}]


def test_terms_charge_blocks_alone():
    other = SampledGaussian(
        sampling="poisson", sampling_rate=0.5, group_size=9, noise_stddev=1.0, clipping_norm=1.0
    )
    with pytest.raises(PrivacyError, match="charge something else than allocated_gaussian"):
        replace(terms_of(), charges=(Charge(event=other, count=3),))


ALLOCATED = ["dataset=digits", "privacy.sampling=allocation", "privacy.against=outsiders", "run.num_rounds=3"]


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        (["privacy.accountant=rdp"], ConfigError, "proved for privacy.accountant=pld, not rdp"),
        (["privacy.adjacency=replace_one"], ConfigError, "proved for privacy.adjacency=zero_out"),
        (["privacy.noise=discrete_gaussian"], ConfigError, "proved for privacy.noise=gaussian"),
        (["privacy.clipping=adaptive"], ConfigError, "proved for privacy.clipping=fixed"),
        (["privacy=record_level", "method=dp_sum"], ConfigError, "proved for privacy.unit=client"),
        (["privacy.against=everyone"], ConfigError, "does not go with privacy.sampling=allocation"),
        (["method=fedavg"], ConfigError, "does not go with method=fedavg"),
        (["training.client_state=scaffold"], PrivacyError, "tie the rounds of a block together"),
        (["run.evaluation=nodes"], PrivacyError, "not for this plan of allocated_sums"),
        (["training.vote={learning_rate:[0.1,1]}"], PrivacyError, "training.vote is not accounted"),
        (
            [],
            PrivacyError,
            "cannot give all sums the same number of clients, as secagg.same_size=true asks",
        ),
    ],
)
def test_what_is_not_proved_is_refused_in_one_line(more, error, words):
    with pytest.raises(error, match=words) as raised:
        make_method(load(last_of_each([*ALLOCATED, "method=dp_fedavg", *more])))
    assert "\n" not in str(raised.value)


def chances_of_rounds(number, least):
    """Return the joint probability of which of two rounds have `least` clients and which has the client."""
    chances: dict[tuple[bool, bool], list[float]] = {}
    for others in range(number):
        for own in (0, 1):
            sizes = others + (own == 0), number - 1 - others + (own == 1)
            entry = chances.setdefault((sizes[0] >= least, sizes[1] >= least), [0.0, 0.0])
            entry[own] += float(stats.binom.pmf(others, number - 1, 0.5)) / 2
    return chances


def delta_with_skips_seen(number, least, sigma, epsilon):
    """Return delta for a removed client if others see which of two rounds had fewer than `least` clients."""
    z = np.linspace(-12, 12, 1201)
    weights, ratios = stats.norm.pdf(z) * (z[1] - z[0]), np.exp(z / sigma - 0.5 / sigma**2)
    total = 0.0
    for summed, chances in chances_of_rounds(number, least).items():
        all_of_it = sum(chances) or 1.0
        first, second = (c / all_of_it * s for c, s in zip(chances, summed, strict=True))
        mean = first * ratios[:, None] + second * ratios[None, :] + 1 - first - second
        total += sum(chances) * float(weights @ np.maximum(mean - math.exp(epsilon), 0.0) @ weights)
    return total


@pytest.mark.parametrize(("number", "beyond"), [(6, 2.5), (20, 0.99), (40, 0.98)])
def test_who_sees_that_a_round_is_skipped_learns_of_the_others_of_its_block(number, beyond):
    """If others see skipped rounds, delta can be 2.5 times the plan's; plans for few clients are refused."""
    epsilon = pld_epsilon(block(2, 1.0), 1, DELTA)
    assert delta_with_skips_seen(number, 3, 1.0, epsilon) / DELTA == pytest.approx(beyond, rel=0.03)
    made = plan_with(number)
    if number < 40:
        with pytest.raises(PrivacyError, match=r"a cohort below secagg.minimum_cohort=3 is skipped"):
            refuse_skipped(made, 3)
    else:
        refuse_skipped(made, 3)


def plan_with(number, one_sum=False, budgets=(2.0,), rates=(0.5,)):
    return make_allocated_plan(
        groups=groups_from_shares(number, budgets),
        num_rounds=2,
        sampling_rate=0.5,
        clipping_norm=1.0,
        delta=DELTA,
        group_sampling_rates=rates,
        one_sum=one_sum,
    )


def test_those_who_are_there_and_those_of_one_sum_count_together():
    two = {"budgets": (2.0, 3.0), "rates": (0.5, 0.5)}
    apart, together = plan_with(60, **two), plan_with(60, one_sum=True, **two)
    assert reveals_turns(apart, 3, 0)
    assert not reveals_turns(together, 3, 0)
    # Who is not there is drawn for nothing; a group of which nobody is there has nobody to protect.
    assert reveals_turns(together, 3, 0, there=[4, 4])
    assert not reveals_turns(plan_with(120, **two), 3, 0, there=[60, 0])
    # In every round: nothing is secret.
    assert not reveals_turns(plan_with(6, rates=(1.0,)), 3, 0)


def test_by_poisson_sampling_epsilon_does_not_count_that_a_round_was_seen_to_be_skipped():
    """If others see skipped rounds, epsilon rises from 3.534 to 3.692 for six clients, but not for twenty."""
    z = np.linspace(-12, 14, 4001)
    weights, ratios = stats.norm.pdf(z) * (z[1] - z[0]), np.exp(z - 0.5)
    for number, accounted, seen in ((6, 3.534, 3.692), (20, 3.534, 3.534)):
        event = SampledGaussian(
            sampling="poisson", sampling_rate=0.5, group_size=number, noise_stddev=1.0, clipping_norm=1.0
        )
        summed = stats.binom.sf(2, number, 0.5)
        rate = 0.5 * stats.binom.sf(1, number - 1, 0.5) / summed
        assert pld_epsilon(event, 1, DELTA) == pytest.approx(accounted, abs=1e-3)
        excess = np.maximum(1 - rate + rate * ratios - math.exp(seen), 0.0)
        assert summed * float(weights @ excess) == pytest.approx(DELTA, rel=0.01)


def test_who_is_in_the_other_of_two_rounds_hides_nothing_from_a_client_that_is_in_one():
    """Epsilon against clients that take part is computed as if they knew a client's round in each block."""
    two = plan_with(40)
    known = [Charge(event=block(2, two.groups[0].noise_multiplier).for_members(), count=1)]
    assert two.epsilon_against_members(0, 1) == pytest.approx(compose_against_server(known, DELTA))
    assert two.epsilon_against_members(0, 1) > 1.2 * two.groups[0].epsilon
    made = make_method(load(last_of_each([*ALLOCATED, "method=dp_fedavg", "secagg.same_size=false"])))
    facts = {fact.name: fact.value for fact in AllocatedReport().facts(made)}
    assert "and against all clients that take part: a client" in facts["against the server"]


@pytest.mark.parametrize("sigma", [0.03, 0.15, 0.2])
def test_where_there_is_hardly_any_noise_a_block_costs_at_most_its_one_sum(sigma):
    """With very little noise, one secret round out of seven costs at most as much as a known round."""
    charges = [Charge(event=block(7, sigma), count=2)]
    known = compose_against_server(charges, DELTA)
    planned = pld_epsilon(block(7, sigma), 2, DELTA)
    audited = epsilon_after(charges_of([each.to_dict() for each in charges]), DELTA)
    assert known - 2 * math.log(7) < planned <= known * (1 + 1e-9)
    assert planned * 0.995 < audited <= planned * (1 + 1e-9)
    assert compose(charges, DELTA, schedule="adaptive").epsilon > planned
