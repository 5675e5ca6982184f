"""Tests of sampling: do clients keep the limits on their rounds, and are cohorts drawn as planned?

A turn that breaks a limit is a fact and no matter of chance. Samples are secret and random; a rate that is
too high, clients that are drawn too often and rounds whose samples have too much in common are found by exact
tail probabilities or bounds on them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.extras.canaries.program_check import POWER

# Up to this number of pairs of samples, the exact probability is computed.
MOST_EXACT = 64


def broken_limit(turns: Mapping[int, Sequence[int]], most_turns: int, separation: int) -> str:
    """Say which client was asked for updates too often, or in rounds too close together; "" if none was.

    ``turns`` are the rounds, from 0, in which each client was asked.
    """
    for client, rounds in turns.items():
        taken = sorted(rounds)
        apart = min(np.diff(taken), default=separation)
        if len(taken) > most_turns or apart < separation:
            counted = ", ".join(str(each + 1) for each in taken)
            return (
                f"client {client} was asked in rounds {counted}, and may be in {most_turns}, "
                f"{separation} apart"
            )
    return ""


@dataclass(frozen=True)
class SampleTest:
    """The result of testing whether a group's cohorts were drawn as planned.

    Attributes:
        rate: the share of the group that was drawn, on average.
        planned: that of the plan.
        shared: of the two samples that have most in common for their sizes, how many clients.
        expected: how many are expected of two samples of these sizes.
        most: how often the client was drawn that was drawn most often.
        p_value: at most how likely any of the three is under the plan.
        unlikeliest: which of the three is the least likely.
        would_find_shared: how many clients in common are found, of two samples of these sizes.
        would_find_rate: the rate above which it is found, with probability `POWER`.
        num_samples: that were compared.
    """

    rate: float
    planned: float
    shared: int
    expected: float
    most: int
    p_value: float
    unlikeliest: str
    would_find_shared: int
    would_find_rate: float
    num_samples: int


def law_of_samples(
    samples: Sequence[npt.NDArray[np.bool_]],
    sizes: Sequence[int],
    rates: Sequence[float],
    level: float,
) -> SampleTest | None:
    """Test whether every round draws a new cohort at the planned rate, with the same chance for each client.

    Given their sizes, two samples that are drawn apart from each other have a hypergeometric number of
    clients in common, whatever the law of the sizes. How often a client is drawn in all rounds, and how many
    are drawn in all, are sums of independent trials of different rates; their tails are at most
    exp(-n D(k / n || p)) with p the mean rate (Hoeffding, 1963, Theorem 1).

    Args:
        samples: whom of the group each round of each run asked; of those rounds that asked anybody.
        sizes: how many were drawn in every round of every run, those included that asked nobody.
        rates: the planned one of every round in ``sizes``.
        level: the probability of a false alarm.

    Returns:
        The test; None of fewer than two samples.
    """
    if len(samples) < 2:
        return None
    drawn = np.stack(samples).astype(np.float64)
    own, group_size = drawn.sum(axis=1), drawn.shape[1]
    first, second = np.triu_indices(len(drawn), k=1)
    shared = (drawn @ drawn.T)[first, second]
    tails = np.ones(len(first))
    # Exact tests of all pairs are slow: those with the largest overlap for their sizes are tested.
    mean = own[first] * own[second] / group_size
    left = (1 - own[first] / group_size) * (group_size - own[second]) / max(1, group_size - 1)
    overlap = (shared - mean) / np.sqrt(np.maximum(mean * left, 1e-9))
    likely = np.argsort(-overlap)[:MOST_EXACT]
    tails[likely] = stats.hypergeom.sf(
        shared[likely] - 1, group_size, own[first[likely]], own[second[likely]]
    )
    closest = int(np.argmin(tails))
    pair = group_size, own[first[closest]], own[second[closest]]
    times = drawn.sum(axis=0)
    planned, trials = float(np.mean(rates)), len(sizes) * group_size
    often = group_size * upper_tail(int(times.max()), len(drawn), float(own.mean()) / group_size)
    chances = {
        "samples that have too much in common": float(tails[closest]) * len(first),
        "a client that is drawn too often": often,
        "a rate that is too high": upper_tail(int(np.sum(sizes)), trials, planned),
    }
    unlikeliest = min(chances, key=lambda each: chances[each])
    in_common = 1 + int(stats.hypergeom.isf(level / 3 / len(first), *pair))
    spread = math.sqrt(planned * (1 - planned) / trials)
    far = math.sqrt(2 * math.log(3 / level)) + stats.norm.ppf(POWER)
    return SampleTest(
        rate=float(np.sum(sizes)) / trials,
        planned=planned,
        shared=int(shared[closest]),
        expected=pair[1] * pair[2] / group_size,
        most=int(times.max()),
        p_value=min(1.0, 3 * chances[unlikeliest]),
        unlikeliest=unlikeliest,
        would_find_shared=in_common,
        would_find_rate=min(1.0, planned + float(far) * spread),
        num_samples=len(drawn),
    )


def upper_tail(hits: int, trials: int, rate: float) -> float:
    """Return an upper bound on the probability of at least this many hits in independent trials."""
    share = hits / trials
    if share <= rate:
        return 1.0
    far = share * math.log(share / rate)
    if share < 1.0:
        far += (1 - share) * math.log((1 - share) / (1 - rate))
    return math.exp(-trials * far)
