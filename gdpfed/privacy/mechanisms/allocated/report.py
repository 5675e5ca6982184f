"""Reports of privacy plans with random allocation, which also say how often each client takes part."""

from typing import ClassVar

from gdpfed.methods.base import Method
from gdpfed.privacy.mechanisms.sampled.report import ClientReport
from gdpfed.report.facts import Fact
from gdpfed.report.mechanism_reports import CardSubject

EVERY_CLIENT = (
    "Each client takes part in one secret round of each block, and so knows of others that are not in its "
    "sum that they are in another round of the block. Therefore the figures against members hold against "
    "every client that takes part in the run."
)


class AllocatedReport(ClientReport):
    """Describes plans in which every client takes part in a fixed number of secretly drawn rounds.

    Who is not in a client's own sum is in another round of the block: so all clients count as members.
    """

    members: ClassVar[str] = "all clients that take part"

    def promise(self, subject: CardSubject) -> list[str]:
        """Return the model card's promise, and a note: epsilon against members holds against every client."""
        return [*super().promise(subject), EVERY_CLIENT, ""]

    def facts(self, method: Method) -> list[Fact]:
        """Return facts for the report, such as in how many rounds a client of each group takes part."""
        turns = ", ".join(str(group.participations_p99) for group in method.plan.groups)
        allocated = f"{turns} of {method.plan.num_rounds} for a client of each group, one in each block"
        return [*super().facts(method), Fact("rounds", allocated)]
