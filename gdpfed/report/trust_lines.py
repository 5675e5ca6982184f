"""Lines on what members and server may learn, and what that costs the plan."""

from collections.abc import Iterator
from math import ceil, floor

from conf.schema import Config
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.record_steps import kind_of

FEW_MEMBERS = 20
"""In sums of fewer a line says what it costs that every member knows its own share of the noise."""


def own_share_lines(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if sums have few members, because each member knows its own share of the noise."""
    shared = [work for work in map(kind_of, plan.works) if not (work.own_noise or work.held_out)]
    if plan.mechanism.adds_own_noise or not shared:
        return
    cohorts = [group.expected_cohort_size for group in plan.groups]
    members = round(sum(cohorts) if plan.one_sum else min(cohorts))
    members = max(members, config.secagg.minimum_cohort)
    left = members - floor(config.secagg.dropout_tolerance * members)
    if members < FEW_MEMBERS and ceil(config.secagg.corrupt_tolerance * members) <= 1 < left:
        yield (
            f"every member of a sum knows its own share of the noise, so noise is sized without one of them: "
            f"in sums of {members} that is {100 / (left - 1):.3g} % more variance, and less with more members"
        )


def lying_server_lines(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if a lying server could have noise removed without any client noticing."""
    taps = any(tap > 0 for m in range(len(plan.groups)) for tap in taps_of(plan.mechanism, m))
    if taps and not config.secagg.signs:
        yield (
            "epsilon assumes a server that follows the protocol: under secagg.mode=curious one that lies can "
            "have noise taken back in sums of members that it made up, and nothing is left of it; "
            "secagg.mode=active withstands that"
        )
