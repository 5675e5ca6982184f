"""The rules of ALI-DPFL: how many local steps between two rounds, from public numbers only.

Source: the appendix of "ALI-DPFL: Differentially Private Federated Learning with Adaptive Local Iterations",
proof of Theorem 1, corrected: docs/records.md says where and why.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """What the bounds on the loss are made of.

    Attributes:
        smoothness: L of every client's loss.
        strong_convexity: mu.
        heterogeneity: Gamma = F* - sum_i p_i F_i*, at least 0.
        initial_distance: Delta_1, the squared distance of the first model from the best one.
        clipping_norm: C, which must be above every gradient for the bound to hold.
        step_noise: N = sigma^2 C^2 d / B^2, the mean squared norm of a client's noise in a step.
        noise_share: sum_i p_i^2: what averaging over clients leaves of N.
    """

    smoothness: float
    strong_convexity: float
    heterogeneity: float
    initial_distance: float
    clipping_norm: float
    step_noise: float
    noise_share: float


def loss_bound(known: Convergence, local_steps: int, num_steps: int) -> float:
    """Return a bound on E F(w_T) - F* after T = `num_steps`, tau = `local_steps` of them between rounds.

    (L / 2) (4 A / mu^2 + (g0 + 1) Delta_1) / (g0 + T) with g0 = 2 L / mu and
    A = 2 ((tau - 1) C + sqrt((tau - 1) N))^2 + 2 C^2 + 2 L Gamma + N sum_i p_i^2.
    """
    tau, norm = local_steps, known.clipping_norm
    drift = (tau - 1) * norm + math.sqrt((tau - 1) * known.step_noise)
    start = 2 * known.smoothness / known.strong_convexity
    disturbance = (
        2 * drift**2
        + 2 * norm**2
        + 2 * known.smoothness * known.heterogeneity
        + known.step_noise * known.noise_share
    )
    numerator = 4 * disturbance / known.strong_convexity**2 + (start + 1) * known.initial_distance
    return known.smoothness / 2 * numerator / (start + num_steps)


def steps_of_bound(
    known: Convergence, *, num_rounds: int, most_local_steps: int, steps_allowed: int | None = None
) -> int:
    """Return the tau from 1 to `most_local_steps` with the least `loss_bound` after min(R tau, X) steps."""

    def bound(tau: int) -> float:
        steps = num_rounds * tau
        return loss_bound(known, tau, steps if steps_allowed is None else min(steps, steps_allowed))

    return min(range(1, most_local_steps + 1), key=bound)


def steps_as_printed(known: Convergence, learning_rate: float) -> float:
    """Return tau by the source's formula, for comparison: its proof does not hold.

    sqrt(1 + (4 / mu^2 + 3 C^2 + 2 Gamma / eta + N) / ((2 + eta mu) Z)) with Z = C^2 + N.
    """
    mu, square = known.strong_convexity, known.clipping_norm**2
    rest = 4 / mu**2 + 3 * square + 2 * known.heterogeneity / learning_rate + known.step_noise
    return math.sqrt(1 + rest / ((2 + learning_rate * mu) * (square + known.step_noise)))
