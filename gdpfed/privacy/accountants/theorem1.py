"""Closed-form noise for an epsilon, by Theorem 1 of the GDPFed paper, and the conditions that it needs.

Source: Xu, Hu, Kotevska, "Optimal Client Sampling in Federated Learning with Client-Level
Heterogeneous Differential Privacy", Theorem 1. It rests on a bound of the Renyi divergence of the
subsampled Gaussian, rho(alpha) <= 3.5 q^2 alpha / sigma^2 a round, which holds only for
sigma^2 >= 0.7 and small orders alpha; both conditions are checked here and never assumed.
"""

import math

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.events import Event, SampledGaussian
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
    require_positive,
    require_rate,
)

optimize = late_import("scipy.optimize")

MIN_VARIANCE_MULTIPLIER = 0.7
RENYI_CONSTANT = 3.5
REMEDY = "use the rdp or pld accountant"


def theorem1_variance(*, sampling_rate: float, num_rounds: int, epsilon: float, delta: float) -> float:
    """Return the noise variance for an epsilon by the GDPFed paper's Theorem 1, without checking conditions.

    The noise *variance* multiplier: the sum's noise has variance sigma_m^2 C^2 per coordinate.
    This is a formula only; `check_theorem1` says whether it guarantees anything.
    """
    require_rate("sampling_rate", sampling_rate)
    require_count("num_rounds", num_rounds)
    require_positive("epsilon", epsilon)
    log_inverse_delta = -math.log(require_delta(delta))
    factor = 2 * RENYI_CONSTANT * sampling_rate**2 * num_rounds
    return factor * (epsilon + 2 * log_inverse_delta) / epsilon**2


def check_theorem1(
    *,
    noise_variance_multiplier: float,
    sampling_rate: float,
    epsilon: float,
    delta: float,
    clipping_norm: float = 1.0,
) -> None:
    """Raise PrivacyError if the GDPFed paper's Theorem 1 does not hold for a noise variance sigma^2.

    The error names the condition and its value.
    The conditions are sigma^2 >= 0.7 and, with alpha = 1 + 2 ln(1/delta) / eps,
    alpha <= (2/3) c sigma^2 ln(1 / (q alpha (1 + sigma^2))) + 1. The paper has c = C^2. The bound
    behind the theorem is free of units, i.e. has c = 1, so a clipping norm above one, which would
    loosen the condition, is not allowed to: c = min(1, C^2) satisfies both.
    """
    if not noise_variance_multiplier >= MIN_VARIANCE_MULTIPLIER:
        raise PrivacyError(
            f"theorem1 needs sigma^2 >= 0.7, but epsilon {epsilon:g} at sampling rate "
            f"{sampling_rate:g} gives sigma^2 = {noise_variance_multiplier:.4g}; {REMEDY}"
        )
    order = 1 - 2 * math.log(delta) / epsilon
    slack = _order_slack(order, noise_variance_multiplier, sampling_rate, clipping_norm)
    if not slack >= 0:
        raise PrivacyError(
            f"theorem1 needs alpha <= (2/3) min(1, C^2) sigma^2 ln(1/(q alpha (1 + sigma^2))) + 1 = "
            f"{order + slack:.4g}, but epsilon {epsilon:g} gives alpha = {order:.4g}; {REMEDY}"
        )


def theorem1_epsilon(mechanism: Event, num_rounds: int, delta: float) -> float:
    """Return the epsilon of `num_rounds` rounds by the GDPFed paper's Theorem 1, solved for epsilon.

    Where the formula's order alpha is too large for the condition, the largest order that meets it is used in
    the theorem's own step, eps = 3.5 q^2 alpha T / sigma^2 + ln(1/delta)/(alpha - 1); so the first rounds of
    a long training have a figure too. Raises PrivacyError for sampling or adjacency that the theorem does not
    cover, and where no order meets the conditions.
    """
    if not isinstance(mechanism, SampledGaussian):
        raise PrivacyError(f"theorem1 does not cover {mechanism.kind}; {REMEDY}")
    if mechanism.sampling != "poisson" or mechanism.adjacency != "zero_out":
        raise PrivacyError(
            f"theorem1 does not cover {mechanism.sampling} sampling under {mechanism.adjacency} "
            "adjacency; use poisson with zero_out, or the rdp accountant for fixed_size, "
            "or the pld accountant for poisson with replace_one"
        )
    variance = mechanism.noise_multiplier**2
    rate, clipping_norm = mechanism.sampling_rate, mechanism.clipping_norm
    log_inverse_delta = -math.log(delta)
    spent = 2 * RENYI_CONSTANT * rate**2 * num_rounds
    if not variance >= MIN_VARIANCE_MULTIPLIER:
        raise PrivacyError(f"theorem1 needs sigma^2 >= 0.7, got {variance:.4g}; {REMEDY}")
    root = math.sqrt(spent**2 + 8 * variance * spent * log_inverse_delta)
    epsilon = (spent + root) / (2 * variance)
    order = 1 + 2 * log_inverse_delta / epsilon
    if _order_slack(order, variance, rate, clipping_norm) >= 0:
        return epsilon
    # The largest order that the theorem allows.
    smallest = 1 + 1e-9
    if _order_slack(smallest, variance, rate, clipping_norm) <= 0:
        raise PrivacyError(
            f"theorem1 holds for no order at sampling rate {rate:g} and sigma^2 = {variance:.4g}, "
            f"as q (1 + sigma^2) is not below 1; {REMEDY}"
        )
    largest = 1 / (rate * (1 + variance)) + 1
    allowed = float(optimize.brentq(_order_slack, smallest, largest, args=(variance, rate, clipping_norm)))
    order = allowed * (1 - 1e-9)
    return spent * order / (2 * variance) + log_inverse_delta / (order - 1)


def _order_slack(order: float, variance: float, rate: float, clipping_norm: float) -> float:
    scale = 2 / 3 * min(1.0, clipping_norm**2) * variance
    return 1 - scale * math.log(rate * order * (1 + variance)) - order
