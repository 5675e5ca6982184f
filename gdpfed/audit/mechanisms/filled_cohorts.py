"""Check that cohorts were filled up with clients that send zeros, where epsilon relies on secret sampling.

Where epsilon counts on a secret draw, whether there is a sum must not follow from who was drawn. So a cohort
is filled up with clients that send zeros, as far as a sum needs, and no further; or, with
`secagg.same_size`, to as many members in every round.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gdpfed.audit.accounting import event_in
from gdpfed.audit.rules import Cohorts

LARGER_SHARE = 0.01
"""The part of delta that is reserved for cohorts larger than the usual size of their sum."""


def counts_on_secret_draws(plan: Mapping[str, Any]) -> bool:
    """Whether clients are Poisson-sampled in secret and epsilon relies on that secret."""
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    secret = any(event.get("sampling_rate", 1.0) < 1 for event in events)
    return bool(plan["sampling"] == "poisson" and plan["private"] and secret)


def fewest_of_a_sum(secagg: Mapping[str, Any], clients: int) -> int:
    """Return the smallest number of members with which secure aggregation can run under these settings.

    At least `minimum_cohort`, so many that the corrupt among the others cannot unmask one alone. If not even
    all `clients` make a sum, one more than these.
    """
    sizes = range(int(secagg["minimum_cohort"]), clients + 1)
    possible = (n for n in sizes if _corrupt(secagg, n) < n - 1 and _spare(secagg, n) >= 0)
    return next(possible, clients + 1)


def most_that_fill(secagg: Mapping[str, Any], reachable: int) -> int:
    """Return the smallest cohort size, counting clients that send zeros, at which one member may drop out."""
    tolerance, fewest = float(secagg["dropout_tolerance"]), fewest_of_a_sum(secagg, reachable)
    if tolerance == 0:
        return fewest
    sizes = range(fewest, max(fewest, reachable) + 1)
    enough = (n for n in sizes if min(math.floor(tolerance * n), _spare(secagg, n), (n - 1) // 2) >= 1)
    return next(enough, sizes[-1])


def usual_size(plan: Mapping[str, Any], expected: float, reachable: int) -> int:
    """Return the number of members to which each sum is filled up, to hide how many clients were sampled.

    A cohort of `expected` clients on average exceeds it with a chance of a hundredth of delta, shared among
    all sums of all rounds: the tail of a Poisson-binomial size n is at most (mu / n)^n e^(n - mu).
    """
    if expected <= 0:
        return 0
    sums = plan["num_rounds"] * (1 if plan.get("one_sum") else len(plan["groups"]))
    larger = np.arange(math.ceil(expected), reachable + 1) + 1.0
    tails = larger * np.log(expected / larger) + larger - expected
    rare = np.flatnonzero(tails <= math.log(LARGER_SHARE * plan["delta"] / sums))
    return int(larger[rare[0]]) - 1 if rare.size else reachable


def check_filled(
    plan: Mapping[str, Any], secagg: Mapping[str, Any], index: int, cohorts: Cohorts
) -> Iterator[str]:
    """Yield a line for a round whose cohort was not filled up correctly with clients that send zeros."""
    groups = list(range(len(plan["groups"]))) if plan.get("one_sum") else [index]
    whole = (cohorts.sizes, cohorts.filled, cohorts.reachable)
    asked, filled, there = (each[:, groups].sum(axis=1) for each in whole)
    if not counts_on_secret_draws(plan):
        for at in np.flatnonzero(filled)[:1]:
            yield f"round {at + 1} has {filled[at]} clients that fill, and nothing rests on a secret draw"
        return
    for at in np.flatnonzero(filled > asked)[:1]:
        yield f"round {at + 1} has {filled[at]} clients that fill, of {asked[at]} that were asked"
    clients = sum(plan["groups"][group]["clients"] for group in groups)
    fewest = fewest_of_a_sum(secagg, clients)
    possible = cohorts.drawn & (there >= fewest)
    for at in np.flatnonzero(possible & (asked < fewest))[:1]:
        yield (
            f"round {at + 1} has a cohort of {asked[at]} in the sum of group {index}, and {there[at]} "
            f"clients could be reached, of whom {fewest} make a sum: delta does not hold against those who "
            "see that there is none, which tells of a secret draw"
        )
    due = np.asarray([most_that_fill(secagg, int(each)) for each in there])
    if secagg.get("same_size"):
        usual = []
        for number, reachable in enumerate(there):
            expected = math.fsum(
                event_in(plan["groups"][group]["charges"], number)["sampling_rate"]
                * cohorts.reachable[number, group]
                for group in groups
            )
            usual.append(usual_size(plan, expected, int(reachable)))
        due = np.maximum(due, usual)
    for at in np.flatnonzero(possible & (asked >= fewest) & (asked < due))[:1]:
        yield (
            f"round {at + 1} has a cohort of {asked[at]} in the sum of group {index}, where {due[at]} are "
            "asked if fewer are drawn: whether a sum comes, and its noise, tell of a secret draw"
        )
    for at in np.flatnonzero((filled > 0) & (asked > due))[:1]:
        yield (
            f"round {at + 1} has {filled[at]} clients that fill the sum of group {index}, of {asked[at]}: a "
            f"sum needs {due[at]} at most"
        )


def _corrupt(secagg: Mapping[str, Any], members: int) -> int:
    return math.ceil(float(secagg["corrupt_tolerance"]) * members)


def _spare(secagg: Mapping[str, Any], members: int) -> int:
    """Return how many other members may drop out while one dropped member's masks can still be removed."""
    others, corrupt = members - 1, _corrupt(secagg, members)
    helping = min(others, max(others // 2, math.floor(float(secagg["threshold"]) * others), corrupt) + 1)
    if secagg["mode"] == "active":
        # Twice as many as there are members and corrupt ones: else a server shows them two lists.
        helping = max(helping, (members + corrupt) // 2 + 1)
    return others - helping
