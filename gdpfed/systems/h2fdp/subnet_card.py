"""The model card's section about the edges of a run with subnets."""

from collections.abc import Iterator

from gdpfed.privacy.mechanisms.subnet_sums import Trust, TrustedSubnets
from gdpfed.privacy.plan import PrivacyPlan

AT_AN_EDGE = (
    "the edge saw single contributions without noise and added it to their sum, so nothing at all is "
    "promised against it; each device said that it trusts it"
)
IN_WORDS: dict[Trust, str] = {
    "trusted": "**simulated trust**: an edge saw single contributions without noise and added it to their "
    "sum, so nothing at all is promised against it; this run had no edges, which were simulated",
    "secagg": "the noise was added by the devices together, under secure aggregation",
    "untrusted": "every device added all of the noise to its own contribution",
}


def trust_lines(plan: PrivacyPlan, *, at_an_edge: bool) -> Iterator[str]:
    """The lines on who added the noise in which subnets; none of a plan without subnets.

    Args:
        plan: of the run.
        at_an_edge: whether the run was that of a real edge.
    """
    in_words = IN_WORDS | ({"trusted": AT_AN_EDGE} if at_an_edge else {})
    if not isinstance(plan.mechanism, TrustedSubnets):
        return
    trusts = plan.mechanism.trusts
    for word in dict.fromkeys(trusts):
        numbers = [index for index, each in enumerate(trusts) if each == word]
        yield f"* subnets {_ranges(numbers)} ({word}): {in_words[word]}"


def _ranges(numbers: list[int]) -> str:
    """Numbers in rising order as ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)
