"""Draws cohorts from a secret key, by the plan's law, and computes how often they are too small.

Amplification by sampling holds against those who cannot tell who was drawn, so the key is a secret of the
server: whoever has it knows every cohort. A cohort too small is not summed, which whoever sees the models
sees. So where clients are drawn anew in every round and epsilon counts on the secret, cohorts are filled up:
further clients of the group send zeros, so that there is a sum whoever was drawn.
"""

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.mechanism_options import DrawsAhead, drawn_at
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.validation import require_count

KEY_BYTES = 32
_LABEL = b"gdpfed cohort v1"
_FILL_LABEL = b"gdpfed fill v1"

MOST_SKIPPED = 0.8
TELLING_SHARE = 0.01
"""The part of delta with which small cohorts may tell who is in which round, if rounds are drawn ahead."""

signal = late_import("scipy.signal")


def draw_cohorts(plan: PrivacyPlan, round_index: int, key: bytes) -> tuple[ClientIds, ...]:
    """Draw the clients (int64, ascending) that take part in a round, one array a group.

    The same 32-byte key, round and group always give the same cohort; two rounds or groups are independent,
    unless the plan's mechanism draws several rounds at once.
    Raises PrivacyError for a round outside the plan, for a key of another length, and for samples that follow
    from what clients have released, which no key draws.
    """
    round_index = require_count("round_index", round_index, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        length = len(key) if isinstance(key, bytes) else type(key).__name__
        raise PrivacyError(f"the sampling key is {length} long; give {KEY_BYTES} secret bytes")
    return tuple(
        plan.mechanism.draw(
            m, group, round_index, _generator(key, drawn_at(plan.mechanism, group, round_index), m)
        )
        for m, group in enumerate(plan.groups)
    )


def fills_cohorts(plan: PrivacyPlan) -> bool:
    """Whether cohorts are filled up with clients that send zeros, so that no sum is left out.

    That is where clients are drawn anew in every round, by Poisson sampling, and epsilon counts on that
    secret. A cohort of a fixed size is too small always or never.
    """
    return plan.law.name == "poisson" and plan.private and plan.sample_is_secret


def tells_sizes(plan: PrivacyPlan, *, same_size: bool) -> bool:
    """Whether the sums' noise and grid reveal how many clients were drawn, which epsilon leaves out.

    `same_size`: whether cohorts that are filled up have one size, which no cohorts of allocation have.
    """
    differ = plan.law.name in ("poisson", "allocation") and plan.sample_is_secret
    return differ and not (same_size and fills_cohorts(plan))


def draw_fillers(
    groups: Sequence[Sequence[int]],
    drawn: ClientIds,
    count: int,
    round_index: int,
    group_index: int,
    key: bytes,
) -> ClientIds:
    """Draw `count` clients (int64, ascending) that were not drawn for the sum, to send zeros.

    Every subset of that size is equally likely. The same key, round, group and clients give the same ones,
    independent of who is drawn in other rounds. `group_index`: of the sum; 0 where all groups are one sum.
    """
    generator = _generator(key, round_index, group_index, _FILL_LABEL)
    ends = np.cumsum([len(group) for group in groups])
    # In a random order, of which those are left out that were drawn: so nothing is as large as the groups.
    positions = generator.choice(ends[-1], min(int(ends[-1]), count + len(drawn)), replace=False)
    found = np.searchsorted(ends, positions, side="right")
    clients = (
        groups[m][position - ends[m]]  # from the end of its group
        for m, position in zip(found.tolist(), positions.tolist(), strict=True)
    )
    taken = frozenset(drawn.tolist())
    free = (client for client in clients if client not in taken)
    return np.sort(np.fromiter(islice(free, count), np.int64, count))


def size_hardly_exceeded(expected: float, chance: float) -> int:
    """Return a cohort size that is exceeded with at most this probability, given the expected size.

    Of independent draws with mean mu, P(size >= mu (1 + x)) <= exp(-mu ((1 + x) ln(1 + x) - x)), whatever
    their rates (Chernoff).
    """

    def bound(size: int) -> float:
        ratio = size / expected
        return -expected * (ratio * math.log(ratio) - ratio + 1)

    size = math.ceil(expected)
    while size > 0 and bound(size + 1) > math.log(chance):
        size += 1
    return size


def usual_size(plan: PrivacyPlan, expected: float, reachable: int) -> int:
    """Return the number of members to which each sum is filled up, so that it hides how many were drawn.

    `expected`: how many are drawn for it on average. `reachable`: of how many; it has no more members. More
    may be drawn with a probability that takes `TELLING_SHARE` of delta for all sums of all rounds together.
    """
    sums = plan.num_rounds * (1 if plan.one_sum else len(plan.groups))
    return min(reachable, size_hardly_exceeded(expected, TELLING_SHARE * plan.delta / sums))


def _generator(key: bytes, round_index: int, group_index: int, label: bytes = _LABEL) -> np.random.Generator:
    """Return a random generator for a round and group, seeded by HMAC-SHA256 of the secret key."""
    message = label + round_index.to_bytes(8, "big") + group_index.to_bytes(8, "big")
    seed = int.from_bytes(hmac.digest(key, message, "sha256"), "big")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed)))


@dataclass(frozen=True)
class SkippedFractions:
    """The expected share of rounds that are left out since their cohorts are too small to sum.

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
    """Return how often fewer than `minimum_cohort` clients are drawn for a sum, as a share of rounds."""
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


def tells_turns(
    plan: PrivacyPlan, minimum_cohort: int, round_index: int, there: Sequence[int] | None = None
) -> bool:
    """Whether leaving a round out would reveal too much about other rounds drawn together with it.

    Whoever sees that a cohort is too small, or that it is not, learns where a client is drawn if the others
    alone are fewer than `minimum_cohort`. Else it learns nothing: so that chance, of all rounds together, may
    be `TELLING_SHARE` of delta. `there`: how many clients of each group can be drawn; None for all.
    """
    if not (isinstance(plan.mechanism, DrawsAhead) and plan.sample_is_secret):
        return False
    largest = max(_others_too_few(plan, minimum_cohort, round_index, there))
    return largest > TELLING_SHARE * plan.delta / plan.num_rounds


def _others_too_few(
    plan: PrivacyPlan, minimum_cohort: int, round_index: int, there: Sequence[int] | None = None
) -> list[float]:
    """Return, for every sum, the probability that it has too few clients besides a given one.

    It is 0 of a sum whose clients all take part, or that has none.
    """
    numbers = [len(group.clients) for group in plan.groups] if there is None else there
    below = _below(plan, round_index, minimum_cohort, [max(0, number - 1) for number in numbers])
    rates = [group.at(round_index).sampling_rate for group in plan.groups]
    exposed = [number > 0 and rate < 1 for number, rate in zip(numbers, rates, strict=True)]
    if plan.one_sum:
        exposed = [any(exposed)]
    return [chance * each for chance, each in zip(below, exposed, strict=True)]


def missing_members(plan: PrivacyPlan, members: Callable[[float, int], int]) -> float:
    """Return how many clients that were not drawn all sums of a round have, on average over the rounds.

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
    """Refuse a plan that would leave out almost all rounds, as their cohorts are too small to sum.

    Cohorts that are filled up are too small only if their whole group is.

    Raises PrivacyError where that is expected of more than `MOST_SKIPPED` of the rounds, and where rounds are
    drawn ahead and one that is skipped would tell of others.
    """
    if any(tells_turns(plan, minimum_cohort, start) for start in starts_of_ranges(plan)):
        raise PrivacyError(
            f"with privacy.sampling=allocation a cohort below secagg.minimum_cohort={minimum_cohort} would "
            "be seen to be skipped, and tell in which rounds its clients take part, with a chance above "
            f"{TELLING_SHARE:g} of delta={plan.delta:g}: raise privacy.sampling_rate or dataset.num_clients, "
            "have one sum of all groups, as method=gdpfed_star has, or use privacy.against=everyone "
            "with privacy.sampling=poisson"
        )
    skipped = skipped_fractions(plan, minimum_cohort).rounds
    if skipped > MOST_SKIPPED:
        go = "be charged" if plan.mechanism.small_cohorts_are_charged else "go"
        expected = math.fsum(group.expected_cohort_size for group in plan.groups)
        filled = fills_cohorts(plan)
        always = filled or plan.sampling_rate >= 1
        rate = [] if always else [f"privacy.sampling_rate={plan.sampling_rate:g}"]
        raised = " or ".join([*rate, "dataset.num_clients"])
        one_sum = "" if plan.one_sum else ", or have one sum of all groups, as method=gdpfed_star has"
        raise PrivacyError(
            f"with {expected:.1f} of {plan.num_clients} clients expected a round, {100 * skipped:.0f} % of "
            f"the rounds would {go} without any sum, their {'groups' if filled else 'cohorts'} being below "
            f"secagg.minimum_cohort={minimum_cohort}: raise {raised}{one_sum}"
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
    """Return for every sum of a round the probabilities of sizes 0 to `least` - 1; groups are independent.

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
