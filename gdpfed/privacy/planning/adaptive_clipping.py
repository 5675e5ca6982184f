"""Adaptive clipping, paid for in the plan: a coordinate more in the one sum, and room for it in every norm.

Source: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS
2021, arXiv:1905.03871, Algorithm 1 and Theorem 1, with one factor for the norms of all groups.
"""

import math
from dataclasses import replace

from gdpfed.errors import PrivacyError
from gdpfed.privacy.plan import AdaptiveClipping, PrivacyPlan

MOST_SHARE = math.sqrt(0.5)
"""Of a contribution's norm for the indicator: beyond it the indicator would take more than half of z^-2."""


def with_adaptive_clipping(
    plan: PrivacyPlan, *, quantile: float, learning_rate: float, fraction_noise: float
) -> PrivacyPlan:
    """Return the plan whose one sum also says which part of the clients is within its norm.

    A client of group m sends (clip(Delta_i, C_m), h_m) with h_m = +- rho B_m, of norm at most
    B_m = C_m / sqrt(1 - rho^2). The sum's noise s grows by the same factor, so s / B_m is what s / C_m was,
    and so is every epsilon. The released fraction 1/2 + sum_i h_i / (2 rho sum_m r_m B_m) has noise of
    standard deviation `fraction_noise` = nu if rho = s / (2 nu sum_m r_m C_m).

    This is the source's z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), with z = s / B, z_Delta = s / C, and
    sigma_b = s / (2 rho B) the noise of a count of clients.

    Raises PrivacyError for several sums a round, and where the indicator would need more than half of z^-2.
    """
    if not plan.one_sum and len(plan.groups) > 1:
        raise PrivacyError(
            "adaptive clipping has one factor for all norms, and so needs one sum of all groups"
        )
    heard = math.fsum(group.expected_cohort_size * group.clipping_norm for group in plan.groups)
    stddev = max(group.noise_stddev for group in plan.groups)
    share = stddev / (2 * fraction_noise * heard)
    if share > MOST_SHARE:
        raise PrivacyError(
            f"privacy.clipping_noise={fraction_noise:g} would leave less than half of the budget to updates: "
            f"use privacy.clipping_noise={_least(stddev, heard):g} or more, a larger privacy.sampling_rate, "
            "or privacy.clipping=fixed"
        )
    adaptive = AdaptiveClipping(quantile=quantile, learning_rate=learning_rate, indicator_share=share)
    groups = tuple(
        replace(
            group,
            ranges=tuple(
                replace(each, clipping_norm=each.clipping_norm / adaptive.update_share)
                for each in group.ranges
            ),
        )
        for group in plan.groups
    )
    return replace(plan, groups=groups, adaptive_clipping=adaptive)


def _least(stddev: float, heard: float) -> float:
    """The least noise of the fraction that is taken, rounded up to two digits."""
    value = stddev / (2 * MOST_SHARE * heard)
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
