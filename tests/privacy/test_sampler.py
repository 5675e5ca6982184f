"""Statistical tests of the sampler of cohorts; a fixed key gives the same cohorts in every test run.

Each statistic below is standard normal (or chi-square) if the sampler is right; the bound is five
standard deviations (a chance of 6e-7), so a wrong sampler fails and a right one hardly could.
"""

import numpy as np
import pytest
from scipy import stats

from gdpfed.errors import PrivacyError
from gdpfed.privacy.mechanisms.sampled.planner import plain_plan
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.privacy.sampling.cohorts import draw_cohorts

KEY = bytes(range(32))
ROUNDS, SIZE, RATE = 4000, 40, 0.3


def draws(sampling):
    """Return an array (round, group, client) of who is drawn, for two groups of 40 clients at rate 0.3."""
    groups = groups_from_shares(2 * SIZE, (1.0, 2.0))
    plan = plain_plan(groups=groups, num_rounds=ROUNDS, sampling_rate=RATE, sampling=sampling)
    drawn = np.zeros((ROUNDS, 2, SIZE), dtype=bool)
    for round_index in range(ROUNDS):
        for group, cohort in enumerate(draw_cohorts(plan, round_index, KEY)):
            drawn[round_index, group, cohort - group * SIZE] = True
    return drawn


@pytest.fixture(scope="module", params=["poisson", "fixed_size"])
def sampled(request):
    return request.param, draws(request.param)


def test_every_client_is_drawn_at_the_rate(sampled):
    sampling, drawn = sampled
    counts = drawn.sum(axis=0).ravel()
    statistic = ((counts - ROUNDS * RATE) ** 2 / (ROUNDS * RATE * (1 - RATE))).sum()
    freedom = counts.size if sampling == "poisson" else counts.size - 2
    scale = 1.0 if sampling == "poisson" else SIZE / (SIZE - 1)
    assert 3e-7 < stats.chi2.sf(statistic / scale, freedom) < 1 - 3e-7


def test_cohort_sizes(sampled):
    sampling, drawn = sampled
    sizes = drawn.sum(axis=2).ravel()
    if sampling == "fixed_size":
        assert set(sizes) == {round(RATE * SIZE)}
        return
    expected = stats.binom.pmf(np.arange(SIZE + 1), SIZE, RATE) * sizes.size
    cells = expected > 5
    observed = np.bincount(sizes, minlength=SIZE + 1)[cells]
    assert stats.chisquare(observed, expected[cells] * observed.sum() / expected[cells].sum()).pvalue > 3e-7
    assert sizes.var() == pytest.approx(SIZE * RATE * (1 - RATE), rel=5 * (2 / sizes.size) ** 0.5)


def test_pairs_meet_as_often_as_they_should(sampled):
    """Any two clients are drawn together as often as the sampling scheme says."""
    sampling, drawn = sampled
    rate = RATE**2 if sampling == "poisson" else 12 * 11 / (SIZE * (SIZE - 1))
    for group in (0, 1):
        seen = drawn[:, group].astype(int)
        together = (seen.T @ seen)[np.triu_indices(SIZE, 1)]
        z = (together - ROUNDS * rate) / np.sqrt(ROUNDS * rate * (1 - rate))
        assert np.abs(z).max() < 5.5
        assert abs(together.mean() / ROUNDS - rate) < 5 * rate / np.sqrt(ROUNDS)


def test_rounds_and_groups_are_independent(sampled):
    _, drawn = sampled
    centred = drawn - RATE
    unit = (RATE * (1 - RATE)) * np.sqrt((ROUNDS - 1) * SIZE)
    for lag in (1, 2, 7):
        z = (centred[lag:, 0] * centred[:-lag, 0]).sum() / unit
        assert abs(z) < 5
    assert abs((centred[1:, 0] * centred[1:, 1]).sum() / unit) < 5


def plan_of(groups, **rest):
    return plain_plan(groups=groups, num_rounds=8, sampling_rate=0.2, **rest)


def test_same_key_round_and_group_give_the_same_cohort():
    plan = plan_of(groups_from_shares(900, (1, 2, 3)))
    first, again = (draw_cohorts(plan, 3, KEY) for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    for other in (draw_cohorts(plan, 4, KEY), draw_cohorts(plan, 3, KEY[::-1])):
        assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_known_draw_stays_as_it_is():
    """Cohorts of a fixed key never change, so that a resumed run draws the same cohorts as before."""
    plan = plan_of(groups_from_shares(40, (1, 2)))
    first, second = draw_cohorts(plan, 7, KEY)
    assert first.tolist() == [0, 3, 9, 11, 12, 13, 15]
    assert second.tolist() == [25, 28]


def test_ids_are_those_of_the_group():
    groups = (Group(1.0, [90, 5, 31, 7]), Group(2.0, range(10, 30, 2)))
    plan = plain_plan(groups=groups, num_rounds=1, sampling_rate=1.0)
    listed, ranged = draw_cohorts(plan, 0, KEY)
    assert listed.tolist() == [5, 7, 31, 90]
    assert ranged.tolist() == list(range(10, 30, 2))
    assert listed.dtype == ranged.dtype == np.int64


def test_a_billion_clients_cost_what_the_cohort_costs():
    plan = plain_plan(groups=groups_from_shares(10**9, (1, 2)), num_rounds=1, sampling_rate=1e-7)
    sizes = [len(cohort) for cohort in draw_cohorts(plan, 0, KEY)]
    assert all(10 < size < 120 for size in sizes)


@pytest.mark.parametrize(
    ("round_index", "key", "message"),
    [
        (-1, KEY, "round_index is -1; it must be at least 0"),
        (0, b"short", "the sampling key is 5 long; give 32 secret bytes"),
        (0, "k" * 32, "the sampling key is str long"),
    ],
)
def test_bad_draws_are_told_in_one_line(round_index, key, message):
    with pytest.raises(PrivacyError, match=message):
        draw_cohorts(plan_of(groups_from_shares(9, (1, 2))), round_index, key)
