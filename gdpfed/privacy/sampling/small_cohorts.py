"""Cohorts too small to be summed: how often they are drawn, and plans in which nearly all are too small.

Such a cohort is not summed, but it is charged: it was drawn, and others see that it was small.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_count

signal = late_import("scipy.signal")

MOST_SKIPPED = 0.8


@dataclass(frozen=True)
class SkippedFractions:
    """The expected fraction of a plan's rounds whose cohorts are too small, where all clients can be reached.

    Attributes:
        sums: of every sum of a round: one a group, or a single one where all groups are one sum.
        rounds: of rounds in which nothing is summed.
    """

    sums: tuple[float, ...]
    rounds: float


def skipped_fractions(plan: PrivacyPlan, minimum_cohort: int) -> SkippedFractions:
    """Return how often a cohort of the plan is below `minimum_cohort`, averaged over its rounds."""
    require_count("minimum_cohort", minimum_cohort)
    starts = {0}
    for group in plan.groups:
        starts |= set(accumulate(round_range.num_rounds for round_range in group.ranges[:-1]))
    edges = [*sorted(starts), plan.num_rounds]
    sums = np.zeros(1 if plan.one_sum else len(plan.groups))
    rounds = 0.0
    for start, end in pairwise(edges):
        share = (end - start) / plan.num_rounds
        below = _below(plan, start, minimum_cohort)
        sums += share * np.asarray(below)
        rounds += share * math.prod(below)
    return SkippedFractions(tuple(sums.tolist()), rounds)


def refuse_skipped(plan: PrivacyPlan, minimum_cohort: int) -> None:
    """Refuse a plan of which nearly every round would be charged and nothing be summed.

    Raises PrivacyError where that is expected of more than `MOST_SKIPPED` of the rounds.
    """
    skipped = skipped_fractions(plan, minimum_cohort).rounds
    if skipped > MOST_SKIPPED:
        expected = math.fsum(group.expected_cohort_size for group in plan.groups)
        raise PrivacyError(
            f"with {expected:.1f} of {plan.num_clients} clients expected a round, {100 * skipped:.0f} % of "
            "the rounds would be charged without any sum, their cohorts being below "
            f"secagg.minimum_cohort={minimum_cohort}: raise privacy.sampling_rate={plan.sampling_rate:g} or "
            "dataset.num_clients"
        )


def _below(plan: PrivacyPlan, round_index: int, least: int) -> list[float]:
    """The probability, for every sum of a round, that its cohort is below `least`; groups are independent."""
    sizes = [
        plan.law.size_probabilities(least, group.at(round_index).sampling_rate, len(group.clients))
        for group in plan.groups
    ]
    if plan.one_sum:
        together = sizes[0]
        for each in sizes[1:]:
            together = signal.convolve(together, each)[:least]
        sizes = [together]
    return [min(1.0, math.fsum(each.tolist())) for each in sizes]
