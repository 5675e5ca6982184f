"""Sums over scheduled clients under correlated noise: one epsilon, and it holds against everyone.

A client of group m takes part at most k_m times, at least b_m rounds apart, and the noise of a round is
mostly taken back in the next ones. Nothing is secret in it, neither who takes part when nor how many do. What
turns cost is in `gdpfed.privacy.correlated_noise`, with proofs in docs/privacy.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.composition import compose_against_server
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import (
    CorrelatedGaussian,
    broken_turn,
    check_turns,
    densest_turns,
    prefix_noise,
)
from gdpfed.privacy.events import Sampling
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.ledgers.terms import Instructions, Terms
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanisms.turn_schedule import DealtTurns, TurnSchedule
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, Release
from gdpfed.privacy.sampling.laws import ClientIds


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    """At most `most_turns` k turns, at least `separation` b rounds apart; its sums' noise has taps g."""

    most_turns: int
    separation: int
    taps: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ScheduledSums(Mechanism):
    """One sum of all groups a round, or one a group, over the clients whose turn it is.

    Attributes:
        limits: of every group; the taps of all groups in one sum are the same.
    """

    kind: ClassVar[str] = "scheduled_sums"
    keeps_turns: ClassVar[bool] = True
    against_everyone: ClassVar[bool] = True

    sampling: Sampling = "scheduled"
    limits: tuple[TurnLimits, ...]

    def taps_of(self, m: int) -> tuple[float, ...]:
        return self.limits[m].taps

    def kept_noise(self, m: int, num_rounds: int) -> float:
        return prefix_noise(self.taps_of(m), num_rounds) / math.sqrt(num_rounds)

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        """Return the ids (int64, ascending) of the clients of a group whose turn it is; nothing is drawn."""
        return DealtTurns(group.clients, *self._pattern(m, group)).due(round_index)

    def schedule(self, m: int, groups: Sequence[GroupPlan]) -> TurnSchedule:
        summed = enumerate(groups) if self.one_sum else [(m, groups[m])]
        return TurnSchedule(
            tuple(DealtTurns(each.clients, *self._pattern(number, each)) for number, each in summed)
        )

    def scheduled_members(self, groups: Sequence[GroupPlan], request: Release, round_index: int) -> int:
        first = request.clients[:1].tolist()
        m = 0 if self.one_sum else next((m for m, each in enumerate(groups) if first[0] in each.clients), 0)
        return self.schedule(m, groups).members(round_index, self.taps_of(m))

    def turns_due(self, m: int, group: GroupPlan, round_index: int) -> ClientIds:
        """Return how many turns each client should have had by the end of a round, int64[n].

        With w / P the rate of turns in lowest terms, k / T or less than 1 / T, a client of phase f has its
        turns in the rounds floor((f + i P) / w), i < k. Where T is b k that is f, f + b, ...; else they are b
        or b + 1 apart, and every round has as many clients, up to one. The j-th client has phase j mod P; the
        last n mod P clients are spread evenly over the phases. Below 1 / T most phases come after the run.
        """
        period, width = self._pattern(m, group)
        whole, rest = DealtTurns(group.clients, period, width).dealt
        phases = np.append(np.arange(whole) % period, np.arange(rest) * period // max(1, rest))
        return np.asarray(((round_index + 1) * width - 1 - phases) // period + 1, dtype=np.int64)

    def messages(self, m: int, group: GroupPlan, *, masked: bool) -> float:
        """Updates, and in the rounds after a turn what takes its noise back, unless it is the next turn."""
        num_rounds, limits = _num_rounds(group), self.limits[m]
        lags = [0, *(lag for lag, tap in enumerate(limits.taps, start=1) if masked and tap > 0)]
        period, width = self._pattern(m, group)
        sent = 0
        for phase in range(min(period, num_rounds)):
            turns = ((phase + number * period) // width for number in range(limits.most_turns))
            sent += len({turn + lag for turn in turns for lag in lags if turn + lag < num_rounds})
        return len(group.clients) * sent / period / num_rounds

    def most_rounds(self, m: int) -> int | None:
        return self.limits[m].most_turns

    def broken_turn(self, m: int, taken: Sequence[int], round_index: int) -> str:
        limits = self.limits[m]
        return broken_turn(limits.most_turns, limits.separation, taken, round_index)

    def hides_by_sampling(self, group: GroupPlan) -> bool:
        return False

    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return what turns cost, or the densest where they are not known, with so many rounds released."""
        rounds, limits = min(history.rounds, _num_rounds(group)), self.limits[m]
        turns = history.turns
        if turns is None:
            turns = densest_turns(limits.most_turns, limits.separation, rounds)
        return self._charges(m, group, turns, rounds)

    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        limits, rounds = self.limits[m], _num_rounds(group)
        densest = densest_turns(min(turns, limits.most_turns), limits.separation, rounds)
        return self._charges(m, group, densest, rounds)

    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        return compose_against_server(self.charges_of_turns(m, group, turns), delta)

    def epsilon_of_most(
        self,
        m: int,
        group: GroupPlan,
        turns: Mapping[int, Sequence[int]],
        rounds: int,
        *,
        delta: float,
        paid: Sequence[Charge] = (),
    ) -> float:
        distinct = {(), *(tuple(taken) for taken in turns.values())}
        costs = ([*paid, *self._charges(m, group, each, rounds)] for each in distinct)
        return max(compose_against_server(each, delta) for each in costs)

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> "ScheduledTerms":
        limits = self.limits[m]
        return ScheduledTerms(
            **promised.common,
            epsilon=group.epsilon,
            charges=self.charges(m, group, History(promised.num_rounds)),
            most_turns=limits.most_turns,
            separation=limits.separation,
        )

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        limits = self.limits[m]
        return {
            "turns": {
                "most_turns": limits.most_turns,
                "separation": limits.separation,
                "taps": list(limits.taps),
            }
        }

    def _pattern(self, m: int, group: GroupPlan) -> tuple[int, int]:
        """P and w of turns that are dealt out evenly: w / P is the rate of turns in lowest terms."""
        turns, num_rounds = self.limits[m].most_turns, _num_rounds(group)
        if turns == 1:
            return round(1 / group.ranges[0].sampling_rate), 1
        common = math.gcd(num_rounds, turns)
        return num_rounds // common, turns // common

    def _charges(self, m: int, group: GroupPlan, turns: Sequence[int], rounds: int) -> tuple[Charge, ...]:
        if not turns:
            return ()
        event = CorrelatedGaussian(
            noise_stddev=group.noise_stddev,
            clipping_norm=group.clipping_norm,
            adjacency=self.adjacency,
            num_rounds=rounds,
            turns=tuple(turns),
            taps=self.taps_of(m),
        )
        return (Charge(event=event, count=1, unit=self.unit),)


@dataclass(frozen=True, kw_only=True)
class ScheduledTerms(Terms):
    """Terms of a client with turns: it pays for those that it takes, whoever knows of them.

    The one charge is that of the earliest and densest turns that the limits allow.

    Attributes:
        most_turns: k.
        separation: b, so many rounds lie between two turns, at least.
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
        if self.schedule:
            TurnSchedule.from_text(self.schedule)
        if len(self.charges) != 1 or not isinstance(self.charges[0].event, CorrelatedGaussian):
            raise PrivacyError("the terms about turns have another charge than one stream of sums")
        if self.charges[0].count != 1 or not self.event.is_noisy:
            raise PrivacyError(
                "the terms about turns are for several streams of sums, or for one without noise"
            )
        check_turns(self.most_turns, self.separation, self.num_rounds)
        if self.event.turns != densest_turns(self.most_turns, self.separation, self.num_rounds):
            raise PrivacyError(
                f"the terms charge other turns than the densest {self.most_turns} that are "
                f"{self.separation} rounds apart"
            )

    @property
    def event(self) -> CorrelatedGaussian:
        """The stream of sums and the most expensive turns in it."""
        event = self.charges[0].event
        if not isinstance(event, CorrelatedGaussian):
            raise PrivacyError(f"the terms charge {event.kind}, which is no stream of sums")
        return event

    @property
    def num_rounds(self) -> int:
        return self.event.num_rounds

    @property
    def noise_taps(self) -> tuple[float, ...]:
        return self.event.taps

    @property
    def turns(self) -> tuple[int, int]:
        return self.most_turns, self.separation

    def updates_in(self, round_index: int) -> int:
        return 1

    def check_turn(self, taken: Sequence[int], round_index: int) -> None:
        if broken := broken_turn(self.most_turns, self.separation, taken, round_index):
            raise PrivacyError(f"round {round_index} of run {self.run} is no turn of this client: {broken}")

    def owed_noise(self, round_index: int) -> float:
        return self.event.noise_stddev

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        """Return what these turns and the densest that may follow them cost: no others cost more."""
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
        if norm > self.event.clipping_norm * (1 + ROUNDING):
            return f"clipping norm {norm:.6g} is above the {self.event.clipping_norm:.6g} of the terms"
        if told.noise != "gaussian":
            return f"{told.noise} noise was ordered where the terms say gaussian"
        if told.work != "update":
            return f"{told.work} was ordered, which the terms do not charge"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        most, event = min(self.most_turns, at_most), self.event
        return (
            f"{most:g} of {self.num_rounds} rounds, at least {self.separation} apart, with noise of "
            f"{event.noise_stddev / event.clipping_norm:.4g} norms, of which later rounds take parts back"
        )


def _num_rounds(group: GroupPlan) -> int:
    return sum(each.num_rounds for each in group.ranges)


def limits_of(plan: PrivacyPlan) -> tuple[TurnLimits, ...]:
    """Return how often clients of each group may take part; TypeError for a plan without turns."""
    return plan.made_by(ScheduledSums).limits
