"""The conditions of a run that protects records, and checks of the server's instructions against them."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, sqrt
from typing import Any, ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge, first_charges
from gdpfed.privacy.events import DPSGDSteps, Event, RecordEvent, Unit, WindowBound
from gdpfed.privacy.ledgers.terms import Instructions, Terms
from gdpfed.privacy.ledgers.terms_options import RecordBudgets
from gdpfed.privacy.release import ROUNDING
from gdpfed.privacy.validation import require_count, require_positive, require_rate
from gdpfed.record_steps import RecordSteps, Work, kind_of, record_move, require_record_work

MOST_RECORD_GROUPS = 100


@dataclass(frozen=True, kw_only=True)
class RecordTerms:
    """The part of a run's conditions that only records need: batch rates, steps, clipping norm and noise.

    Attributes:
        num_rounds: T of the run; in how many of them a client pays for steps, the charges say.
        work: dp_sgd, whose noise the client adds to every step, or another one, whose noise is in the sum.
        clipping_norm: C, the bound on the gradient of one record; of windows the unit in which it moves one.
        batch_rates: q of every group of the client's records, the smallest budget first.
        shares: the part of its records that is in each group.
        seed: of the run; it deals out the records to the groups where the data does not say theirs.
        sums_per_round: how many sums a client is in, each with its part of the round's steps.
    """

    num_rounds: int
    work: Work
    clipping_norm: float
    batch_rates: tuple[float, ...]
    shares: tuple[float, ...]
    seed: int = 0
    sums_per_round: int = 1

    def __post_init__(self) -> None:
        require_count("the terms' num_rounds", self.num_rounds)
        require_count("the terms' seed", self.seed, at_least=0)
        require_count("the terms' sums_per_round", self.sums_per_round)
        if not isinstance(self.work, str):
            raise PrivacyError(f"the terms' work is {self.work!r}; give the name of a work on records")
        require_record_work("the terms' work", self.work)
        require_positive("the terms' clipping_norm of a record", self.clipping_norm)
        for name in ("batch_rates", "shares"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not 0 < len(values) <= MOST_RECORD_GROUPS:
                raise PrivacyError(f"the terms' {name} are {values!r}; give from 1 to {MOST_RECORD_GROUPS}")
            object.__setattr__(self, name, tuple(values))
            for value in values:
                require_rate(f"one of the terms' {name}", value)
        if len(self.batch_rates) != len(self.shares):
            raise PrivacyError(
                f"the terms have {len(self.batch_rates)} batch_rates and {len(self.shares)} shares; give one "
                "of each for every group of records"
            )


@dataclass(frozen=True, kw_only=True)
class TermsOfRecords(Terms, RecordBudgets):
    """The conditions of a run that protects records: what all mechanisms for records have in common.

    Attributes:
        records: which steps they pay for.
    """

    unit: ClassVar[Unit] = "record"

    records: RecordTerms

    @property
    def num_rounds(self) -> int:
        return self.records.num_rounds

    @property
    def num_budgets(self) -> int:
        return len(self.records.batch_rates)

    @property
    def record_groups(self) -> tuple[tuple[float, ...], int]:
        """The fraction of a client's records in each group, and the seed by which records get into groups."""
        return self.records.shares, self.records.seed

    @property
    def parties(self) -> int:
        return 1

    @property
    def private_by_itself(self) -> bool:
        return kind_of(self.records.work).own_noise

    def updates_in(self, round_index: int) -> int:
        return self.records.sums_per_round

    def broken_by(self, round_index: int, told: Instructions, sum_norm: float) -> str:
        records, steps = self.records, told.records
        if told.work != records.work or steps is None:
            return f"the server asks for {told.work} where the terms say {records.work}"
        if not rates_within(steps.batch_rates, records.batch_rates):
            return (
                f"batch rates {listed(steps.batch_rates)} are not within the "
                f"{listed(records.batch_rates)} of the terms"
            )
        if len(steps.batch_rates) > 1 and told.record_groups != self.record_groups:
            return "the records are assigned to other groups than under the terms"
        if self.private_by_itself:
            return self.broken_own_noise(round_index, steps)
        return self.broken_window(steps) or self._broken_sum(told, steps)

    def noise_of_step(self, round_index: int) -> float:
        """Return sigma, a step's noise multiplier in accounting; raise PrivacyError if none is stated."""
        raise PrivacyError(f"the terms state no noise for a step of round {round_index}; state one above 0")

    def broken_own_noise(self, round_index: int, steps: RecordSteps) -> str:
        """Return an error text if steps to which the client adds noise have too little of it, else ""."""
        least = self.noise_of_step(round_index)
        if not steps.noise_multiplier >= least * (1 - ROUNDING):
            return (
                f"noise multiplier {steps.noise_multiplier:.6g} of a step is below the {least:.6g} of the "
                "terms"
            )
        return ""

    def broken_window(self, steps: RecordSteps) -> str:
        """Return an error text if a sum has more or fewer steps than its noise was planned for, else ""."""
        if steps.num_steps != 1:
            return f"the server asks for a sum over {steps.num_steps} steps, and its noise is for one step"
        return ""

    def _broken_sum(self, told: Instructions, steps: RecordSteps) -> str:
        """Return how an instruction for a sum of gradients breaks the run's conditions; "" if it does not."""
        if told.noise != "gaussian":
            return f"the server asks for {told.noise} noise where the terms say gaussian"
        moved = told.weight * record_move(self.records.work, steps)
        # Not the other way round: a NaN is within no bound.
        if not 0 < moved <= self.records.clipping_norm * (1 + ROUNDING):
            return (
                f"a record could move the sum by {moved:.6g}, above the clipping norm "
                f"{self.records.clipping_norm:.6g} of the terms"
            )
        return ""

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super()._read(values)
        try:
            told = json.loads(values["records"]) if isinstance(values["records"], str) else None
        except ValueError:
            told = None
        names = {field.name for field in fields(RecordTerms)}
        if not isinstance(told, dict) or set(told) != names:
            raise PrivacyError(f"the terms' records are not a JSON mapping of {', '.join(sorted(names))}")
        return {**values, "records": RecordTerms(**told)}


@dataclass(frozen=True, kw_only=True)
class StepTerms(TermsOfRecords):
    """The conditions of a run with DP-SGD steps; the cost of all planned steps counts from the run's start.

    `charges` are what one of the first group of records pays for at most, the most expensive rounds first.
    """

    kind: ClassVar[str] = "record_sums"
    event_class: ClassVar[type[Event]] = DPSGDSteps

    def _check(self) -> None:
        super()._check()
        steps = {(event.batch_rate, event.noise_multiplier, event.parties) for event in self.events}
        if len(self.events) != len(self.charges) or len(steps) != 1:
            raise PrivacyError(
                "the terms charge a record for something else than steps of DP-SGD with one batch rate and "
                "one noise"
            )
        bound = kind_of(self.records.work).window
        if other := {event.bound for event in self.events} - {bound}:
            raise PrivacyError(
                f"the terms charge {by_bound(other.pop())}, and {self.records.work} costs "
                f"{by_bound(bound)}: do not join such a run, and do not rely on its epsilon in a ledger"
            )
        if self.records.batch_rates[0] != self.events[0].batch_rate:
            raise PrivacyError("the terms' charges are not those of the first of their batch_rates")

    @property
    def events(self) -> tuple[RecordEvent, ...]:
        """The events, among the run's privacy costs, that are DP-SGD steps on records."""
        return tuple(each.event for each in self.charges if isinstance(each.event, self.event_class))  # type: ignore[misc]

    @property
    def num_steps(self) -> int:
        """The largest number of DP-SGD steps that a client may be asked for in all its rounds."""
        left = first_charges(self.charges, self.num_rounds - self.first_round)
        return sum(each.count * each.event.num_steps for each in left)  # type: ignore[attr-defined]

    @property
    def step_noise(self) -> float:
        """sigma: the noise multiplier with which every step on records is accounted."""
        return self.events[0].noise_multiplier

    @property
    def parties(self) -> int:
        """S: the largest number of clients with records of one person; 1 if single rows are protected."""
        return self.events[0].parties

    def noise_of_step(self, round_index: int) -> float:
        return self.step_noise

    def owed_noise(self, round_index: int) -> float:
        return self.step_noise * self.records.clipping_norm * sqrt(self.parties)

    def step_charges(self, num_steps: int, record_group: int | None = None) -> tuple[Charge, ...]:
        """Return a record's cost of `num_steps` steps; at the largest batch rate if `record_group` is None.

        Every step has the same noise and, for one record, the same rate: so it does not matter in which
        rounds they are taken.
        """
        if num_steps == 0:
            return ()
        rates = self.records.batch_rates
        rate = max(rates) if record_group is None else rates[record_group]
        event = replace(self.events[0], batch_rate=rate, num_steps=self.whole_windows(num_steps))
        return (Charge(event=event, count=1, unit="record"),)

    def whole_windows(self, num_steps: int) -> int:
        """Round a number of steps up to whole releases; here unchanged, since every step is one release."""
        return num_steps

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        return self.step_charges(self.num_steps)

    def spent_charges(
        self, turns: Sequence[int], other: Terms | None = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        """Return a record's cost of all planned steps, whatever rounds the client has been in.

        The batch rate is the highest of all groups if a record may be in another group under `other` terms.
        """
        alike = isinstance(other, TermsOfRecords) and self._groups_as(other)
        return self.step_charges(self.num_steps, record_group if alike else None)

    def _groups_as(self, other: TermsOfRecords) -> bool:
        """Whether the run with the conditions `other` is known to group all records as this run does.

        Shares and seed do not say so: the deal follows from the data, too. Where a ledger does not name them,
        only the run itself is known to have the same groups.
        """
        if self.run == other.run:
            return True
        dealt = bool(self.dealt_by) and self.dealt_by == other.dealt_by
        return dealt and self.record_groups == other.record_groups

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return self.step_charges(steps)

    def steps_left(self, steps: int) -> int:
        return self.num_steps - steps

    def check_steps(self, round_index: int, taken: int, num_steps: int) -> None:
        require_count(f"the steps of round {round_index} of run {self.run}", num_steps)
        left = self.num_steps - taken
        if num_steps > left:
            raise PrivacyError(
                f"round {round_index} of run {self.run} would take {num_steps} steps, and {left} "
                f"of the {self.num_steps} of its terms are left"
            )

    def in_words(self, at_most: float = inf) -> str:
        several = f", of persons at up to {self.parties} parties" if self.parties > 1 else ""
        return (
            f"{self.num_steps} steps at batch rate {listed(self.records.batch_rates)} with noise "
            f"multiplier {self.step_noise:.4g}{several}"
        )


def rates_within(rates: Sequence[float], planned: Sequence[float]) -> bool:
    """Whether there are as many batch rates as planned, and none is above its planned one."""
    return len(rates) == len(planned) and all(
        rate <= most * (1 + ROUNDING) for rate, most in zip(rates, planned, strict=True)
    )


def listed(numbers: Sequence[float]) -> str:
    """Write numbers with six significant digits, separated by commas."""
    return ", ".join(f"{number:.6g}" for number in numbers)


def by_bound(bound: WindowBound | None) -> str:
    """Return words for what is charged: windows of steps by this bound or, if it is None, single steps."""
    return f"windows of steps by the bound {bound}" if bound else "every step by itself"
