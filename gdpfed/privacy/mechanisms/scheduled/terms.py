"""The conditions of a run with scheduled rounds (turns): a client pays only for rounds it takes part in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import CorrelatedGaussian, broken_turn, check_turns, densest_turns
from gdpfed.privacy.ledgers.terms import Instructions, Terms
from gdpfed.privacy.ledgers.terms_options import TurnTerms
from gdpfed.privacy.mechanisms.scheduled.turns import NoiseStream
from gdpfed.privacy.release import ROUNDING
from gdpfed.record_steps import PLAIN, kind_of


@dataclass(frozen=True, kw_only=True)
class ScheduledTerms(Terms, TurnTerms):
    """The conditions of a run in which a client has scheduled rounds (turns); epsilon holds against everyone.

    The one charge is that of the earliest and densest turns that the limits allow.

    Attributes:
        most_turns: k.
        separation: b, the least distance of two turns, in rounds.
        schedule: whose turn each round is, as `TurnSchedule.to_text` says it; empty where the server may move
            turns, since no member could tell a client that it has made up from one of them.
    """

    kind: ClassVar[str] = "scheduled_sums"
    pays_by_turn: ClassVar[bool] = True
    unsaid: ClassVar[tuple[str, ...]] = ("schedule",)

    most_turns: int
    separation: int
    schedule: str = ""

    def _check(self) -> None:
        super()._check()
        if len(self.charges) != 1 or not isinstance(self.charges[0].event, CorrelatedGaussian):
            raise PrivacyError("the terms about turns have another charge than one stream of sums")
        if self.charges[0].count != 1 or not self.event.is_noisy:
            raise PrivacyError(
                "the terms about turns are for several streams of sums, or for one without noise"
            )
        check_turns(self.most_turns, self.separation, self.num_rounds)
        if self.event.turns != densest_turns(self.most_turns, self.separation, self.num_rounds):
            raise PrivacyError(
                f"the terms let a client take part {self.most_turns} times, {self.separation} rounds apart "
                "or more, and do not charge the most expensive such rounds: run one version on server and "
                "nodes"
            )

    @property
    def event(self) -> CorrelatedGaussian:
        """The event whose cost counts for the client: the most expensive rounds in which it may take part."""
        event = self.charges[0].event
        if not isinstance(event, CorrelatedGaussian):
            raise PrivacyError(f"the terms charge {event.kind}, which is not a stream of sums")
        return event

    @property
    def num_rounds(self) -> int:
        return self.event.num_rounds

    @property
    def noise_taps(self) -> tuple[float, ...]:
        return self.event.taps

    @property
    def stream(self) -> NoiseStream | None:
        """Values on which all members of a sum must agree; None without correlated noise or schedule."""
        if not (self.schedule and any(self.noise_taps)):
            return None
        return NoiseStream(
            self.num_rounds, self.noise_taps, self.event.noise_stddev, self.corrupt_tolerance, self.schedule
        )

    @property
    def turns(self) -> tuple[int, int]:
        return self.most_turns, self.separation

    def updates_in(self, round_index: int) -> int:
        return 1

    def check_turn(self, taken: Sequence[int], round_index: int) -> None:
        if broken := broken_turn(self.most_turns, self.separation, taken, round_index):
            raise PrivacyError(
                f"round {round_index} of run {self.run} is not a turn of this client: {broken}"
            )

    def owed_noise(self, round_index: int) -> float:
        return self.event.noise_stddev

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        """Return the cost of rounds `turns` and of the most expensive further rounds that the run allows."""
        left = int(max(0, min(self.most_turns, at_most) - len(turns)))
        first = max(self.first_round, max(turns, default=-self.separation) + self.separation)
        return self._charges([*turns, *range(first, self.num_rounds, self.separation)[:left]])

    def spent_charges(
        self, turns: Sequence[int], other: Terms | None = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        return self._charges(turns)

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return self._charges(turns)

    def _charges(self, turns: Sequence[int]) -> tuple[Charge, ...]:
        if not turns:
            return ()
        event = replace(self.event, turns=tuple(sorted(set(turns))))
        return (Charge(event=event, count=1, unit=self.unit),)

    def broken_by(self, round_index: int, told: Instructions, sum_norm: float) -> str:
        norm = min(told.clipping_norm, sum_norm)
        if not norm <= self.event.clipping_norm * (1 + ROUNDING):
            return f"clipping norm {norm:.6g} is above the {self.event.clipping_norm:.6g} of the terms"
        if told.noise != "gaussian":
            return f"the server asks for {told.noise} noise where the terms say gaussian"
        if kind_of(told.work) != PLAIN:
            return f"the server asks for {told.work}, which the terms do not charge"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        most, event = min(self.most_turns, at_most), self.event
        return (
            f"{most:g} of {self.num_rounds} rounds, at least {self.separation} apart, with noise of "
            f"{event.noise_stddev / event.clipping_norm:.4g} norms, of which later rounds take parts back"
        )
