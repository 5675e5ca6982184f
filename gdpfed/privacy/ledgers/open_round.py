"""A round that sums can be asked for in: who was drawn, and what is left to ask of each."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gdpfed.errors import PrivacyError
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import Release, broken_number
from gdpfed.record_steps import OWN_NOISE_WORKS


class OpenRound:
    """A round that a ledger has charged, or the next one, for which keys may be agreed.

    Attributes:
        index: of the round, from 0.
        group_of: the number of the group of every client that was drawn.
    """

    def __init__(self, plan: PrivacyPlan, index: int, group_of: Mapping[int, int]) -> None:
        self.index = index
        self.group_of = group_of
        self._plan = plan
        self._names: set[str] = set()
        self._sums_of: Counter[int] = Counter()

    def check(self, subject: str, requests: Sequence[Release]) -> None:
        """Check all requests, then note what they take of the round.

        Raises PrivacyError, in one line that names subject, round and request, where one of them breaks what
        the round was charged for. Then nothing is noted.
        """
        names, sums_of = set(self._names), Counter(self._sums_of)
        for request in requests:
            if broken := self._broken_rule(request, names, sums_of):
                raise PrivacyError(f"{subject}, round {self.index}, {request.name}: {broken}")
            names.add(request.name)
            sums_of.update(request.clients.tolist())
        self._names, self._sums_of = names, sums_of

    def _broken_rule(self, request: Release, names: set[str], sums_of: Mapping[int, int]) -> str:
        """Say how a request breaks what the round was charged for; "" if it does not."""
        plan = self._plan
        if request.name in names:
            return "the round has a sum of this name already"
        if broken := self._broken_asking(request, sums_of):
            return broken
        if request.work not in plan.works:
            return f"the plan charges {', '.join(plan.works)}, not {request.work}"
        if request.unit != plan.unit:
            return f"the plan protects a {plan.unit}, not a {request.unit}"
        if request.alone and plan.private and (plan.sums_hidden or request.work not in OWN_NOISE_WORKS):
            return "it is one client's update, to be read in clear, and the plan promises privacy"
        if broken := broken_number(request):
            return broken
        if not plan.private:
            return ""
        return plan.mechanism.broken_rule(plan.groups, self.group_of, self.index, request)

    def _broken_asking(self, request: Release, sums_of: Mapping[int, int]) -> str:
        """Say which client of a request cannot be asked; "" where all can."""
        clients, most = request.clients.tolist(), self._plan.sums_per_round
        if len(set(clients)) != len(clients):
            return "a client is asked twice in one sum"
        for client in clients:
            if client not in self.group_of:
                return f"client {client} was not drawn in this round"
            if sums_of[client] >= most:
                return (
                    f"client {client} is in {sums_of[client]} sums of this round already, and the plan "
                    f"charges {most} a round"
                )
        return ""
