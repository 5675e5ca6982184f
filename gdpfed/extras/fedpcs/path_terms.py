"""Conditions (terms) of a run in which every client pays its own zCDP cost for each of its rounds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum, inf
from typing import ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge, event_of_round
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.mechanisms.records.terms import TermsOfRecords
from gdpfed.privacy.validation import require_count
from gdpfed.record_steps import RecordSteps


@dataclass(frozen=True, kw_only=True)
class PathTerms(TermsOfRecords):
    """Conditions (terms) of a run in which every client pays its own zCDP cost for each of its rounds.

    `charges` are the Gaussian mechanism of each round, in their order.

    Attributes:
        most_rounds: a client takes part in no more rounds than these.
    """

    kind: ClassVar[str] = "own_spending"
    pays_by_turn: ClassVar[bool] = True

    most_rounds: int

    def _check(self) -> None:
        super()._check()
        require_count("the terms' most_rounds", self.most_rounds)
        records = self.records
        if not all(
            isinstance(each.event, Gaussian)
            and (each.event.adjacency, each.event.noise) == ("replace_one", "gaussian")
            and each.event.clipping_norm == records.clipping_norm
            and each.event.is_noisy
            for each in self.charges
        ):
            raise PrivacyError(
                "the terms' budgets by round are not for Gaussian noise under replace_one at their clipping "
                "norm"
            )
        if self.held_out:
            raise PrivacyError(
                "the terms' budgets by round are for replace_one, and counts on held-out records are charged "
                "under zero_out: set run.evaluation=server"
            )
        if sum(each.count for each in self.charges) != records.num_rounds:
            raise PrivacyError(
                f"the terms do not have one budget for each of their {records.num_rounds} rounds: give as "
                "many budgets as rounds"
            )
        if (records.work, records.batch_rates, records.sums_per_round) != ("dp_sgd", (1.0,), 1):
            raise PrivacyError(
                "the terms' budgets by round are for one step of dp_sgd in a round, on all records"
            )

    @property
    def path(self) -> tuple[float, ...]:
        """The zCDP cost of each round, rho_i^t = 1 / (2 z^2), for noise multiplier z."""
        return tuple(
            1 / (2 * each.event.noise_multiplier**2)
            for each in self.charges
            for _ in range(each.count)
            if isinstance(each.event, Gaussian)
        )

    def most_expensive_rounds(self, taken: Collection[int] = (), at_most: float = inf) -> tuple[int, ...]:
        """Return a client's past rounds, followed by its most expensive possible future rounds.

        There are as many future rounds as the client may still take part in, or fewer: past and future
        rounds together are limited to `at_most`.
        """
        path, most = self.path, min(at_most, self.most_rounds)
        left = [index for index in range(self.first_round, self.num_rounds) if index not in taken]
        left.sort(key=lambda index: -path[index])
        return (*taken, *left[: int(max(0, min(len(left), most - len(taken))))])

    def owed_noise(self, round_index: int) -> float:
        return 0.0

    def noise_of_step(self, round_index: int) -> float:
        event = event_of_round(self.charges, round_index)
        return event.noise_stddev / event.clipping_norm if isinstance(event, Gaussian) else inf

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        return self._charges(self.most_expensive_rounds(turns, at_most))

    def spent_charges(
        self, turns: Sequence[int], other: Terms | None = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        return self._charges(turns)

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return self._charges(turns)

    def _charges(self, rounds: Collection[int]) -> tuple[Charge, ...]:
        return tuple(
            Charge(event=event_of_round(self.charges, index), count=1, unit="record") for index in rounds
        )

    @property
    def num_steps(self) -> int:
        """The largest number of steps, one in each round, that may use the client's records."""
        return len(self.most_expensive_rounds())

    def steps_left(self, steps: int) -> int:
        return self.num_steps - steps

    def check_steps(self, round_index: int, taken: int, num_steps: int) -> None:
        require_count(f"the steps of round {round_index} of run {self.run}", num_steps)
        if num_steps > 1:
            raise PrivacyError(
                f"round {round_index} of run {self.run} would take {num_steps} steps; it may take one"
            )

    def broken_own_noise(self, round_index: int, steps: RecordSteps) -> str:
        if broken := super().broken_own_noise(round_index, steps):
            return broken
        if steps.num_steps != 1:
            return f"the server asks for {steps.num_steps} steps where the terms charge one for each round"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        rounds, path = self.most_expensive_rounds(at_most=at_most), self.path
        return f"budgets by round of {fsum(path[index] for index in rounds):.4g} zCDP in {len(rounds)} rounds"
