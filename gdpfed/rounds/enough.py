"""Checks that enough clients can be reached for a sum, before its privacy cost is recorded.

If too few clients can be reached for any sum of a round, no client is asked and nothing is charged. Who can
be reached is not a secret, and does not depend on the draw. A drawn cohort that is too small is different: if
epsilon relies on a secret Poisson sample, the cohort is filled up with other reachable clients
(`gdpfed.rounds.extensions.fill`), and the round is charged.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from conf.schema import SecAggConfig
from gdpfed.errors import RunError
from gdpfed.methods.sum_parameters import can_sum
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.cohort_sizes import reveals_turns
from gdpfed.privacy.sampling.cohorts import draws_secret_blocks
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.rounds.fleet import Fleet
from gdpfed.runs.round_log import RoundLogEntry


def reachable_by_group(plan: PrivacyPlan, present: Collection[int] | None) -> list[int]:
    """Return how many clients of each group can be reached: those in ``present``, or all if it is None."""
    there = None if present is None else frozenset(present)
    groups = [group.clients for group in plan.groups]
    return [len(group) if there is None else len(there.intersection(group)) for group in groups]


def some_sum(plan: PrivacyPlan, secagg: SecAggConfig, present: Collection[int]) -> bool:
    """Whether enough clients can be reached for at least one sum of a round."""
    sizes = reachable_by_group(plan, present)
    return any(can_sum(secagg, size) for size in ([sum(sizes)] if plan.one_sum else sizes))


def present_for_a_round(
    plan: PrivacyPlan, fleet: Fleet, round_index: int, path: Path
) -> frozenset[int] | None:
    """Wait until enough clients can be reached; return all reachable ones, or None if none is ever absent.

    `path`: the run directory. Raises RunError, before the round is charged, if after the fleet's waiting time
    there are too few clients for any sum; if a cohort that is too small would reveal who takes part in other
    rounds; or if the missing clients of a cohort of fixed size would reveal the draw.
    """
    secagg = fleet.secagg
    present = fleet.present(round_index, partial(_suffices, plan, secagg, round_index))
    if present is not None and not some_sum(plan, secagg, present):
        there = sum(reachable_by_group(plan, present))
        raise RunError(
            f"round {round_index + 1}: {there} of {plan.num_clients} clients can be reached, too few for any "
            f"sum (secagg.minimum_cohort={secagg.minimum_cohort}, secagg.corrupt_tolerance="
            f"{secagg.corrupt_tolerance:g}) after run.timeout_seconds: nothing is charged for the round; "
            f"when more clients can be reached, continue with run.resume={path}"
        )
    by_group = ", ".join(map(str, reachable_by_group(plan, present)))
    if _reveals_absence(plan, present):
        raise RunError(
            f"round {round_index + 1}: only {by_group} clients of the groups can be reached, and "
            f"privacy.sampling={plan.law.name} draws the others, too: the number of answers would reveal who "
            "was drawn, which epsilon does not count. Nothing is charged for the round; when all clients can "
            f"be reached, continue with run.resume={path}, or begin a new run with privacy.sampling=poisson"
        )
    if present is not None and _would_tell(plan, secagg, round_index, present):
        raise RunError(
            f"round {round_index + 1}: only {by_group} clients of the groups can be reached: a cohort may be "
            "too small, which would reveal who takes part in the other rounds (privacy.sampling=allocation). "
            f"Nothing is charged for the round; when more can be reached, continue with run.resume={path}"
        )
    return present


def _suffices(plan: PrivacyPlan, secagg: SecAggConfig, round_index: int, present: Collection[int]) -> bool:
    tells = _reveals_absence(plan, present) or _would_tell(plan, secagg, round_index, present)
    return some_sum(plan, secagg, present) and not tells


def _reveals_absence(plan: PrivacyPlan, present: Collection[int] | None) -> bool:
    """Whether a secret sample may contain absent clients, whose missing answers would reveal the sample.

    It would reveal something about the draw: whether a sum succeeds, and its noise, depend on how many of the
    cohort answer. Under Poisson sampling unreachable clients leave the cohort and others fill it up. A cohort
    of a fixed size keeps them, as the accounting assumes.
    """
    if not (plan.absent_clients_count and plan.sample_is_secret):
        return False
    pairs = zip(plan.groups, reachable_by_group(plan, present), strict=True)
    return any(
        there < len(group.clients) and plan.mechanism.hides_by_sampling(group) for group, there in pairs
    )


def _would_tell(plan: PrivacyPlan, secagg: SecAggConfig, round_index: int, present: Collection[int]) -> bool:
    """Whether leaving out a round, for its small cohort, could reveal who was sampled for other rounds."""
    if not draws_secret_blocks(plan):
        return False
    least = next(size for size in count(secagg.minimum_cohort) if can_sum(secagg, size))
    index = min(round_index, plan.num_rounds - 1)
    return reveals_turns(plan, least, index, reachable_by_group(plan, present))


def without_small_sums(
    plan: PrivacyPlan, secagg: SecAggConfig, cohorts: Sequence[ClientIds]
) -> tuple[ClientIds, ...]:
    """Return the cohorts; replace those too small for a secure sum by empty ones, unless they are charged.

    The clients in such a cohort are treated as absent: they are not asked, no participation is counted, and
    they take their turn later if the plan allows it.
    """
    sizes = [len(cohort) for cohort in cohorts]
    if plan.mechanism.small_cohorts_are_charged:
        return tuple(cohorts)
    if plan.one_sum:
        sizes = [sum(sizes)] * len(sizes)
    pairs = zip(cohorts, sizes, strict=True)
    return tuple(cohort if can_sum(secagg, size) else cohort[:0] for cohort, size in pairs)


def without_a_sum(records: Sequence[RoundLogEntry], path: Path) -> str:
    """Describe in one line a run in which no sum was possible, so that the model learnt nothing."""
    reasons = Counter(reason for record in records for reason in record.failures.values())
    most = f", most often: {reasons.most_common(1)[0][0]}" if reasons else ""
    return (
        f"none of the run's {len(records)} rounds has a sum{most}. The model is the one that it began with, "
        f"and what was charged stays charged; the run's files are in {path}"
    )
