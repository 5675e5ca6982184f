"""Checks of epsilons that follow from the privacy costs planned for clients or for records."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from gdpfed.audit.accounting import Charges, charges_of, epsilon_after, first_rounds
from gdpfed.audit.rules import AuditRule, GroupAudit, or_infinite
from gdpfed.audit.tolerances import SAME_FIGURE, TWO_BOUNDS


class ChargedGroups(AuditRule):
    """Checks the epsilons that a run's files state for client groups against the privacy costs in the plan.

    Attributes:
        loose: whether a looser accountant's figure against those who know the cohorts may be larger than that
            computed here, as it may be of a whole run.
    """

    loose: ClassVar[bool] = False

    @property
    @abstractmethod
    def in_clear(self) -> bool:
        """Whether the server sees single clients' updates without noise."""

    @abstractmethod
    def cost(self, index: int, rounds: int, noise_left: float = 1.0) -> float:
        """Return a client's epsilon against attackers who know that it took part in `rounds` rounds.

        `noise_left`: the part of the planned noise that they do not know.
        """

    def cost_to_server(self, index: int, rounds: int) -> float:
        """Return a client's epsilon against the server; inf if the server sees updates without noise."""
        return math.inf if self.in_clear and rounds else self.cost(index, rounds)

    def figure(self, charges: Charges, *, at_most: float = 0.0) -> float:
        """Return the epsilon of these releases and of all one-time sums before the first round, together."""
        return epsilon_after([*self.paid_first, *charges], self.plan["delta"], at_most=at_most)

    def most_often(self, index: int) -> int:
        """Return the largest number of rounds in which any client of a group took part."""
        return int(max(self.files.ledger["participations"][index].values(), default=0))

    def exact(self, index: int) -> dict[str, float]:
        """Return the numbers of a group that the plan must state exactly: cohort size and noise variance."""
        group = self.plan["groups"][index]
        exact = {"expected_cohort_size": group["clients"] * group["sampling_rate"]}
        if group["noise_multiplier"] is not None:
            exact["noise_variance_multiplier"] = group["noise_multiplier"] ** 2
        return exact

    def check_figures(self, index: int) -> Iterator[str]:
        plan, group = self.plan, self.plan["groups"][index]
        stated = {"clipping_norm": plan["clipping_norm"], **group}
        for key, value in self.exact(index).items():
            if stated[key] is None or not math.isclose(stated[key], value, rel_tol=SAME_FIGURE):
                yield f"plan.json has {key} {stated[key]} of group {index}, where {value:.6g} follows"
        most = group["participations_p99"]
        accounted = self.figure(charges_of(group["charges"]))
        for key, epsilon, loose in (
            ("epsilon_accounted", accounted, True),
            ("epsilon_against_members", self.cost(index, most), self.loose),
            # A plan states no bound for a server that sees updates, however seldom clients take part.
            ("epsilon_against_server", math.inf if self.in_clear else self.cost(index, most), self.loose),
        ):
            if not self.agrees(group[key], epsilon, loose=loose):
                yield f"plan.json has {key} {group[key]} of group {index}, where {epsilon:.4g} follows"

    def agrees(self, stated: float | None, computed: float, *, loose: bool) -> bool:
        """Whether a stated epsilon equals the computed one or, if `loose` and PLD is not used, exceeds it."""
        if stated is None or math.isinf(computed):
            return stated is None and math.isinf(computed)
        above = loose and self.plan["accountant"] != "pld"
        return computed * (1 - TWO_BOUNDS) <= stated and (above or stated <= computed * (1 + TWO_BOUNDS))

    def check_log(self, index: int) -> Iterator[str]:
        plan, planned = self.plan, self.plan["groups"][index]["epsilon_accounted"]
        last = [each["spent_epsilon"][index] for each in self.files.rounds[plan["num_rounds"] - 1 :]]
        if not all(math.isclose(each, planned, rel_tol=SAME_FIGURE) for each in last):
            yield f"the last round records epsilon {last[0]} of group {index}, and the plan {planned}"
        # Every round's figure is that of a client that took part in some of the rounds so far.
        for record in self.files.rounds:
            stated = record["epsilon_against_server"][index]
            costs = (self.cost_to_server(index, rounds) for rounds in range(record["round"], -1, -1))
            if not any(self.agrees(stated, cost, loose=self.loose) for cost in costs):
                yield (
                    f"round {record['round']} records epsilon {stated} against the server in group {index}, "
                    "which no number of rounds costs"
                )
                return

    def check_recorded(self, group: GroupAudit) -> Iterator[str]:
        """Check that logged epsilons are within budget and at least the recomputed ones (with PLD, equal)."""
        files, index = self.files, group.group
        tight, charges = self.plan["accountant"] == "pld", self.plan["groups"][index]["charges"]
        for record in files.rounds:
            recorded = or_infinite(record["spent_epsilon"][index])
            computed = self.figure(first_rounds(charges, record["round"]))
            too_low = recorded < computed * (1 - TWO_BOUNDS)
            if too_low or (tight and recorded > computed * (1 + TWO_BOUNDS)):
                yield (
                    f"round {record['round']} records epsilon {recorded:.4g} of group {index}, where "
                    f"{computed:.4g} is spent"
                )
                return
            if recorded > group.budget * (1 + TWO_BOUNDS):
                yield (
                    f"round {record['round']} records epsilon {recorded:.4g} of group {index}, above its "
                    "budget"
                )
                return
        if files.rounds and len(files.rounds) == files.ledger["charged_rounds"]:
            claimed = or_infinite(files.rounds[-1]["epsilon_against_server"][index])
            above = claimed > group.against_server * (1 + TWO_BOUNDS) and (tight or not self.loose)
            if above or claimed < group.against_server * (1 - TWO_BOUNDS):
                yield (
                    f"the last round records epsilon {claimed:.4g} against the server in group {index}, "
                    f"where {group.against_server:.4g} is spent"
                )
