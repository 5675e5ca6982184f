"""A mechanism: how the sums of a run are drawn, bounded and noised, and what that costs whom.

A plan is its groups and one mechanism. Plan, ledger, terms and reports ask the mechanism and never which one
it is. What it costs is a function of a history: how many rounds were released, and in which of them a client
took part. So steps that differ, releases that depend on earlier ones and noise that is correlated over rounds
have a place here.

The mechanisms of this project are in `gdpfed.privacy.mechanisms`, one file each, with the terms that a node
agrees to.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, NoiseLaw, Sampling, Unit
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.release import ROUNDING, NoiseAt, Release, planned_norm_exceeded
from gdpfed.privacy.sampling.laws import ClientIds, SamplingLaw, sampling_law
from gdpfed.record_steps import Work

if TYPE_CHECKING:
    from gdpfed.privacy.ledgers.terms import Terms
    from gdpfed.privacy.mechanisms.turn_schedule import TurnSchedule


COUNTS_DISTANCE = math.sqrt(2)
"""How far class counts move when one record is replaced: one class has one less, another one more."""


@dataclass(frozen=True)
class History:
    """What happened of a run.

    Attributes:
        rounds: how many rounds were released, from the first on.
        turns: in which of them a client took part, from 0; None where that is not known.
    """

    rounds: int
    turns: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PromisedRun:
    """What a server says to a client of a run beside its mechanism, which makes terms of it.

    Attributes:
        num_rounds: T.
        common: the entries that the terms of every mechanism have.
        client: whose terms they are; None where all clients of a group have the same.
        seed: of the run.
    """

    num_rounds: int
    common: Mapping[str, Any]
    client: int | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class RecordGroup:
    """Records with one budget: `share` of every client's, each in a batch with chance `batch_rate`."""

    epsilon: float
    epsilon_accounted: float
    share: float
    batch_rate: float


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """How sums are made. Methods take a group by its number in the plan, m, and its plan.

    Attributes:
        kind: its name in a plan's file.
        sampling: the law by which cohorts are drawn.
        adjacency: what neighbouring runs differ in.
        noise: the law of the noise.
        unit: whose presence is protected.
        works: what clients may be asked to compute.
        sums_per_round: in how many sums of a round a client may be.
        one_sum: whether a round releases one sum of all groups' cohorts, in place of one sum a group.
    """

    kind: ClassVar[str]
    keeps_turns: ClassVar[bool] = False
    """Whether the cost depends on the rounds that a client took part in, and not on their number alone."""
    against_everyone: ClassVar[bool] = False
    """Whether its one epsilon holds against all who see sums, those who know the cohorts included."""
    small_cohorts_are_charged: ClassVar[bool] = False
    """Whether a cohort of which no sum can be made is charged all the same, as epsilon counts on the draw."""
    adds_own_noise: ClassVar[bool] = False
    """Whether a client noises its own contribution fully, so that nobody else needs to hide it."""
    no_canaries: ClassVar[str] = ""
    """Why its epsilon cannot be measured with canaries; "" where it can."""

    sampling: Sampling
    adjacency: Adjacency = "zero_out"
    noise: NoiseLaw = "gaussian"
    unit: Unit = "client"
    works: tuple[Work, ...] = ("update",)
    sums_per_round: int = 1
    one_sum: bool = False

    @property
    def law(self) -> SamplingLaw:
        """How cohorts are drawn."""
        return sampling_law(self.sampling)

    @property
    def distance(self) -> float:
        """How far neighbouring contributions are apart, in bounds of one."""
        return 1.0 if self.adjacency == "zero_out" else 2.0

    @property
    def absent_clients_count(self) -> bool:
        """Whether a client that cannot be reached stays in the cohort, as the accounting wants full ones."""
        return self.law.absent_clients_count

    @property
    def rule(self) -> str | None:
        """By which samples follow from what clients have released; None where a secret key draws them."""
        return None

    @property
    def counts_rho(self) -> float:
        """The zCDP at which every client releases its class counts before the first round; 0 for none."""
        return 0.0

    @property
    def counts_noise(self) -> float:
        """The standard deviation of the noise in each of them: Delta / sqrt(2 rho)."""
        return COUNTS_DISTANCE / math.sqrt(2 * self.counts_rho)

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        """Return the ids (int64, ascending) of a group's cohort of a round."""
        del m
        return self.law.draw(group.clients, group.at(round_index).sampling_rate, generator)

    def turns_due(self, m: int, group: GroupPlan, round_index: int) -> ClientIds | None:
        """Return how many turns each client of a group should have had by the end of a round, int64[n].

        None where chance or a rule says who takes part.
        """
        del m, group, round_index
        return None

    def most_rounds(self, m: int) -> int | None:
        """Return in how many rounds a client is asked at most; None where chance alone limits it."""
        del m
        return None

    def taps_of(self, m: int) -> tuple[float, ...]:
        """Return g of a group's sums: which parts of a round's noise the next rounds take back; none where
        noise is not correlated.
        """
        del m
        return ()

    def kept_noise(self, m: int, num_rounds: int) -> float:
        """Return the noise of all rounds together over that of rounds whose noise is independent."""
        del m, num_rounds
        return 1.0

    def messages(self, m: int, group: GroupPlan, *, masked: bool) -> float:
        """Return how many messages with something for a sum a group's clients send in a round, on average.

        `masked` says that members add the noise, and so take it back themselves.
        """
        del m, masked
        return group.expected_cohort_size

    def schedule(self, m: int, groups: Sequence[GroupPlan]) -> "TurnSchedule | None":
        """Return the turns of all clients that are summed with a group's; None where nobody has any."""
        del m, groups
        return None

    def scheduled_members(self, groups: Sequence[GroupPlan], request: Release, round_index: int) -> int:
        """Return how many members a sum of a round can have by the schedule; 0 where there is none."""
        del groups, request, round_index
        return 0

    def broken_turn(self, m: int, taken: Sequence[int], round_index: int) -> str:
        """Say why a client with these turns may not have one in a round; "" if it may."""
        del m, taken, round_index
        return ""

    def rests(self, group: GroupPlan, round_index: int) -> bool:
        """Whether the clients of a group are left out of a round, by the plan."""
        del group, round_index
        return False

    @abstractmethod
    def hides_by_sampling(self, group: GroupPlan) -> bool:
        """Whether epsilon of a group holds only for those who are told nothing of the cohorts."""

    @abstractmethod
    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return what a history costs a client of a group, or a record of one of its groups of records.

        It is the cost against those who are told nothing of the cohorts.
        """

    def totals_as_charges(self, rounds: int | None) -> tuple[Charge, ...]:
        """Return what the client that pays most pays in so many rounds, where each has totals of its own."""
        del rounds
        return ()

    @abstractmethod
    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        """Return the most that so many turns cost against those who know the cohorts."""

    def epsilon(
        self,
        m: int,
        group: GroupPlan,
        history: History,
        *,
        delta: float,
        accountant: Accountant,
        record_group: int = 0,
    ) -> float:
        """Return epsilon at delta of a history; the plan's own accountant composes a fixed schedule."""
        if not history.rounds:
            return 0.0
        charges = self.charges(m, group, history, record_group)
        return compose(charges, delta, schedule="fixed", accountant=accountant).epsilon

    @abstractmethod
    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        """Return epsilon at delta of the most that so many turns cost those who know the cohorts."""

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
        """Return epsilon at delta of the client of a group whose turns, in the rounds so far, cost most.

        All have paid something before. It is asked if `keeps_turns`.
        """
        raise TypeError(f"{self.kind} keeps no turns")

    def broken_rule(
        self, groups: Sequence[GroupPlan], group_of: Mapping[int, int], round_index: int, request: Release
    ) -> str:
        """Say how bound, noise or steps of a request break what the round was charged for; "" if not.

        By default it compares the noise of the sum and the norms with the plan's.

        Args:
            groups: of the plan.
            group_of: the number of the group of every client that was drawn in the round.
            round_index: from 0.
            request: what is asked for.
        """
        if broken := self.broken_place(group_of, request):
            return broken
        if request.noise != self.noise:
            return f"{request.noise} noise is asked for, and the plan's is {self.noise}"
        for client, norm in zip(request.clients.tolist(), request.contribution_norms.tolist(), strict=True):
            m = group_of[client]
            if request.taps != self.taps_of(m):
                return (
                    f"noise with the taps {request.taps} is asked for, and the plan's are {self.taps_of(m)}"
                )
            planned = groups[m].at(round_index)
            if planned_norm_exceeded(norm, planned.clipping_norm):
                return (
                    f"client {client} may contribute a norm of {norm:.6g}, above the plan's "
                    f"{planned.clipping_norm:.6g}"
                )
            owed = planned.noise_stddev * self.noise_factor(m, len(request.clients))
            if not request.noise_stddev >= owed * (1 - ROUNDING):
                return (
                    f"noise of standard deviation {request.noise_stddev:.6g} is below the plan's {owed:.6g}"
                )
        return ""

    def broken_place(self, group_of: Mapping[int, int], request: Release) -> str:
        """Say how the place where noise is added breaks the plan's; "" if it does not."""
        edges = all(self.edge_adds_noise(group_of[client]) for client in request.clients.tolist())
        if request.noise_at is NoiseAt.CLIENT or (request.noise_at is NoiseAt.EDGE and edges):
            return ""
        return f"noise is added {request.noise_at.value}, and the plan's is added by every client"

    def edge_adds_noise(self, m: int) -> bool:
        """Whether an edge that sees single contributions adds the noise of a group."""
        del m
        return False

    def noise_factor(self, m: int, num_clients: int) -> float:
        """Return how many times the planned noise a sum over so many clients carries."""
        del m, num_clients
        return 1.0

    @abstractmethod
    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> "Terms":
        """Return what the server promises a client of a group before a run.

        Raises PrivacyError where a node cannot check what it would be promised.
        """

    def record_groups(self, m: int) -> tuple[RecordGroup, ...]:
        """Return the groups of records of a group's clients; none where whole clients are protected."""
        del m
        return ()

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        """Return what the JSON form of a group says besides."""
        del m, group
        return {}
