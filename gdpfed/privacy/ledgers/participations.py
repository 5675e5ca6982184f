"""Counts how often each client took part, and records in which rounds if the cost depends on that."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.mechanism_options import HasTurns, KeepsTurns, counts_rho
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.sums_once import ONCE
from gdpfed.privacy.validation import require_count
from gdpfed.record_steps import Once

TURNS = "taken"
"""The entry of a ledger's file that says in which rounds each client took part."""
RESTS = "has no step left; its budget is spent"


class Participations:
    """How often each client took part in recorded rounds; clients that never did have no entry."""

    def __init__(self, plan: PrivacyPlan) -> None:
        self._plan = plan
        self._counts: tuple[Counter[int], ...] = tuple(Counter() for _ in plan.groups)
        self._members = tuple(_members(group.clients) for group in plan.groups)
        self._turns: dict[int, list[int]] = {}

    def add(self, round_index: int, cohorts: Sequence[Sequence[int]]) -> None:
        """Record which clients of each group take part in a round."""
        for counts, clients in zip(self._counts, cohorts, strict=True):
            counts.update(clients)
            if isinstance(self._plan.mechanism, KeepsTurns):
                for client in clients:
                    self._turns.setdefault(client, []).append(round_index)

    def is_member(self, m: int, client: int) -> bool:
        """Whether a client is in a group of the plan."""
        return client in self._members[m]

    def of_group(self, m: int) -> Mapping[int, int]:
        """Return in how many rounds each client of a group took part; clients that never did are absent."""
        return self._counts[m]

    def of(self, client: int) -> int:
        """Return in how many recorded rounds a client took part."""
        return sum(counts[client] for counts in self._counts if client in counts)

    def most(self) -> list[int]:
        """Return, per group, the largest number of rounds in which one client took part."""
        return [max(counts.values(), default=0) for counts in self._counts]

    def total(self) -> tuple[int, ...]:
        """Return, per group, the number of participations of all its clients together."""
        return tuple(counts.total() for counts in self._counts)

    def turns_in(self, round_index: int) -> list[list[int]]:
        """Return each group's clients in a round if the plan schedules who takes part; else an empty list."""
        if not self._plan.mechanism.against_everyone:
            return []
        return [sorted(each for each in of if round_index in self._turns[each]) for of in self._counts]

    def why_not(self, m: int, client: int, round_index: int) -> str:
        """Return why the plan does not allow a client to take part in this round; "" if it is allowed."""
        mechanism = self._plan.mechanism
        if isinstance(mechanism, HasTurns):
            broken = mechanism.broken_turn(m, self._turns.get(client, ()), round_index)
            if broken:
                return f"has no turn in round {round_index}: {broken}"
        most = mechanism.most_rounds(m)
        return RESTS if most is not None and self._counts[m].get(client, 0) >= most else ""

    def with_moved_turns(
        self, m: int, cohort: ClientIds, round_index: int, present: Collection[int]
    ) -> ClientIds:
        """Add to a group's cohort those present clients that have missed a scheduled round (turn).

        Only turns that the mechanism allows are made up for, and the cohort never exceeds the planned size.
        Without a schedule the cohort is returned unchanged.
        """
        plan, group = self._plan, self._plan.groups[m]
        if not isinstance(plan.mechanism, HasTurns):
            return cohort
        due = plan.mechanism.turns_due(m, group, round_index)
        size = plan.law.largest_expected(group.at(round_index).sampling_rate, len(group.clients))
        there = set(cohort.tolist())
        missed = [
            client
            for client, turns in zip(group.clients, due.tolist(), strict=True)
            if self._counts[m].get(client, 0) < turns and client in present and client not in there
        ]
        moved = [client for client in missed if not self.why_not(m, client, round_index)]
        return np.sort(np.append(cohort, np.array(moved[: max(0, size - len(cohort))], dtype=np.int64)))

    def epsilon_against_members(self, m: int, rounds: int) -> float:
        """Return the largest epsilon of a client in a group, against those who know the cohorts."""
        plan = self._plan
        if plan.private and isinstance(plan.mechanism, KeepsTurns):
            turns = {client: self._turns[client] for client in self._counts[m]}
            return plan.mechanism.epsilon_of_most(
                m, plan.groups[m], turns, rounds, delta=plan.delta, paid=plan.paid_first
            )
        return plan.epsilon_against_members(m, self.most()[m])

    def to_dict(self) -> dict[str, Any]:
        """Return how often clients took part, by group, as JSON; if needed, also in which rounds."""
        values: dict[str, Any] = {
            "participations": [
                {str(count): counts[count] for count in sorted(counts)} for counts in self._counts
            ]
        }
        if isinstance(self._plan.mechanism, KeepsTurns):
            values[TURNS] = {str(client): self._turns[client] for client in sorted(self._turns)}
        return values

    def restore(self, saved: Mapping[str, Any], charged_rounds: int) -> None:
        """Read the participations that `to_dict` wrote after this many charged rounds.

        Raises PrivacyError for counts and rounds that are impossible after so few rounds.
        """
        for m, counts in enumerate(saved["participations"]):
            self._counts[m].update(self._checked_counts(m, counts, charged_rounds))
        if isinstance(self._plan.mechanism, KeepsTurns):
            self._turns = self._checked_turns(saved[TURNS], charged_rounds)

    def _checked_counts(self, m: int, counts: object, charged_rounds: int) -> dict[int, int]:
        if not isinstance(counts, Mapping):
            raise PrivacyError(
                f"the ledger's participations of group {m} are {type(counts).__name__}, "
                "not a mapping; the file is damaged, resume from an intact one"
            )
        checked = {}
        for client, count in counts.items():
            name = f"the ledger's count of client {client}"
            if not (isinstance(client, str) and client.isascii() and client.isdecimal()):
                raise PrivacyError(f"{name} has no client id; resume from an intact ledger")
            if not self.is_member(m, int(client)):
                raise PrivacyError(
                    f"{name} is under group {m}, of which the client is not a member; resume from an intact "
                    "ledger"
                )
            if require_count(name, count) > charged_rounds:
                raise PrivacyError(
                    f"{name} is {count}, above the {charged_rounds} charged rounds; "
                    "resume from an intact ledger"
                )
            checked[int(client)] = count
        return checked

    def _checked_turns(self, saved: object, charged_rounds: int) -> dict[int, list[int]]:
        counted = {client: count for counts in self._counts for client, count in counts.items()}
        group_of = {client: m for m, counts in enumerate(self._counts) for client in counts}
        if not isinstance(saved, Mapping) or set(saved) != {str(client) for client in counted}:
            raise PrivacyError(
                "the ledger's rounds taken are not those of the clients that it counts; resume from an "
                "intact ledger"
            )
        turns = {}
        for client, count in counted.items():
            rounds = saved[str(client)]
            if not isinstance(rounds, list) or len(rounds) != count or sorted(set(rounds)) != rounds:
                raise PrivacyError(
                    f"the ledger's rounds of client {client} are not {count} in order; resume from an intact "
                    "ledger"
                )
            mechanism = self._plan.mechanism
            for place, index in enumerate(rounds):
                if require_count("a round of the ledger", index, at_least=0) >= charged_rounds:
                    raise PrivacyError(
                        f"the ledger has client {client} in round {index}, of {charged_rounds} that are "
                        "charged; resume from an intact ledger"
                    )
                if isinstance(mechanism, HasTurns) and (
                    broken := mechanism.broken_turn(group_of[client], rounds[:place], index)
                ):
                    raise PrivacyError(
                        f"the ledger has client {client} in round {index}, and {broken}; resume from an "
                        "intact ledger"
                    )
            turns[client] = rounds
        return turns


def _members(clients: Sequence[int]) -> range | frozenset[int]:
    return clients if isinstance(clients, range) else frozenset(clients)


FORMAT_VERSION = 4
COUNTS = "counts_rho"
"""The entry of a ledger's file with the zCDP that every client was charged for its class counts; 0 before
that. It exists where samples follow from class counts."""
CHARGED_ONCE: Mapping[Once, str] = {work: f"{kind.entry}_charged" for work, kind in ONCE.items()}
"""The entries that say whether a one-time sum (outside the rounds) is charged, by the work of the sum."""


def counts_in(charges: object) -> list[Any]:
    """Return the number of releases in each saved privacy cost (charge) of a group; [] for other data."""
    if not isinstance(charges, list):
        return []
    return [charge.get("count") if isinstance(charge, Mapping) else None for charge in charges]


def charged_once_in(fields: Mapping[str, Any]) -> set[Once]:
    """Return the one-time sums that a saved ledger has recorded; a damaged entry counts as recorded."""
    return {work for work, key in CHARGED_ONCE.items() if fields.get(key, False) is not False}


def counts_were_charged(plan: PrivacyPlan, saved: object, charged_rounds: int) -> bool:
    """Whether a saved ledger has the cost of class counts; raise PrivacyError if it differs from the plan."""
    planned = counts_rho(plan.mechanism)
    if saved not in (0.0, planned) or (charged_rounds and not saved):
        raise PrivacyError(
            f"the ledger has class counts at {saved} zCDP, and the plan charges {planned:g} before the first "
            "round; resume from an intact ledger"
        )
    return bool(saved)


def checked_fields(data: object, plan: PrivacyPlan) -> Mapping[str, Any]:
    """Return the entries of a plan's saved ledger; raise PrivacyError if any is missing or unknown."""
    expected = {"version", "plan", "charged_rounds", "charges", "participations"}
    expected |= {TURNS} if isinstance(plan.mechanism, KeepsTurns) else set()
    expected |= {COUNTS} if counts_rho(plan.mechanism) else set()
    expected |= {CHARGED_ONCE[each.work] for each in plan.once}
    if not isinstance(data, Mapping):
        raise PrivacyError(f"the ledger is a {type(data).__name__}, not a mapping; it is damaged")
    if data.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        raise PrivacyError(
            f"the ledger has version {data['version']!r}; this program reads {FORMAT_VERSION}: use "
            "the version that wrote it"
        )
    if set(data) != expected:
        odd = ", ".join(sorted(str(key) for key in expected ^ set(data)))
        raise PrivacyError(f"the ledger lacks or has unknown entries: {odd}; it is damaged")
    return data
