"""A privacy mechanism: how a run samples, clips and adds noise, and how much privacy that costs.

A plan has groups and one mechanism. Plan, ledger, terms and reports call the mechanism's methods and do not
depend on its class. The cost is a function of a history: how many rounds were released, and in which of them
a client took part. So a mechanism may have rounds that differ, releases that depend on earlier ones, and
noise that is correlated over rounds.

`Mechanism` has the methods of all mechanisms. Optional features are classes in
`gdpfed.privacy.mechanism_options`, from which a mechanism also derives. Each mechanism has a folder in
`gdpfed.privacy.mechanisms`, or is in an extra.
"""

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
from gdpfed.privacy.mechanism_options import broken_place, noise_factor, taps_of
from gdpfed.privacy.release import ROUNDING, Release, planned_norm_exceeded
from gdpfed.privacy.sampling.laws import ClientIds, SamplingLaw, sampling_law
from gdpfed.record_steps import Work

if TYPE_CHECKING:
    from gdpfed.privacy.ledgers.terms import Terms


@dataclass(frozen=True)
class History:
    """How many rounds were released and, if the cost depends on it, in which of them a client took part.

    Attributes:
        rounds: the number of released rounds, from the first round on.
        turns: the rounds in which a client took part, counted from 0; None if they are not known.
    """

    rounds: int
    turns: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PromisedRun:
    """What a server tells a client about a run; from it come the conditions that the client's node checks.

    Attributes:
        num_rounds: T.
        common: the entries that the terms of all mechanisms have.
        client: the client of the terms; None if all clients of a group have the same terms.
        seed: the run's seed.
    """

    num_rounds: int
    common: Mapping[str, Any]
    client: int | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A privacy mechanism: how clients are sampled, and their contributions clipped, summed and noised.

    Its methods take a group's number m and the group's plan.

    Attributes:
        kind: its name in a plan's file.
        sampling: the law by which cohorts are drawn.
        adjacency: how neighbouring runs differ.
        noise: the law of the noise.
        unit: the privacy unit.
        works: the kinds of computation that clients may be asked for.
        sums_per_round: the largest number of sums of one round that a client may be in.
        one_sum: whether a round releases one sum of all groups' cohorts, in place of one sum for each group.
    """

    kind: ClassVar[str]
    against_everyone: ClassVar[bool] = False
    """Whether its epsilon holds against all who see the sums, also against those who know the cohorts."""
    small_cohorts_are_charged: ClassVar[bool] = False
    """Whether a cohort that is too small for a sum is also charged, since epsilon counts on the draw."""
    adds_own_noise: ClassVar[bool] = False
    """Whether a client's own noise makes its contribution private, so that no mask needs to hide it."""
    no_canaries: ClassVar[str] = ""
    """Why its epsilon cannot be measured with canaries; "" if it can be."""

    sampling: Sampling
    adjacency: Adjacency = "zero_out"
    noise: NoiseLaw = "gaussian"
    unit: Unit = "client"
    works: tuple[Work, ...] = ("update",)
    sums_per_round: int = 1
    one_sum: bool = False

    @property
    def law(self) -> SamplingLaw:
        """The law by which cohorts are sampled."""
        return sampling_law(self.sampling)

    @property
    def distance(self) -> float:
        """How far apart neighbouring contributions can be, as a multiple of the clipping norm."""
        return 1.0 if self.adjacency == "zero_out" else 2.0

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        """Draw a group's cohort for a round; return client ids (int64, ascending)."""
        return self.law.draw(group.clients, group.at(round_index).sampling_rate, generator)

    def most_rounds(self, m: int) -> int | None:
        """Return the most rounds that a client may be in; None if only random sampling limits them."""
        return None

    @abstractmethod
    def hides_by_sampling(self, group: GroupPlan) -> bool:
        """Whether a group's epsilon holds only against attackers who do not know the cohorts."""

    @abstractmethod
    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return the privacy cost of the rounds so far, for a client of a group or one of its records.

        It is the cost against those who do not know the cohorts. `record_group`: the number of the record's
        group, if records are protected.
        """

    @abstractmethod
    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        """Return the largest cost of taking part `turns` times, against those who know the cohorts."""

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
        """Return the epsilon of the rounds so far at `delta`, composed by the plan's accountant."""
        if not history.rounds:
            return 0.0
        charges = self.charges(m, group, history, record_group)
        return compose(charges, delta, schedule="fixed", accountant=accountant).epsilon

    @abstractmethod
    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        """Return the largest epsilon of taking part `turns` times, against those who know the cohorts."""

    def broken_rule(
        self, groups: Sequence[GroupPlan], group_of: Mapping[int, int], round_index: int, request: Release
    ) -> str:
        """Return how a request for a sum (norms, noise or steps) breaks the plan; "" if it does not.

        By default it compares the clients' norms and the sum's noise with the plan.

        Args:
            groups: the plan's groups.
            group_of: the number of the group of each client that was drawn in the round.
            round_index: the round, counted from 0.
            request: the requested sum.
        """
        if broken := broken_place(self, group_of, request):
            return broken
        if request.noise != self.noise:
            return f"{request.noise} noise is asked for, and the plan's is {self.noise}"
        for client, norm in zip(request.clients.tolist(), request.contribution_norms.tolist(), strict=True):
            m = group_of[client]
            if request.taps != (taps := taps_of(self, m)):
                return f"noise with the taps {request.taps} is asked for, and the plan's are {taps}"
            planned = groups[m].at(round_index)
            if planned_norm_exceeded(norm, planned.clipping_norm):
                return (
                    f"client {client} may contribute a norm of {norm:.6g}, above the plan's "
                    f"{planned.clipping_norm:.6g}"
                )
            owed = planned.noise_stddev * noise_factor(self, m, len(request.clients))
            if not request.noise_stddev >= owed * (1 - ROUNDING):
                return (
                    f"noise of standard deviation {request.noise_stddev:.6g} is below the plan's {owed:.6g}"
                )
        return ""

    @abstractmethod
    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> "Terms":
        """Return the conditions of a run that the server promises to a client of a group.

        Raises PrivacyError if a node could not check the promise.
        """

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        """Return the entries that this mechanism adds to a group's plan in JSON."""
        return {}
