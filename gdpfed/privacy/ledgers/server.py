"""The server's ledger: it records a round's privacy cost before anything is sent, and never removes it.

Opening a round charges its event to every client of every group, and counts a participation of every client
that was drawn. While the round is open, `Ledger.charge` checks requests against the plan and turns them into
charged sums, which a fleet may sum.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from gdpfed.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.group_plan import BUDGET_TOLERANCE
from gdpfed.privacy.ledgers.charged import (
    SEAL,
    ChargedCounts,
    ChargedSum,
    ExpectedSum,
    OpenRound,
    R,
    plain_requests,
)
from gdpfed.privacy.ledgers.participations import (
    CHARGED_ONCE,
    COUNTS,
    FORMAT_VERSION,
    RESTS,
    Participations,
    charged_once_in,
    checked_fields,
    counts_in,
    counts_were_charged,
)
from gdpfed.privacy.mechanism_options import KeepsTurns, OwnTotals, ProtectsRecords, counts_rho
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, CountsRequest, Release
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.sums_once import ONCE, once_of
from gdpfed.privacy.validation import require_count
from gdpfed.record_steps import Once, RecordSteps


class Ledger:
    """The server's privacy ledger: recorded rounds, who took part in them, and which sums may be requested.

    A round is charged before it runs. It stays charged if it fails, since its updates may have been seen.
    Clients that never took part take no memory. `plan`: the plan whose costs are charged. `subject`: the name
    of the asking method in errors, as in "method dp_fedavg". `kinds`: first the exact class of requests, then
    the classes of values in their fields.
    """

    def __init__(
        self, plan: PrivacyPlan, subject: str = "the method", kinds: Sequence[type] = (Release, RecordSteps)
    ) -> None:
        self._plan = plan
        self._kinds = kinds
        self._subject = subject
        self._charged_rounds = 0
        self._open: OpenRound | None = None
        self._participations = Participations(plan)
        self._counts_charged = False
        self.charged_once: set[Once] = set()

    @property
    def plan(self) -> PrivacyPlan:
        """The privacy plan under which the cost of rounds is recorded."""
        return self._plan

    @property
    def charged_rounds(self) -> int:
        """The number of rounds recorded so far, which is also the index of the next round."""
        return self._charged_rounds

    @property
    def counts_charged(self) -> bool:
        """Whether the privacy cost of every client's class counts is recorded."""
        return self._counts_charged

    def charge_counts(self, request: CountsRequest) -> ChargedCounts:
        """Record the privacy cost of all clients' class counts, before round 1; return the checked request.

        Raises PrivacyError if the plan has no class counts, if they are charged already, and for less noise
        than the plan's. Nothing is charged if it raises.
        """
        mechanism = self._plan.mechanism
        if not (isinstance(mechanism, OwnTotals) and mechanism.counts_rho):
            raise PrivacyError(f"{self._subject}: class counts are asked for, and the plan charges none")
        if self._counts_charged:
            raise PrivacyError(f"{self._subject}: class counts are charged already, once for all")
        planned = mechanism.counts_noise
        if not request.noise_stddev >= planned * (1 - ROUNDING):
            raise PrivacyError(
                f"{self._subject}: noise of standard deviation {request.noise_stddev:.6g} in class counts is "
                f"below the plan's {planned:.6g}"
            )
        self._counts_charged = True
        return ChargedCounts(SEAL, request)

    def charge_once(self, request: R) -> ChargedSum[R]:
        """Record the privacy cost of a one-time sum, outside the rounds; return the checked request.

        Raises PrivacyError, and charges nothing, if the sum was charged before, is not due now or is not the
        planned one.
        """
        (request,) = plain_requests([request], self._kinds, f"{self._subject}, beside the rounds")
        last, work = self._plan.num_rounds, once_of(request.work)
        due = [each for each in self._plan.once if each.due_after(last) == self._charged_rounds]
        planned = next((each for each in due if each.work == work and work not in self.charged_once), None)
        never = f"the plan has {ONCE[work or 'held_out_counts'].time}, or never"
        broken = never if planned is None else planned.broken_by(request, self._plan.groups)
        if planned is None or broken:
            raise PrivacyError(f"{self._subject}, {request.name}: {broken}")
        self.charged_once.add(planned.work)
        return ChargedSum(SEAL, request, planned.index(last))

    def open_round(self, round_index: int, cohorts: Sequence[ClientIds | Sequence[int]]) -> None:
        """Record the privacy cost of the round that is about to run, with these cohorts, one per group.

        Requests can be charged in the round until it is closed. Raises BudgetExhausted if the round would
        exceed a group's budget or the plan's number of rounds. Raises PrivacyError for a round out of order
        or charged already, if a one-time charge must come first, and for cohorts that the plan cannot have
        drawn. Nothing is charged if it raises.
        """
        require_count("round_index", round_index, at_least=0)
        if round_index != self._charged_rounds:
            state = "charged already" if round_index < self._charged_rounds else "out of order"
            raise PrivacyError(
                f"round {round_index} is {state}; the next to charge is {self._charged_rounds}"
            )
        if counts_rho(self._plan.mechanism) and not self._counts_charged:
            raise PrivacyError(
                f"{self._subject}, round {round_index}: samples follow from class counts, which are not "
                "charged yet"
            )
        if (first := self._plan.first) is not None and first.work not in self.charged_once:
            raise PrivacyError(f"{self._subject}, round {round_index}: {first.asked_of} first, and were not")
        self._check_budgets(round_index + 1)
        opened, drawn = self._round_of(round_index, cohorts)
        self._charged_rounds += 1
        self._open = opened
        self._participations.add(round_index, drawn)

    def close_round(self) -> None:
        """End the open round; no more sums can be requested in it."""
        self._open = None

    def charge(self, round_index: int, requests: Iterable[R]) -> list[ChargedSum[R]]:
        """Check requested sums against the open round's recorded cost; return them marked as allowed.

        Raises PrivacyError for a round that is not open, and for what `OpenRound.check` refuses; the error is
        one line, which names subject, round and request. Then none of the requests can be summed.
        """
        requests = plain_requests(requests, self._kinds, f"{self._subject}, round {round_index}")
        if self._open is None or self._open.index != round_index:
            names = ", ".join(request.name for request in requests)
            raise PrivacyError(
                f"{self._subject}, round {round_index}, {names}: the round is not open; ask for a sum "
                "within its own round"
            )
        self._open.check(self._subject, requests)
        return [ChargedSum(SEAL, request, round_index) for request in requests]

    def with_steps_left(self, cohorts: Sequence[ClientIds], round_index: int) -> tuple[ClientIds, ...]:
        """Return a round's cohorts without the clients that the plan does not let take part in this round.

        Their absence reveals nothing about data: it follows from the plan and from the earlier cohorts.
        """
        return tuple(self._with_steps_left(m, cohort, round_index) for m, cohort in enumerate(cohorts))

    def _with_steps_left(self, m: int, cohort: ClientIds, round_index: int) -> ClientIds:
        if (mechanism := self._plan.mechanism).most_rounds(m) is None:
            return cohort
        if isinstance(mechanism, ProtectsRecords) and mechanism.rests(self._plan.groups[m], round_index):
            return cohort[:0]
        why_not = self._participations.why_not
        return cohort[[not why_not(m, client, round_index) for client in cohort.tolist()]]

    def with_moved_turns(
        self, cohorts: Sequence[ClientIds], round_index: int, present: Collection[int]
    ) -> tuple[ClientIds, ...]:
        """Add to each group's cohort those present clients that have missed a scheduled round (turn)."""
        moved = self._participations.with_moved_turns
        return tuple(moved(m, cohort, round_index, present) for m, cohort in enumerate(cohorts))

    def groups_of(self, request: Release) -> tuple[int, ...]:
        """Return, in ascending order, the groups whose cohorts in this round have a client of the request."""
        drawn = {} if self._open is None else self._open.group_of
        return tuple(sorted({drawn[client] for client in request.clients.tolist() if client in drawn}))

    def expect(
        self, round_index: int, cohorts: Sequence[ClientIds | Sequence[int]], requests: Iterable[R]
    ) -> list[ExpectedSum[R]]:
        """Check the next round's requests without recording a cost, so that clients agree on keys early.

        Raises PrivacyError where `charge` would in that round, and for any round but the next.
        """
        if round_index != self._charged_rounds:
            raise PrivacyError(
                f"round {round_index} cannot be summed now; the next round is {self._charged_rounds}"
            )
        requests = plain_requests(requests, self._kinds, f"{self._subject}, round {round_index}")
        upcoming, _ = self._round_of(round_index, cohorts)
        upcoming.check(self._subject, requests)
        return [ExpectedSum(SEAL, request, round_index) for request in requests]

    def spent(self) -> tuple[float, ...]:
        """Return each group's epsilon for all rounds recorded so far; inf for a group without privacy."""
        indices = range(len(self._plan.groups))
        return tuple(self._plan.epsilon_after(m, self._charged_rounds) for m in indices)

    def against_server(self) -> tuple[float, ...]:
        """Return, per group, the largest epsilon of a client against the server.

        Once a client took part, it is inf without privacy, and if the server sees single updates to which
        clients do not add their full noise themselves.
        """
        mechanism = self._plan.mechanism
        if mechanism.adds_own_noise or (isinstance(mechanism, KeepsTurns) and self._plan.sums_hidden):
            return self.against_members()
        return tuple(
            self._plan.epsilon_against_server(m, most) for m, most in enumerate(self.most_participations())
        )

    def against_members(self) -> tuple[float, ...]:
        """Return, per group, the largest epsilon of a client against other members of the same sums."""
        against, rounds = self._participations.epsilon_against_members, self._charged_rounds
        return tuple(against(m, rounds) for m in range(len(self._plan.groups)))

    def most_participations(self) -> list[int]:
        """Return, per group, the largest number of recorded rounds in which one client took part."""
        return self._participations.most()

    def total_participations(self) -> tuple[int, ...]:
        """Return, per group, the number of clients that took part, summed over the recorded rounds."""
        return self._participations.total()

    def participations(self, client_id: int) -> int:
        """Return the number of recorded rounds in which a client took part."""
        return self._participations.of(client_id)

    def turns_in(self, round_index: int) -> list[list[int]]:
        """Return each group's clients in a round if the plan schedules who takes part; else an empty list."""
        return self._participations.turns_in(round_index)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, which `from_dict` can read: privacy costs and participations by group."""
        values = {
            "version": FORMAT_VERSION,
            "plan": self._plan.fingerprint(),
            "charged_rounds": self._charged_rounds,
            "charges": [
                [charge.to_dict() for charge in self._plan.charges(m, self._charged_rounds)]
                for m in range(len(self._plan.groups))
            ],
            **self._participations.to_dict(),
        }
        if counts_rho(self._plan.mechanism):
            values[COUNTS] = counts_rho(self._plan.mechanism) if self._counts_charged else 0.0
        return values | {CHARGED_ONCE[each.work]: each.work in self.charged_once for each in self._plan.once}

    @classmethod
    def from_dict(
        cls,
        plan: PrivacyPlan,
        data: object,
        subject: str = "the method",
        kinds: Sequence[type] = (Release, RecordSteps),
    ) -> "Ledger":
        """Restore the ledger that `to_dict` saved for the same plan; no round is open in it.

        Raises PrivacyError for another plan's ledger and for data that is incomplete or wrong.
        """
        ledger = cls(plan, subject, kinds)
        fields = checked_fields(data, plan)
        if fields["plan"] != plan.fingerprint():
            raise PrivacyError(
                f"the ledger belongs to another plan ({str(fields['plan'])[:12]}); "
                "resume with the configuration it was started with"
            )
        ledger._charged_rounds = require_count(
            "the ledger's charged_rounds", fields["charged_rounds"], at_least=0
        )
        saved = fields["participations"]
        for name in ("participations", "charges"):
            if not isinstance(fields[name], list) or len(fields[name]) != len(plan.groups):
                raise PrivacyError(
                    f"the ledger's {name} are not a list of {len(plan.groups)} groups; "
                    "the file is damaged, resume from an intact one"
                )
        charged = [[c.count for c in plan.charges(m, ledger._charged_rounds)] for m, _ in enumerate(saved)]
        if [counts_in(group) for group in fields["charges"]] != charged:
            raise PrivacyError(
                f"the ledger's charges are not those of {ledger._charged_rounds} rounds of the plan; "
                "the file is damaged, resume from an intact one"
            )
        ledger._participations.restore(fields, ledger._charged_rounds)
        ledger.charged_once = charged_once_in(fields)
        if counts_rho(plan.mechanism):
            ledger._counts_charged = counts_were_charged(plan, fields[COUNTS], ledger._charged_rounds)
        return ledger

    def _check_budgets(self, rounds: int) -> None:
        if not self._plan.private:
            return
        if rounds > self._plan.num_rounds:
            raise BudgetExhausted(
                f"round {rounds - 1} lies beyond the plan's last one, {self._plan.num_rounds - 1}; "
                "training must stop here, make a plan for more rounds beforehand"
            )
        for m, group in enumerate(self._plan.groups):
            epsilon = self._plan.epsilon_after(m, rounds)
            if not epsilon <= group.epsilon * (1 + BUDGET_TOLERANCE):
                raise BudgetExhausted(
                    f"round {rounds - 1} would take group {m} to epsilon {epsilon:.4g}, above its "
                    f"budget {group.epsilon:g}; training must stop here"
                )

    def _round_of(
        self, index: int, cohorts: Sequence[ClientIds | Sequence[int]]
    ) -> tuple[OpenRound, tuple[list[int], ...]]:
        """Return an OpenRound of cohorts, and the cohorts as lists; raise PrivacyError for forbidden ones."""
        if len(cohorts) != len(self._plan.groups):
            raise PrivacyError(f"{len(cohorts)} cohorts for {len(self._plan.groups)} groups; give one each")
        drawn = tuple(self._checked_cohort(index, m, cohort) for m, cohort in enumerate(cohorts))
        group_of = {client: m for m, clients in enumerate(drawn) for client in clients}
        return OpenRound(self._plan, index, group_of), drawn

    def _checked_cohort(
        self, round_index: int, group_index: int, cohort: ClientIds | Sequence[int]
    ) -> list[int]:
        clients: list[int] = np.asarray(cohort, dtype=np.int64).tolist()
        if len(set(clients)) != len(clients):
            raise PrivacyError(
                f"the cohort of group {group_index} repeats a client; its update may count once"
            )
        for client in clients:
            if not self._participations.is_member(group_index, client):
                raise PrivacyError(
                    f"client {client} is not in group {group_index}; draw cohorts from this plan"
                )
        if self._plan.mechanism.most_rounds(group_index) is not None:
            ids = np.asarray(clients, dtype=np.int64)
            left = self._with_steps_left(group_index, ids, round_index).tolist()
            if left != clients:
                spent = next(client for client in clients if client not in left)
                why_not = self._participations.why_not(group_index, spent, round_index)
                raise PrivacyError(f"client {spent} {why_not or RESTS}")
            return clients
        group = self._plan.groups[group_index]
        rate = group.at(min(round_index, self._plan.num_rounds - 1)).sampling_rate
        try:
            self._plan.law.check(len(clients), rate, len(group.clients))
        except PrivacyError as error:
            raise PrivacyError(f"the cohort of group {group_index}: {error}") from None
        return clients
