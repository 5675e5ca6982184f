"""Whether cohorts were filled up as epsilon needs it, by a run's log and its settings.

Where epsilon counts on a secret draw, whether there is a sum must not follow from who was drawn. So a cohort
is filled up with clients that send zeros, as far as a sum needs, and no further.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.audit.rules import Cohorts

Sizes = npt.NDArray[np.int64]


def counts_on_secret_draws(plan: Mapping[str, Any]) -> bool:
    """Whether clients are drawn anew in every round, and epsilon counts on that nobody knows who."""
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    secret = any(event.get("sampling_rate", 1.0) < 1 for event in events)
    return bool(plan["sampling"] == "poisson" and plan["private"] and secret)


def fewest_of_a_sum(secagg: Mapping[str, Any]) -> int:
    """Return how many members make a sum in any case, by the settings of secure aggregation.

    At least `minimum_cohort`, so many that the corrupt among the others cannot unmask one alone.
    """
    sizes = count(int(secagg["minimum_cohort"]))
    return next(n for n in sizes if _corrupt(secagg, n) < n - 1 and _spare(secagg, n) >= 0)


def most_that_fill(secagg: Mapping[str, Any], reachable: int) -> int:
    """Return the largest size up to which a cohort is filled: a sum of it bears that one member vanishes."""
    tolerance, fewest = float(secagg["dropout_tolerance"]), fewest_of_a_sum(secagg)
    if tolerance == 0:
        return fewest
    sizes = range(fewest, max(fewest, reachable) + 1)
    enough = (n for n in sizes if min(math.floor(tolerance * n), _spare(secagg, n), (n - 1) // 2) >= 1)
    return next(enough, sizes[-1])


def check_filled(
    plan: Mapping[str, Any], secagg: Mapping[str, Any], index: int, cohorts: Cohorts
) -> Iterator[str]:
    """Yield a line for every kind of cohort of a group's sums that was not filled up as it must be."""
    together = slice(None) if plan.get("one_sum") else slice(index, index + 1)
    whole = (cohorts.sizes, cohorts.filled, cohorts.reachable)
    asked, filled, there = (each[:, together].sum(axis=1) for each in whole)
    if not counts_on_secret_draws(plan):
        for at in np.flatnonzero(filled)[:1]:
            yield f"round {at + 1} has {filled[at]} clients that fill, and nothing rests on a secret draw"
        return
    for at in np.flatnonzero(filled > asked)[:1]:
        yield f"round {at + 1} has {filled[at]} clients that fill, of {asked[at]} that were asked"
    fewest = fewest_of_a_sum(secagg)
    for at in np.flatnonzero(cohorts.drawn & (asked < fewest) & (there >= fewest))[:1]:
        yield (
            f"round {at + 1} has a cohort of {asked[at]} in the sum of group {index}, and {there[at]} "
            f"clients could be reached, of whom {fewest} make a sum: delta does not hold against those who "
            "see that there is none, which tells of a secret draw"
        )
    most = np.asarray([most_that_fill(secagg, int(each)) for each in there])
    for at in np.flatnonzero((filled > 0) & (asked > most))[:1]:
        yield (
            f"round {at + 1} has {filled[at]} clients that fill the sum of group {index}, of {asked[at]}: a "
            f"sum needs {most[at]} at most"
        )


def _corrupt(secagg: Mapping[str, Any], members: int) -> int:
    return math.ceil(float(secagg["corrupt_tolerance"]) * members)


def _spare(secagg: Mapping[str, Any], members: int) -> int:
    """Return how many of the other members need not help to unmask one of them, on the complete graph."""
    others, corrupt = members - 1, _corrupt(secagg, members)
    helping = min(others, max(others // 2, math.floor(float(secagg["threshold"]) * others), corrupt) + 1)
    if secagg["mode"] == "active":
        # Twice as many as there are members and corrupt ones: else a server shows them two lists.
        helping = max(helping, (members + corrupt) // 2 + 1)
    return others - helping
