"""Scheduled rounds for each client (turns) and correlated noise: one epsilon holds against everyone.

A client of group m takes part at most k_m times, at least b_m rounds apart, and the noise of a round is
mostly taken back in the next ones. Nothing is secret in it, neither who takes part when nor how many do. What
turns cost is in `gdpfed.privacy.correlated_noise`, with proofs in docs/privacy.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.composition import compose_against_server
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import (
    CorrelatedGaussian,
    broken_turn,
    densest_turns,
    prefix_noise,
)
from gdpfed.privacy.events import Sampling
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanism_options import HasTurns
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from gdpfed.privacy.mechanisms.scheduled.turns import DealtTurns, TurnSchedule
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.laws import ClientIds


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    """How often a client may take part: at most `most_turns` rounds, at least `separation` rounds apart.

    `taps`: g, the parts of a sum's noise that later rounds subtract.
    """

    most_turns: int
    separation: int
    taps: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ScheduledSums(Mechanism, HasTurns):
    """Noised sums over the clients scheduled for a round: one sum over all groups, or one for each group.

    Attributes:
        limits: of every group; the taps of all groups in one sum are the same.
    """

    kind: ClassVar[str] = "scheduled_sums"
    against_everyone: ClassVar[bool] = True

    sampling: Sampling = "scheduled"
    limits: tuple[TurnLimits, ...]

    def taps_of(self, m: int) -> tuple[float, ...]:
        return self.limits[m].taps

    def kept_noise(self, m: int, num_rounds: int) -> float:
        return prefix_noise(self.taps_of(m), num_rounds) / math.sqrt(num_rounds)

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        """Return the ids (int64, ascending) of a group's clients scheduled for a round; nothing is random."""
        return DealtTurns(group.clients, *self._pattern(m, group)).due(round_index)

    def schedule(self, m: int, groups: Sequence[GroupPlan]) -> TurnSchedule:
        summed = enumerate(groups) if self.one_sum else [(m, groups[m])]
        return TurnSchedule(
            tuple(DealtTurns(each.clients, *self._pattern(number, each)) for number, each in summed)
        )

    def turns_due(self, m: int, group: GroupPlan, round_index: int) -> ClientIds:
        """Return in how many rounds each client should have taken part by the end of a round, int64[n].

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
        """Return the mean number of messages a round: updates, and messages that subtract earlier noise."""
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
        """Return the cost of a client's rounds if they are known, else of the costliest allowed rounds."""
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
        return max(compose_against_server(cost, delta) for cost in costs)

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> ScheduledTerms:
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
        """Return a group's schedule (P, w) in lowest terms: a client takes part in w of every P rounds."""
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


def _num_rounds(group: GroupPlan) -> int:
    return sum(each.num_rounds for each in group.ranges)


def limits_of(plan: PrivacyPlan) -> tuple[TurnLimits, ...]:
    """Return how often clients of each group may take part; raise TypeError if clients are not scheduled."""
    return plan.made_by(ScheduledSums).limits
