"""Metrics of predicted survival: Harrell's concordance, and the integrated Brier score.

Both look at positions in the intervals, which keep the order of times and end at the horizon. One that
reaches the horizon is censored there.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels import Metric, Outputs, Targets

special = late_import("scipy.special")

TOGETHER = 256
"""Records whose pairs are compared with each other one by one."""
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def survival_of(outputs: Outputs) -> Floats:
    """Return survival at each interval's end, from logits of hazards: float64[N,J] -> float64[N,J]."""
    with np.errstate(under="ignore"):
        curves: Floats = np.exp(-np.cumsum(np.logaddexp(0, outputs), axis=1))
    return curves


def concordance(outputs: Outputs, targets: Targets) -> float | None:
    """Return Harrell's concordance: the share of comparable pairs in the right order; None if no pairs exist.

    A pair is known if the earlier of both is an event, or both are at one time and one is censored, which
    counts as later. Two events at one time are not a pair. The model expects an event of the one first whose
    survival, added up over the ends of intervals, is lower; where both are alike the pair counts half
    (Harrell, Lee, Mark, Statistics in Medicine 15, 1996). None where no pair is known.
    """
    known, right, alike = pairs(survival_of(outputs).sum(axis=1), targets[:, 0], targets[:, 1] > 0)
    return (right + alike / 2) / known if known else None


def pairs(expected: Floats, times: npt.NDArray[np.generic], event: Bools) -> tuple[int, int, int]:
    """Count the comparable pairs, the pairs that the model orders correctly, and the ties.

    `expected`: larger where a model expects a longer time, shape (N,).
    """
    # A censored record is later than events at the same time, and events at one time have one place.
    _, rank = np.unique(times, return_inverse=True)
    place = 2 * rank.reshape(-1) + ~event
    known = right = alike = 0
    later: Floats = np.zeros(0)
    for group in _from_the_latest(place):
        scores, at, happened = expected[group], place[group], event[group]
        above = len(later) - np.searchsorted(later, scores[happened], side="right")
        up_to = len(later) - np.searchsorted(later, scores[happened], side="left")
        known += len(later) * int(happened.sum())
        right += int(above.sum())
        alike += int((up_to - above).sum())
        if at[0] != at[-1]:
            within = (at[:, None] < at) & happened[:, None]
            known += int(within.sum())
            right += int((within & (scores[:, None] < scores)).sum())
            alike += int((within & (scores[:, None] == scores)).sum())
        later = np.sort(np.concatenate([later, scores]), kind="stable")
    return known, right, alike


def _from_the_latest(place: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield blocks of records' positions, from the latest time to the earliest; equal times stay together."""
    order = np.argsort(-place, kind="stable")
    ends = np.flatnonzero(np.diff(place[order], append=-1)) + 1
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end - start >= TOGETHER or number == len(ends) - 1:
            yield order[start:end]
            start = end


def integrated_brier(outputs: Outputs, targets: Targets) -> float | None:
    """Return the integrated Brier score, averaged over the ends of intervals; smaller is better.

    At an end e the score is, over N records with times T and predicted survival S(e)::

        sum  S(e)^2 [event at T <= e] / G(T)  +  (1 - S(e))^2 [no event until e, seen until e] / G(e)

    divided by N. G(t) is the probability of not being censored before t, by Kaplan and Meier's estimate on
    these records in which a censored one is the event (Graf et al., Statistics in Medicine 18, 1999). Each
    interval weighs the same, however long it is. Ends that nobody was seen until are left out; None where
    there is no other.
    """
    times, event = targets[:, 0].astype(np.float64), targets[:, 1] > 0
    curves, ends = survival_of(outputs), np.arange(1.0, outputs.shape[1] + 1)
    free_at = uncensored(times, event, np.concatenate([times, ends]))
    free, free_at_ends = free_at[: len(times)], free_at[len(times) :]
    weights = np.where(event, 1 / np.where(event, free, 1.0), 0.0)
    scores = []
    for end, left, survival in zip(ends, free_at_ends, curves.T, strict=True):
        if not left > 0:
            break
        gone = event & (times <= end)
        # An event counts at the end of its interval; a censored record was seen until its own time.
        there = ~gone & (times >= end)
        alive = ((1 - survival) ** 2)[there].sum() / left
        scores.append(float((survival**2 * weights)[gone].sum() + alive))
    return float(np.mean(scores)) / len(times) if scores else None


def uncensored(times: Floats, event: Bools, at: Floats) -> Floats:
    """Return G(t-), the probability of not being censored before t, for every t in `at`.

    Kaplan and Meier's product over censored times c < t of 1 - (censored at c) / (at risk at c). Of records
    at one time those with an event leave first.
    """
    censored, counts = np.unique(times[~event], return_counts=True)
    all_times, of_events = np.sort(times), np.sort(times[event])
    first, last = (np.searchsorted(of_events, censored, side=side) for side in ("left", "right"))
    at_risk = len(times) - np.searchsorted(all_times, censored, side="left") - (last - first)
    product = np.concatenate([[1.0], np.cumprod(1 - counts / at_risk)])
    found: Floats = product[np.searchsorted(censored, at, side="left")]
    return found


CONCORDANCE = Metric(concordance, "concordance", percent=False, labels="times_to_event")
BRIER = Metric(integrated_brier, "integrated Brier score", percent=False, labels="times_to_event")
