"""Extends a privacy plan by counts on held-out records, or by adaptive clipping."""

import math
from dataclasses import replace

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.plan import AdaptiveClipping, PrivacyPlan
from gdpfed.privacy.sums_once import RECORD_MOVES, HeldOutCounts

SLACK = 1e-9
"""The noise is larger by this share, so that rounding leaves epsilon within the budget."""
MOST_SHARE = math.sqrt(0.5)
"""Of a contribution's norm for the indicator: beyond it the indicator would take more than half of z^-2."""


def with_held_out(plan: PrivacyPlan, *, by_party: bool = False) -> PrivacyPlan:
    """Return the plan with noised counts of right answers on held-out records at the end of the run.

    Where records are protected, one sum follows the last round. A record that is held out pays for it alone,
    up to the least budget of the plan. Where clients are protected, the last round of the plan does not
    train: clients send shares of their records in place of updates, of the same norm, under the same noise,
    so the round costs what it would.

    `by_party` gives each client a block of its own in the sum of counts. A record is in one block, so it
    moves the sum as far as without. Raises PrivacyError for mechanisms by which neither is proved.
    """
    if plan.about_records and plan.mechanism.kind == "record_sums":
        if not plan.sums_hidden:
            raise PrivacyError(
                "run.evaluation=nodes promises that counts are seen in one sum, and secagg=off shows those "
                "of each client: use secagg=pairwise, or run.evaluation=server"
            )
        if (parties := max(records.parties for records in records_of(plan))) > 1:
            raise PrivacyError(
                f"run.evaluation=nodes is not proved where a person may be at {parties} parties, since one "
                "party may count a person on whose rows another party trains, which no budget covers: use "
                "run.evaluation=server"
            )
        budget = min(
            group.epsilon for m in range(len(plan.groups)) for group in record_groups(plan.mechanism, m)
        )
        sigma = gaussian_sigma(budget, plan.delta) * (1 + SLACK)
        counts = HeldOutCounts(
            epsilon=gaussian_epsilon(sigma, plan.delta),
            noise_stddev=sigma * RECORD_MOVES,
            blocks=plan.num_clients if by_party else 1,
        )
        return replace(plan, held_out=counts)
    if by_party:
        raise PrivacyError(
            "run.evaluation_by_party=true is for runs that protect records: noise that hides a whole client "
            "would leave nothing of the figures of that client; leave it out"
        )
    if plan.mechanism.kind == "sampled_sums" and plan.adaptive_clipping is None and plan.num_rounds > 1:
        works = (*plan.works, "held_out_rates")
        return replace(plan, mechanism=replace(plan.mechanism, works=works))
    raise PrivacyError(
        f"run.evaluation=nodes is proved for sums over sampled clients with privacy.clipping=fixed and two "
        f"rounds or more, and for steps on records, not for this plan of {plan.mechanism.kind} and "
        f"{plan.num_rounds} rounds: use run.evaluation=server"
    )


def with_adaptive_clipping(
    plan: PrivacyPlan, *, quantile: float, learning_rate: float, fraction_noise: float
) -> PrivacyPlan:
    """Return the plan with adaptive clipping: each sum also counts the updates that need no clipping.

    A client of group m sends (clip(Delta_i, C_m), h_m) with h_m = +- rho B_m, of norm at most
    B_m = C_m / sqrt(1 - rho^2). The sum's noise s grows by the same factor, so s / B_m is what s / C_m was,
    and so is every epsilon. The released fraction 1/2 + sum_i h_i / (2 rho sum_m r_m B_m) has noise of
    standard deviation `fraction_noise` = nu if rho = s / (2 nu sum_m r_m C_m).

    This is z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) of Andrew, Thakkar, McMahan, Ramaswamy, "Differentially
    Private Learning with Adaptive Clipping", arXiv:1905.03871, Theorem 1, with one factor for all norms, z =
    s / B, z_Delta = s / C, and sigma_b = s / (2 rho B) the noise of a count of clients. Raises PrivacyError
    for several sums a round, and where the indicator would need more than half of z^-2.
    """
    if not plan.one_sum and len(plan.groups) > 1:
        raise PrivacyError(
            "adaptive clipping has one factor for all norms, and so needs one sum of all groups: "
            "use a method with one, such as dp_sum"
        )
    heard = math.fsum(group.expected_cohort_size * group.clipping_norm for group in plan.groups)
    stddev = max(group.noise_stddev for group in plan.groups)
    share = stddev / (2 * fraction_noise * heard)
    if not share <= MOST_SHARE:
        # The least noise of the fraction for which there is enough, rounded up to two digits.
        least = stddev / (2 * MOST_SHARE * heard)
        unit = 10.0 ** (math.floor(math.log10(least)) - 1)
        rounded = math.ceil(least / unit) * unit
        raise PrivacyError(
            f"privacy.clipping_noise={fraction_noise:g} would leave less than half of the budget to updates: "
            f"use privacy.clipping_noise={rounded:g} or more, a larger privacy.sampling_rate, or "
            "privacy.clipping=fixed"
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
