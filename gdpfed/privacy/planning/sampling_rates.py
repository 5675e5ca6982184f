"""Chooses each group's sampling rate so that noise harms training least (the GDPFed paper's Problem 1).

Source: Xu, Hu, Kotevska, "Optimal Client Sampling in Federated Learning with Client-Level
Heterogeneous Differential Privacy", Problem 1 with Remark 3's sparsification error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.theorem1 import theorem1_variance
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
    require_length,
    require_number,
    require_positive,
    require_rate,
)

optimize = late_import("scipy.optimize")

Vector = npt.NDArray[np.float64]

STATIONARITY_TOLERANCE = 1e-7
ACTIVE_BOUND_TOLERANCE = 1e-6


@dataclass(frozen=True)
class _Problem:
    """The GDPFed paper's Problem 1 (the best sampling rates), as a problem in the groups' shares of a cohort.

    The shares are w_m = r_m / (q n), and sum to one.
    With squared_participation weights p_m = q n omega_m = w_m^2 / sum_j w_j^2 and Theorem 1's
    sigma_m^2 = a_m q_m^2 the term omega_m sigma_m^2 / r_m^2 is p_m times a constant. So are
    sqrt(phi_m) = s_m = c_m p_m. As 2 mu4 s_m = mu5 omega_m sigma_m^2 / r_m^2, the objective is
    (mu4 / (q n)) sum_m p_m (1 + 2 s_m - s_m^2) with Remark 3's phi, and (mu4 / (q n)) sum_m p_m
    (1 + 2 s_m) with phi = 0. The constant part is dropped, as it hides the rest (1e-5 of it).
    """

    noise_slopes: Vector
    lower: Vector
    upper: Vector
    sparsified: bool

    def objective(self, shares: Vector) -> float:
        """Return the harm of noise to training at these shares of a cohort; the best rates minimise it.

        It is sum_m p_m (2 s_m - s_m^2) if `sparsified`, else sum_m 2 p_m s_m.
        """
        weights = shares**2 / np.sum(shares**2)
        errors = self.noise_slopes * weights
        if not self.sparsified:
            return float(np.sum(2 * weights * errors))
        errors = np.minimum(errors, 1.0)  # 1 - sqrt(phi) stays within [0, 1]
        return float(np.sum(weights * (2 * errors - errors**2)))

    def marginal_costs(self, shares: Vector) -> Vector:
        """Return h_m, the derivative of the objective by p_m, group m's weight in the model update."""
        weights = shares**2 / np.sum(shares**2)
        errors = self.noise_slopes * weights
        if not self.sparsified:
            return 4 * errors
        return np.where(errors < 1.0, 4 * errors - 3 * errors**2, 1.0)

    def gradient(self, shares: Vector) -> Vector:
        """Return the gradient of the objective with respect to the groups' shares of a cohort.

        It is 2 w_m (h_m - sum_j p_j h_j) / sum_j w_j^2.
        """
        total = np.sum(shares**2)
        costs = self.marginal_costs(shares)
        return 2 * shares * (costs - np.sum(shares**2 * costs) / total) / total


def closed_form_sampling_rates(
    epsilons: Sequence[float], group_sizes: Sequence[int], *, sampling_rate: float, delta: float
) -> tuple[float, ...]:
    """Return sampling rates with mean q that are proportional to eps_m / sqrt(eps_m + 2 ln(1/delta)).

    They are the paper's optimum (Problem 1) wherever it lies within [q_min, 1] for every group; bounds are
    not applied here, so a rate above one means that they bind.
    """
    if len(epsilons) == 0:
        raise PrivacyError("epsilons is empty; give one budget for each group")
    require_length("group_sizes", group_sizes, len(epsilons))
    for epsilon in epsilons:
        require_positive("a group's epsilon", epsilon)
    for size in group_sizes:
        require_count("a group's size", size)
    require_rate("sampling_rate", sampling_rate)
    log_inverse_delta = -math.log(require_delta(delta))
    slopes = [eps / math.sqrt(eps + 2 * log_inverse_delta) for eps in epsilons]
    cohort = math.fsum(slope * size for slope, size in zip(slopes, group_sizes, strict=True))
    scale = sampling_rate * sum(group_sizes) / cohort
    return tuple(scale * slope for slope in slopes)


def optimal_sampling_rates(
    groups: Sequence[Group],
    *,
    sampling_rate: float,
    delta: float,
    num_rounds: int,
    local_steps: int,
    learning_rate: float,
    sparsified: bool,
    min_sampling_rate: float = 0.0,
) -> tuple[float, ...]:
    """Return sampling rates with mean q at which noise harms training least (the GDPFed paper's Problem 1).

    They are within [q_min, 1].
    Weights are squared_participation; sigma_m^2 is Theorem 1's formula as a proxy, without its validity
    check; phi is Remark 3's if `sparsified`, else 0. `learning_rate` is eta and `local_steps` tau of the
    clients' SGD. Raises PrivacyError where no rates fit the bounds, and where the solver ends at a point that
    does not meet the optimality conditions.
    """
    check_feasible(require_rate("sampling_rate", sampling_rate), min_sampling_rate)
    require_count("local_steps", local_steps)
    require_positive("learning_rate", learning_rate)
    epsilons, group_sizes = [group.epsilon for group in groups], [group.size for group in groups]
    free = closed_form_sampling_rates(epsilons, group_sizes, sampling_rate=sampling_rate, delta=delta)
    if len(groups) == 1 or sampling_rate in (1.0, min_sampling_rate):
        return (float(sampling_rate),) * len(groups)
    sizes = np.asarray(group_sizes, dtype=np.float64)
    cohort = sampling_rate * float(sizes.sum())
    variances = [
        theorem1_variance(sampling_rate=1.0, num_rounds=num_rounds, epsilon=eps, delta=delta)
        for eps in epsilons
    ]
    mu4 = 32 * learning_rate * local_steps + learning_rate + learning_rate / local_steps
    kappa = 2 / (learning_rate * local_steps * mu4)
    problem = _Problem(
        noise_slopes=kappa * np.asarray(variances) / (sizes**2 * cohort),
        lower=min_sampling_rate * sizes / cohort,
        upper=sizes / cohort,
        sparsified=sparsified,
    )
    shares = _best_shares(problem, np.asarray(free) * sizes / cohort, sizes / sizes.sum())
    rates = np.clip(shares * cohort / sizes, min_sampling_rate, 1.0)
    return tuple(float(rate) for rate in rates)


def fit_bounds(shares: Vector, lower: Vector, upper: Vector) -> Vector:
    """Scale the groups' shares of a cohort by one factor and clip them to bounds, so that they sum to 1."""

    def excess(log_factor: float) -> float:
        return float(np.sum(np.clip(shares * math.exp(log_factor), lower, upper))) - 1.0

    log_factor = optimize.brentq(excess, -50.0, 50.0, xtol=1e-15)
    return np.clip(shares * math.exp(log_factor), lower, upper)


def _best_shares(problem: _Problem, free: Vector, proportional: Vector) -> Vector:
    """Minimise the objective from several starting points; return the best shares of the cohort.

    Without phi, and with it while s_m < 2/3, one start is enough; beyond, Problem 1 is not convex.
    """
    starts = [fit_bounds(free, problem.lower, problem.upper), proportional]
    if problem.sparsified and np.max(problem.noise_slopes) > 2 / 3:
        tilts = 1 + 9 * np.eye(len(free))
        starts += [fit_bounds(proportional * tilt, problem.lower, problem.upper) for tilt in tilts]
    best: Vector | None = None
    worst_residual = 0.0
    for start in starts:
        shares = _polish(problem, _descend(problem, start))
        residual = _stationarity_residual(problem, shares)
        worst_residual = max(worst_residual, residual)
        if residual > STATIONARITY_TOLERANCE:
            continue
        if best is None or problem.objective(shares) < problem.objective(best) * (1 - 1e-12):
            best = shares
    if best is None:
        raise PrivacyError(
            f"Problem 1's solver did not converge (optimality residual {worst_residual:.2g}); "
            "choose uniform sampling rates, or give the rates yourself"
        )
    return best


def _descend(problem: _Problem, start: Vector) -> Vector:
    """Minimise the objective over the groups' shares of a cohort by SLSQP; return the best shares found."""
    scale = problem.objective(start)
    solution = optimize.minimize(
        lambda x: problem.objective(x * start) / scale,
        np.ones_like(start),
        jac=lambda x: problem.gradient(x * start) * start / scale,
        method="SLSQP",
        bounds=list(zip(problem.lower / start, problem.upper / start, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x @ start - 1.0, "jac": lambda _: start},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    shares: Vector = np.clip(solution.x * start, problem.lower, problem.upper)
    return shares


def _polish(problem: _Problem, shares: Vector) -> Vector:
    """Solve the optimality conditions from nearly optimal shares; return these shares if that fails."""
    free = ~(_at_lower(problem, shares) | _at_upper(problem, shares))
    fixed = np.where(_at_upper(problem, shares), problem.upper, problem.lower)
    if not free.any():
        return shares
    start = shares[free]
    scale = float(np.max(problem.marginal_costs(shares)))

    def complete(unknowns: Vector) -> Vector:
        full = fixed.copy()
        full[free] = unknowns[:-1] * start
        return full

    def conditions(unknowns: Vector) -> Any:
        full = complete(unknowns)
        slopes = problem.gradient(full)[free] / (scale * start)
        return np.append(slopes - unknowns[-1] / start, np.sum(full) - 1.0)

    guess = np.append(np.ones_like(start), np.mean(problem.gradient(shares)[free]) / scale)
    solution = optimize.root(conditions, guess, method="hybr", options={"xtol": 1e-14})
    polished = complete(solution.x)
    inside = np.all((polished >= problem.lower) & (polished <= problem.upper))
    better = _stationarity_residual(problem, polished) < _stationarity_residual(problem, shares)
    return polished if inside and better else shares


def _stationarity_residual(problem: _Problem, shares: Vector) -> float:
    """Return how far shares of a cohort are from the conditions of an optimum (KKT); 0 is exact.

    The slope g_m of the objective is one value lambda for free groups, at least lambda for groups
    at their lower bound, at most lambda at the upper one; and the shares sum to one.
    """
    lower, upper = _at_lower(problem, shares), _at_upper(problem, shares)
    free = ~(lower | upper)
    slopes = problem.gradient(shares)
    if free.any():
        multiplier = float(np.mean(slopes[free]))
    else:
        multiplier = float(np.max(slopes[upper])) if upper.any() else float(np.min(slopes[lower]))
    gap = slopes - multiplier
    gap = np.where(lower, np.minimum(gap, 0.0), np.where(upper, np.maximum(gap, 0.0), gap))
    unit = 2 * np.max(problem.marginal_costs(shares)) / np.sum(shares**2)
    relative = np.abs(gap) / (unit * np.maximum(shares, 1e-12))
    return float(max(np.max(relative), abs(np.sum(shares) - 1.0)))


def _at_lower(problem: _Problem, shares: Vector) -> npt.NDArray[np.bool_]:
    return shares <= problem.lower * (1 + ACTIVE_BOUND_TOLERANCE)


def _at_upper(problem: _Problem, shares: Vector) -> npt.NDArray[np.bool_]:
    return shares >= problem.upper * (1 - ACTIVE_BOUND_TOLERANCE)


def check_feasible(sampling_rate: float, min_sampling_rate: float) -> None:
    """Raise PrivacyError if the minimum sampling rate is outside [0, 1] or above the mean rate."""
    if not 0.0 <= require_number("min_sampling_rate", min_sampling_rate) <= 1.0:
        raise PrivacyError(f"min_sampling_rate is {min_sampling_rate}; choose it within [0, 1]")
    if min_sampling_rate > sampling_rate:
        raise PrivacyError(
            f"privacy.min_sampling_rate={min_sampling_rate} in every group needs more clients than "
            f"privacy.sampling_rate={sampling_rate} allows; choose at most {sampling_rate}"
        )
