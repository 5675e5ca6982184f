"""The model card's section about the edges of a run with subnets."""

from collections.abc import Iterator

from gdpfed.privacy.mechanisms.subnet_sums import Trust, TrustedSubnets
from gdpfed.report.client_report import ClientReport
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.record_report import RecordReport

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


class SubnetReport(ClientReport):
    """Devices in subnets are protected: the card says who added the noise."""

    def promise(self, subject: CardSubject) -> list[str]:
        return [*super().promise(subject), *_trust_lines(subject)]


class SubnetRecordReport(RecordReport):
    """Records of devices in subnets are protected."""

    def promise(self, subject: CardSubject) -> list[str]:
        return [*super().promise(subject), *_trust_lines(subject)]


def _trust_lines(subject: CardSubject) -> Iterator[str]:
    """Who added the noise in which subnets; a run with a mailbox is that of a real edge."""
    mailbox, mechanism = subject.config.run.mailbox, subject.plan.mechanism
    in_words = IN_WORDS | ({"trusted": AT_AN_EDGE} if mailbox is not None else {})
    trusts = mechanism.trusts if isinstance(mechanism, TrustedSubnets) else ()
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
