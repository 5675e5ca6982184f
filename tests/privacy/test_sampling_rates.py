from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from gdpfed.errors import PrivacyError
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.sampling_rates import closed_form_sampling_rates, optimal_sampling_rates

FMNIST = {"sampling_rate": 0.02, "delta": 6000**-1.1}
TRAINING = {"num_rounds": 50, "local_steps": 5, "learning_rate": 0.1}


def problem_1(rates, epsilons, sizes, *, sampling_rate, delta, num_rounds, local_steps, learning_rate, phi):
    """Return the objective of the paper's Problem 1, which optimises sampling rates, term by term."""
    rates, epsilons, sizes = (np.asarray(v, dtype=float) for v in (rates, epsilons, sizes))
    cohorts = rates * sizes
    omega = cohorts**2 / np.sum(cohorts**2) / (sampling_rate * np.sum(sizes))
    sigma2 = 7 * rates**2 * num_rounds * (epsilons - 2 * np.log(delta)) / epsilons**2
    mu4 = 32 * learning_rate * local_steps + learning_rate + learning_rate / local_steps
    eta_tau = learning_rate * local_steps
    error = 4 * omega**2 * sigma2**2 / (eta_tau * mu4 * cohorts**2) ** 2 if phi else np.zeros_like(omega)
    error = np.minimum(error, 1.0)
    noise = 4 / eta_tau * (1 - np.sqrt(error)) * omega * sigma2 / cohorts**2
    return float(np.sum(omega * (mu4 * (1 + error) + noise)))


def check(epsilons, sizes, setting, training=TRAINING, *, sparsified=True, **bounds):
    ends = pairwise(accumulate(sizes, initial=0))
    groups = [Group(epsilon, range(*each)) for epsilon, each in zip(epsilons, ends, strict=True)]
    return optimal_sampling_rates(groups, sparsified=sparsified, **setting, **training, **bounds)


@pytest.mark.parametrize("sparsified", [False, True])
@pytest.mark.parametrize(
    ("setting", "training", "percent"),
    [
        (FMNIST, TRAINING, (0.63, 1.83, 3.54)),
        (
            {"sampling_rate": 0.05, "delta": 6000**-1.1},
            {"num_rounds": 100, "local_steps": 25, "learning_rate": 0.1},
            (1.57, 4.58, 8.85),
        ),
    ],
)
def test_published_optima(setting, training, percent, sparsified):
    rates = check((0.5, 1.5, 3.0), (2000,) * 3, setting, training, sparsified=sparsified)
    assert [100 * rate for rate in rates] == pytest.approx(percent, abs=0.005)
    assert rates == pytest.approx(
        closed_form_sampling_rates((0.5, 1.5, 3.0), (2000,) * 3, **setting), rel=1e-6
    )


budgets_and_sizes = st.integers(2, 8).flatmap(
    lambda count: st.tuples(
        st.lists(st.floats(0.1, 20), min_size=count, max_size=count),
        st.lists(st.integers(20, 5000), min_size=count, max_size=count),
    )
)


@settings(max_examples=150, deadline=None)
@given(budgets_and_sizes, st.floats(0.005, 0.3), st.booleans())
def test_the_closed_form_is_met_wherever_it_fits(groups, rate, sparsified):
    epsilons, sizes = groups
    setting = {"sampling_rate": rate, "delta": sum(sizes) ** -1.1}
    floor = 1e-3 * rate
    rates = check(epsilons, sizes, setting, sparsified=sparsified, min_sampling_rate=floor)
    expected = closed_form_sampling_rates(epsilons, sizes, **setting)
    assert np.dot(rates, sizes) == pytest.approx(rate * sum(sizes), rel=1e-9)
    assert all(floor <= found <= 1 for found in rates)
    if min(expected) >= floor and max(expected) <= 1 and _noise_is_moderate(epsilons, sizes, setting):
        assert rates == pytest.approx(expected, rel=1e-6)


def _noise_is_moderate(epsilons, sizes, setting):
    """Return whether each group's noise is so low that the paper's Problem 1 has one optimum."""
    mu4 = 16 + 0.1 + 0.02
    cohort = setting["sampling_rate"] * sum(sizes)
    slopes = [7 * 50 * (e - 2 * np.log(setting["delta"])) / e**2 for e in epsilons]
    return all(2 / (0.5 * mu4) * s / n**2 / cohort < 2 / 3 for s, n in zip(slopes, sizes, strict=True))


def test_extreme_budgets_and_eight_unequal_groups():
    epsilons, sizes = (0.1, 0.3, 0.5, 1, 2, 5, 10, 20), (10, 50, 30, 70, 20, 40, 10, 60)
    setting = {"sampling_rate": 0.3, "delta": 290**-1.1}
    for sparsified in (False, True):
        rates = check(epsilons, sizes, setting, sparsified=sparsified, min_sampling_rate=1e-3)
        assert rates == pytest.approx(closed_form_sampling_rates(epsilons, sizes, **setting), rel=1e-6)


@pytest.mark.parametrize("sparsified", [False, True])
@pytest.mark.parametrize(
    ("epsilons", "sizes", "rate", "floor"),
    [
        ((0.1, 20.0), (100, 300), 0.05, 0.001),
        ((0.5, 1.5, 3.0), (2000,) * 3, 0.02, 0.01),
        ((0.5, 1.5, 3.0), (2000,) * 3, 0.6, 0.05),
        ((0.5, 1.5, 3.0), (100, 4000, 200), 0.9, 0.0),
        ((1.0, 3.0, 6.0), (120,) * 3, 0.5, 0.3),
    ],
)
def test_where_bounds_bind_no_feasible_point_is_better(epsilons, sizes, rate, floor, sparsified):
    setting = {"sampling_rate": rate, "delta": sum(sizes) ** -1.1}
    rates = np.array(check(epsilons, sizes, setting, sparsified=sparsified, min_sampling_rate=floor))
    assert np.dot(rates, sizes) == pytest.approx(rate * sum(sizes), rel=1e-9)
    assert np.all((rates >= floor) & (rates <= 1))
    assert np.any(np.isclose(rates, floor, rtol=1e-6)) or np.any(rates > 1 - 1e-6)

    def cost(point):
        return problem_1(point, epsilons, sizes, **setting, **TRAINING, phi=sparsified)

    found, generator = cost(rates), np.random.default_rng(1)
    for size in np.geomspace(1e-4, 1, 2000):
        other = rates * np.exp(size * generator.normal(size=len(sizes)))
        scaled = np.clip(other * rate * sum(sizes) / np.dot(other, sizes), floor, 1.0)
        if np.isclose(np.dot(scaled, sizes), rate * sum(sizes), rtol=1e-12):
            assert found <= cost(scaled) * (1 + 1e-13)


def test_a_global_search_over_two_groups_finds_nothing_better():
    """For six clients in two groups and very large noise, a global search finds no better sampling rates."""
    epsilons, sizes, setting = (1.0, 3.0), (3, 3), {"sampling_rate": 0.5, "delta": 0.1}
    rates = check(epsilons, sizes, setting, min_sampling_rate=0.1)

    def cost(first):
        point = (first[0], 1.0 - first[0])
        return problem_1(point, epsilons, sizes, **setting, **TRAINING, phi=True)

    best = differential_evolution(cost, [(0.1, 0.9)], seed=1, tol=1e-12).fun
    assert cost(rates[:1]) <= best * (1 + 1e-9)


def test_one_point_feasible_sets():
    assert check((1.0,), (10,), {"sampling_rate": 0.3, "delta": 0.01}) == (0.3,)
    assert check((1.0, 2.0), (10, 10), {"sampling_rate": 1.0, "delta": 0.01}) == (1.0, 1.0)
    same = {"sampling_rate": 0.3, "delta": 0.01}
    assert check((1.0, 2.0), (10, 10), same, min_sampling_rate=0.3) == (0.3, 0.3)


def test_an_unconverged_solution_is_refused(monkeypatch):
    module = "gdpfed.privacy.planning.sampling_rates."
    monkeypatch.setattr(module + "_descend", lambda problem, start: start)
    monkeypatch.setattr(module + "_polish", lambda problem, shares: shares)
    with pytest.raises(PrivacyError, match=r"did not converge .* choose uniform sampling rates"):
        check((0.5, 1.5, 3.0), (2000,) * 3, FMNIST, min_sampling_rate=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: check((1, 2), (9, 9), {**FMNIST, "sampling_rate": 1.5}), "would need more than all clients"),
        (lambda: check((1, 2), (9, 9), FMNIST, min_sampling_rate=0.03), "choose at most 0.02"),
        (lambda: check((1, 2), (9, 9), FMNIST, min_sampling_rate=-1), "min_sampling_rate is -1"),
        (
            lambda: closed_form_sampling_rates((1, 2), (9,), **FMNIST),
            "group_sizes has 1 entries for 2 groups",
        ),
        (lambda: check((1, 0), (9, 9), FMNIST), "epsilon is 0"),
        (lambda: closed_form_sampling_rates((1, 2), (9, 0), **FMNIST), "size is 0; it must be at least 1"),
        (lambda: check((), (), FMNIST), "epsilons is empty"),
        (lambda: check((1, 2), (9, 9), FMNIST, {**TRAINING, "learning_rate": 0}), "learning_rate is 0"),
        (lambda: check((1, 2), (9, 9), FMNIST, {**TRAINING, "local_steps": 0}), "local_steps is 0"),
        (lambda: check((1, 2), (9, 9), {**FMNIST, "delta": 2}), "delta is 2"),
    ],
)
def test_infeasible_problems_are_told_in_one_line(make, message):
    with pytest.raises(PrivacyError, match=message):
        make()
