"""Computes the distribution of a plan's cohort sizes, and how often a cohort is too small for a sum."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.cohorts import TELLING_SHARE, draws_secret_blocks, fills_cohorts
from gdpfed.privacy.validation import require_count

MOST_SKIPPED = 0.8

signal = late_import("scipy.signal")


@dataclass(frozen=True)
class SkippedFractions:
    """The expected share of rounds that are skipped because their cohorts are too small to sum.

    Attributes:
        sums: of every sum of a round: one a group, or a single one where all groups are one sum.
        rounds: of rounds in which all of them are too small.
    """

    sums: tuple[float, ...]
    rounds: float


def skipped_fractions(plan: PrivacyPlan, minimum_cohort: int) -> SkippedFractions:
    """Return the expected share of rounds without a sum, given the smallest cohort that is summed.

    Where cohorts are filled up that is never, or always of a group that has fewer clients than a sum needs.
    """
    if not fills_cohorts(plan):
        return small_fractions(plan, minimum_cohort)
    sizes = [len(group.clients) for group in plan.groups]
    sums = [float(size < minimum_cohort) for size in ([sum(sizes)] if plan.one_sum else sizes)]
    return SkippedFractions(tuple(sums), math.prod(sums))


def small_fractions(plan: PrivacyPlan, minimum_cohort: int) -> SkippedFractions:
    """Return the expected fraction of rounds with too small a cohort, for each sum and for all at once."""
    require_count("minimum_cohort", minimum_cohort)
    edges = [*starts_of_ranges(plan), plan.num_rounds]
    sums = np.zeros(1 if plan.one_sum else len(plan.groups))
    rounds = 0.0
    for start, end in pairwise(edges):
        share = (end - start) / plan.num_rounds
        below = _below(plan, start, minimum_cohort)
        sums += share * np.asarray(below)
        rounds += share * math.prod(below)
    return SkippedFractions(tuple(sums.tolist()), rounds)


def starts_of_ranges(plan: PrivacyPlan) -> list[int]:
    """Return the rounds in which some group's sampling rate changes, the first round included."""
    starts = {0}
    for group in plan.groups:
        starts |= set(accumulate(round_range.num_rounds for round_range in group.ranges[:-1]))
    return sorted(starts)


def reveals_turns(
    plan: PrivacyPlan, minimum_cohort: int, round_index: int, there: Sequence[int] | None = None
) -> bool:
    """Whether skipping a round for its small cohort would leak too much on rounds drawn together with it.

    Whoever sees that a cohort is too small, or that it is not, learns where a client is drawn if the others
    alone are fewer than `minimum_cohort`. Else it learns nothing: so that chance, of all rounds together, may
    be `TELLING_SHARE` of delta. `there`: how many clients of each group can be drawn; None for all.
    """
    if not draws_secret_blocks(plan):
        return False
    numbers = [len(group.clients) for group in plan.groups] if there is None else there
    below = _below(plan, round_index, minimum_cohort, [max(0, number - 1) for number in numbers])
    rates = [group.at(round_index).sampling_rate for group in plan.groups]
    # A sum whose clients all take part, or that has none, tells nothing.
    exposed = [number > 0 and rate < 1 for number, rate in zip(numbers, rates, strict=True)]
    if plan.one_sum:
        exposed = [any(exposed)]
    largest = max(chance * each for chance, each in zip(below, exposed, strict=True))
    return largest > TELLING_SHARE * plan.delta / plan.num_rounds


def missing_members(plan: PrivacyPlan, members: Callable[[float, int], int]) -> float:
    """Return how many clients send zeros in a round, on average, to fill up the round's sums.

    `members`: at least how many members a sum has, of how many are drawn on average and can be at most.
    """
    missing = 0.0
    for start, end in pairwise([*starts_of_ranges(plan), plan.num_rounds]):
        clients = [len(group.clients) for group in plan.groups]
        expected = [group.at(start).sampling_rate * len(group.clients) for group in plan.groups]
        if plan.one_sum:
            clients, expected = [sum(clients)], [math.fsum(expected)]
        sizes = list(map(members, expected, clients))
        chances = _size_probabilities(plan, start, max(sizes))
        missing += (end - start) * math.fsum(
            float(chance[:size] @ (size - np.arange(len(chance[:size]))))
            for size, chance in zip(sizes, chances, strict=True)
        )
    return missing / plan.num_rounds


def refuse_skipped(plan: PrivacyPlan, minimum_cohort: int) -> None:
    """Raise PrivacyError if almost all rounds would be skipped because their cohorts are too small to sum.

    Cohorts that are filled up are too small only if their whole group is.

    Raises PrivacyError where that is expected of more than `MOST_SKIPPED` of the rounds, and where rounds are
    drawn ahead and one that is skipped would tell of others.
    """
    if any(reveals_turns(plan, minimum_cohort, start) for start in starts_of_ranges(plan)):
        raise PrivacyError(
            f"with privacy.sampling=allocation a cohort below secagg.minimum_cohort={minimum_cohort} is "
            "skipped. Others can see that, and learn from it in which rounds its clients take part, with a "
            f"chance above {TELLING_SHARE:g} of delta={plan.delta:g}: raise privacy.sampling_rate or "
            "dataset.num_clients, have one sum of all groups, as method=gdpfed_star has, or use "
            "privacy.against=everyone with privacy.sampling=poisson"
        )
    skipped = skipped_fractions(plan, minimum_cohort).rounds
    if skipped > MOST_SKIPPED:
        go = "be charged" if plan.mechanism.small_cohorts_are_charged else "go"
        expected = math.fsum(group.expected_cohort_size for group in plan.groups)
        filled = fills_cohorts(plan)
        always = filled or plan.sampling_rate >= 1
        rate = [] if always else [f"privacy.sampling_rate={plan.sampling_rate:g}"]
        raised = " or ".join([*rate, "dataset.num_clients"])
        more = "" if plan.one_sum else ", or have one sum of all groups, as method=gdpfed_star has"
        if plan.num_clients < minimum_cohort:
            two = ": of a sum of two, each computes what the other has sent" if plan.num_clients == 2 else ""
            raised, more = "dataset.num_clients", f". A sum needs {minimum_cohort} parties{two}"
        raise PrivacyError(
            f"with {expected:.1f} of {plan.num_clients} clients expected in a round, {100 * skipped:.0f} % "
            f"of the rounds would {go} without any sum, since {'groups' if filled else 'cohorts'} are below "
            f"secagg.minimum_cohort={minimum_cohort}: raise {raised}{more}"
        )


def _below(
    plan: PrivacyPlan, round_index: int, least: int, numbers: Sequence[int] | None = None
) -> list[float]:
    """Return the probability, for every sum of a round, that its cohort is smaller than `least`."""
    sizes = _size_probabilities(plan, round_index, least, numbers)
    return [min(1.0, math.fsum(size.tolist())) for size in sizes]


def _size_probabilities(
    plan: PrivacyPlan, round_index: int, least: int, numbers: Sequence[int] | None = None
) -> list[npt.NDArray[np.float64]]:
    """Return, for every sum of a round, the probabilities of cohort sizes 0 to `least` - 1.

    Groups are independent.
    `numbers`: how many clients of each group can be drawn; None for all.
    """
    rates = [group.at(round_index).sampling_rate for group in plan.groups]
    numbers = [len(group.clients) for group in plan.groups] if numbers is None else numbers
    sizes = [plan.law.size_probabilities(least, *each) for each in zip(rates, numbers, strict=True)]
    if plan.one_sum:
        together = sizes[0]
        for each in sizes[1:]:
            together = signal.convolve(together, each)[:least]
        sizes = [together]
    return sizes
