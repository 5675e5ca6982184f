"""What has been spent: charged before a round runs, never given back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpfed.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.plan import BUDGET_TOLERANCE, PrivacyPlan
from gdpfed.privacy.sampling.cohorts import ClientIds
from gdpfed.privacy.validation import require_count

FORMAT_VERSION = 1


class Ledger:
    """The rounds charged to a plan, and how often each client took part.

    A round is charged before it runs and stays charged if it fails, as its updates may have been
    seen. Counts are sparse: clients that never took part cost nothing.
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        """Open an empty ledger for `plan`."""
        self._plan = plan
        self._charged_rounds = 0
        self._participations: tuple[Counter[int], ...] = tuple(Counter() for _ in plan.groups)
        self._members = tuple(_members(group.clients) for group in plan.groups)

    @property
    def charged_rounds(self) -> int:
        """The number of rounds charged, which is also the index of the next one."""
        return self._charged_rounds

    def charge(self, round_index: int, cohorts: Sequence[ClientIds | Sequence[int]]) -> None:
        """Charge the round that is about to run, `cohorts` being the clients drawn per group.

        Raises BudgetExhausted where it would take a group beyond its budget or lies beyond the
        plan's rounds, and PrivacyError for a round out of order or charged already and for
        cohorts that the plan cannot have drawn. Nothing is charged where it raises.
        """
        require_count("round_index", round_index, at_least=0)
        if round_index != self._charged_rounds:
            state = "charged already" if round_index < self._charged_rounds else "out of order"
            raise PrivacyError(
                f"round {round_index} is {state}; the next to charge is {self._charged_rounds}"
            )
        drawn = self._checked_cohorts(cohorts)
        self._check_budgets(round_index + 1)
        self._charged_rounds += 1
        for counts, clients in zip(self._participations, drawn, strict=True):
            counts.update(clients)

    def spent(self) -> tuple[float, ...]:
        """Return each group's accounted epsilon of the charged rounds (inf without privacy)."""
        indices = range(len(self._plan.groups))
        return tuple(self._plan.epsilon_after(m, self._charged_rounds) for m in indices)

    @property
    def remaining(self) -> tuple[float, ...]:
        """Each group's budget less what is spent; 0 without privacy once a round is charged."""
        budgets = (group.epsilon for group in self._plan.groups)
        return tuple(
            0.0 if spent == budget else max(0.0, budget - spent)
            for budget, spent in zip(budgets, self.spent(), strict=True)
        )

    def against_server(self) -> tuple[float, ...]:
        """Return, per group, epsilon against the server of the client that took part most.

        inf without privacy or where the server sees single updates, as soon as anybody took part.
        """
        return tuple(
            self._plan.epsilon_against_server(m, max(counts.values(), default=0))
            for m, counts in enumerate(self._participations)
        )

    def total_participations(self) -> tuple[int, ...]:
        """Return, per group, the sizes of the charged rounds' cohorts, added up."""
        return tuple(counts.total() for counts in self._participations)

    def participations(self, client_id: int) -> int:
        """Return the number of charged rounds that a client was drawn in."""
        return sum(counts[client_id] for counts in self._participations if client_id in counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads."""
        return {
            "version": FORMAT_VERSION,
            "plan": self._plan.fingerprint(),
            "charged_rounds": self._charged_rounds,
            "participations": [
                {str(client): counts[client] for client in sorted(counts)} for counts in self._participations
            ],
        }

    @classmethod
    def from_dict(cls, plan: PrivacyPlan, data: object) -> "Ledger":
        """Return the ledger saved by `to_dict` for the same plan.

        Raises PrivacyError for another plan's ledger and for data that is incomplete or wrong.
        """
        ledger = cls(plan)
        fields = _checked_fields(data)
        if fields["plan"] != plan.fingerprint():
            raise PrivacyError(
                f"the ledger belongs to another plan ({str(fields['plan'])[:12]}); "
                "resume with the configuration it was started with"
            )
        ledger._charged_rounds = require_count(
            "the ledger's charged_rounds", fields["charged_rounds"], at_least=0
        )
        saved = fields["participations"]
        if not isinstance(saved, list) or len(saved) != len(plan.groups):
            raise PrivacyError(
                f"the ledger's participations are not a list of {len(plan.groups)} groups; "
                "the file is damaged, resume from an intact one"
            )
        for m, counts in enumerate(saved):
            ledger._participations[m].update(ledger._checked_counts(m, counts))
        return ledger

    def _check_budgets(self, rounds: int) -> None:
        if not self._plan.private:
            return
        for m, group in enumerate(self._plan.groups):
            epsilon = self._plan.epsilon_after(m, rounds)
            if epsilon > group.epsilon * (1 + BUDGET_TOLERANCE):
                raise BudgetExhausted(
                    f"round {rounds - 1} would take group {m} to epsilon {epsilon:.4g}, above its "
                    f"budget {group.epsilon:g}; training must stop here"
                )
        if rounds > self._plan.num_rounds:
            raise BudgetExhausted(
                f"round {rounds - 1} lies beyond the plan's {self._plan.num_rounds} rounds; "
                "training must stop here, make a plan for more rounds beforehand"
            )

    def _checked_cohorts(self, cohorts: Sequence[ClientIds | Sequence[int]]) -> tuple[list[int], ...]:
        if len(cohorts) != len(self._plan.groups):
            raise PrivacyError(f"{len(cohorts)} cohorts for {len(self._plan.groups)} groups; give one each")
        return tuple(self._checked_cohort(m, cohort) for m, cohort in enumerate(cohorts))

    def _checked_cohort(self, group_index: int, cohort: ClientIds | Sequence[int]) -> list[int]:
        clients: list[int] = np.asarray(cohort, dtype=np.int64).tolist()
        if len(set(clients)) != len(clients):
            raise PrivacyError(
                f"the cohort of group {group_index} repeats a client; its update may count once"
            )
        for client in clients:
            if client not in self._members[group_index]:
                raise PrivacyError(
                    f"client {client} is not in group {group_index}; draw cohorts from this plan"
                )
        if self._plan.sampling == "fixed_size":
            expected = self._plan.mechanism(group_index).cohort_size
            if len(clients) != expected:
                raise PrivacyError(
                    f"the cohort of group {group_index} has {len(clients)} clients; "
                    f"fixed_size sampling draws exactly {expected}"
                )
        return clients

    def _checked_counts(self, group_index: int, counts: object) -> dict[int, int]:
        if not isinstance(counts, Mapping):
            raise PrivacyError(
                f"the ledger's participations of group {group_index} are {type(counts).__name__}, "
                "not a mapping; the file is damaged, resume from an intact one"
            )
        checked = {}
        for client, count in counts.items():
            name = f"the ledger's count of client {client}"
            if not (isinstance(client, str) and client.isascii() and client.isdecimal()):
                raise PrivacyError(f"{name} has no client id; resume from an intact ledger")
            if int(client) not in self._members[group_index]:
                raise PrivacyError(f"{name} is in group {group_index}, which it is not a member of")
            if require_count(name, count) > self._charged_rounds:
                raise PrivacyError(
                    f"{name} is {count}, above the {self._charged_rounds} charged rounds; "
                    "resume from an intact ledger"
                )
            checked[int(client)] = count
        return checked


def _members(clients: Sequence[int]) -> range | frozenset[int]:
    return clients if isinstance(clients, range) else frozenset(clients)


def _checked_fields(data: object) -> Mapping[str, Any]:
    expected = {"version", "plan", "charged_rounds", "participations"}
    if not isinstance(data, Mapping):
        raise PrivacyError(f"the ledger is a {type(data).__name__}, not a mapping; it is damaged")
    if set(data) != expected:
        odd = ", ".join(sorted(str(key) for key in expected ^ set(data)))
        raise PrivacyError(f"the ledger lacks or has unknown entries: {odd}; it is damaged")
    if data["version"] != FORMAT_VERSION:
        raise PrivacyError(f"the ledger has version {data['version']!r}; this program reads {FORMAT_VERSION}")
    return data
