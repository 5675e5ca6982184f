"""Warnings about a plan: what clients in a secure sum, or a server that breaks the protocol, may learn."""

from collections.abc import Iterator
from math import ceil, floor, fsum

from conf.schema import Config
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.cohorts import fills_cohorts, reveals_sizes, usual_size
from gdpfed.record_steps import kind_of
from gdpfed.report.facts import Fact

FEW_MEMBERS = 20
"""In sums of fewer a line says what it costs that every member knows its own share of the noise."""


def own_share_lines(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if small sums need more noise, since each client could subtract the noise that it added itself."""
    shared = [work for work in map(kind_of, plan.works) if not (work.own_noise or work.held_out)]
    if plan.mechanism.adds_own_noise or not shared:
        return
    filled = fills_cohorts(plan) and config.secagg.same_size
    members = round(min(_sizes_of_sums(plan) if filled else _drawn_for_sums(plan)))
    members = max(members, config.secagg.minimum_cohort)
    left = members - floor(config.secagg.dropout_tolerance * members)
    if members < FEW_MEMBERS and ceil(config.secagg.corrupt_tolerance * members) <= 1 < left:
        yield (
            f"every member of a sum knows its own share of the noise, so noise is sized without one of them: "
            f"in sums of {members} that is {100 / (left - 1):.3g} % more variance, and less with more members"
        )


def size_facts(plan: PrivacyPlan, config: Config) -> list[Fact]:
    """Return the fixed size of secure sums, reached by clients that send zeros; [] if sizes are not fixed."""
    if not (fills_cohorts(plan) and config.secagg.same_size):
        return []
    sizes = ", ".join(map(str, _sizes_of_sums(plan)))
    drawn = ", ".join(f"{each:.1f}" for each in _drawn_for_sums(plan))
    return [
        Fact(
            "members of sums",
            f"{sizes} in every round, of whom {drawn} are drawn: the others send zeros, so that nobody can "
            "tell how many were drawn (secagg.same_size)",
            True,
        )
    ]


def told_size_lines(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if a secure sum's size reveals how many clients were sampled, which epsilon does not cover."""
    if not reveals_sizes(plan, same_size=config.secagg.same_size):
        return
    hides = "privacy.sampling=poisson with secagg.same_size=true hides it"
    if fills_cohorts(plan):
        hides = (
            f"secagg.same_size=true hides it, with {sum(_sizes_of_sums(plan))} clients a round in place of "
            f"{fsum(_drawn_for_sums(plan)):.1f}"
        )
    yield (
        "whoever sees the models can tell how many clients were drawn, and epsilon does not count that: "
        f"{hides}"
    )


def _drawn_for_sums(plan: PrivacyPlan) -> list[float]:
    """Return how many clients the first round samples on average for each secure sum."""
    expected = [group.expected_cohort_size for group in plan.groups]
    return [fsum(expected)] if plan.one_sum else expected


def _sizes_of_sums(plan: PrivacyPlan) -> list[int]:
    """Return each secure sum's usual size, including clients that send zeros to hide the cohort's size."""
    clients = [len(group.clients) for group in plan.groups]
    numbers = [sum(clients)] if plan.one_sum else clients
    return [usual_size(plan, *each) for each in zip(_drawn_for_sums(plan), numbers, strict=True)]


def lying_server_lines(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if a server that breaks the protocol could remove all noise without any client noticing."""
    taps = any(tap > 0 for m in range(len(plan.groups)) for tap in taps_of(plan.mechanism, m))
    if taps and not config.secagg.signs:
        yield (
            "epsilon assumes a server that follows the protocol: under secagg.mode=curious one that lies can "
            "have noise taken back in sums of members that it made up, and nothing is left of it; "
            "secagg.mode=active withstands that"
        )
