"""Plans that allocate clients to rounds: as those that sample, with the number of rounds that each is in."""

from gdpfed.methods.base import Method
from gdpfed.privacy.mechanisms.sampled.report import ClientReport
from gdpfed.report.facts import Fact


class AllocatedReport(ClientReport):
    """Describes plans in which every client takes part in as many rounds as planned, and in no other."""

    def facts(self, method: Method) -> list[Fact]:
        """What the allocation hides, from whom, and how often a client takes part."""
        turns = ", ".join(str(group.participations_p99) for group in method.plan.groups)
        allocated = f"{turns} of {method.plan.num_rounds} for a client of each group, one in each block"
        return [*super().facts(method), Fact("rounds", allocated)]
