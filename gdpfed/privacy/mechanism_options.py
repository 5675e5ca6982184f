"""Optional features of privacy mechanisms, one class each, and defaults for mechanisms without them.

A mechanism derives from `Mechanism` and from the classes of its features. Other code reads a feature by a
function below, or by ``isinstance``, and not by the mechanism's name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdpfed.privacy.charges import Charge
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.release import NoiseAt, Release
from gdpfed.privacy.sampling.laws import ClientIds

if TYPE_CHECKING:
    from gdpfed.privacy.mechanisms.scheduled.turns import TurnSchedule


class KeepsTurns(ABC):
    """A mechanism whose cost depends on which rounds a client took part in, not only on their number."""

    @abstractmethod
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
        """Return the largest epsilon of any client in a group, given the rounds in which each took part.

        `paid`: the charges of every client for sums before the first round.
        """


class HasTurns(KeepsTurns):
    """A mechanism with scheduled rounds for clients (turns), where later rounds subtract earlier noise."""

    @abstractmethod
    def taps_of(self, m: int) -> tuple[float, ...]:
        """Return a group's taps g: the parts of a round's noise that the next rounds subtract."""

    @abstractmethod
    def kept_noise(self, m: int, num_rounds: int) -> float:
        """Return the final model's noise (stddev), divided by that without subtraction of earlier noise."""

    @abstractmethod
    def messages(self, m: int, group: GroupPlan, *, masked: bool) -> float:
        """Return the mean number of messages for sums that a group's clients send in a round.

        `masked`: whether the sums are masked; then members add the noise, and must subtract it themselves.
        """

    @abstractmethod
    def schedule(self, m: int, groups: Sequence[GroupPlan]) -> "TurnSchedule":
        """Return the scheduled rounds of all clients whose updates are summed together with this group's."""

    @abstractmethod
    def turns_due(self, m: int, group: GroupPlan, round_index: int) -> ClientIds:
        """Return in how many rounds each client should have taken part by the end of a round, int64[n]."""

    @abstractmethod
    def broken_turn(self, m: int, taken: Sequence[int], round_index: int) -> str:
        """Return why a client that was in rounds `taken` may not take part in this round; "" if it may."""


class OwnTotals(KeepsTurns):
    """A mechanism in which each client has its own total budget; sampling may depend on released values.

    Attributes:
        rule: the rule by which released values decide who is sampled; None if a secret key decides.
        counts_rho: the zCDP cost of the class counts that each client releases before round 1; 0 if none.
    """

    @property
    @abstractmethod
    def rule(self) -> str | None: ...

    @property
    @abstractmethod
    def counts_rho(self) -> float: ...

    @property
    def counts_noise(self) -> float:
        """The standard deviation of noise in each released class count: sensitivity / sqrt(2 * zCDP rho)."""
        return COUNTS_DISTANCE / math.sqrt(2 * self.counts_rho)

    @abstractmethod
    def totals_as_charges(self, rounds: int | None) -> tuple[Charge, ...]:
        """Return the largest privacy cost of any client after `rounds` rounds; None means the whole run."""


COUNTS_DISTANCE = math.sqrt(2)
"""The L2 distance of class counts if one record is replaced: one count is 1 less, and another is 1 more."""


@dataclass(frozen=True, kw_only=True)
class RecordGroup:
    """A group of records with one budget: a share of every client's records, sampled at `batch_rate`."""

    epsilon: float
    epsilon_accounted: float
    share: float
    batch_rate: float


class ProtectsRecords(ABC):
    """A mechanism that protects single records, which are grouped by privacy budget."""

    @abstractmethod
    def record_groups(self, m: int) -> tuple[RecordGroup, ...]:
        """Return the groups of records (one for each budget) that clients of group m hold."""

    @abstractmethod
    def rests(self, group: GroupPlan, round_index: int) -> bool:
        """Whether the plan leaves a group's clients out of a round."""


class DrawsAhead(ABC):
    """A mechanism that draws the cohorts of several rounds together."""

    @abstractmethod
    def drawn_at(self, group: GroupPlan, round_index: int) -> int:
        """Return the first of those rounds whose cohorts are drawn together with the cohort of this round."""


class HasEdges(ABC):
    """A mechanism with edge servers between clients and server; an edge may see single contributions."""

    @abstractmethod
    def edge_adds_noise(self, m: int) -> bool:
        """Whether a trusted edge server, which sees single contributions, adds the noise for a group."""

    @abstractmethod
    def noise_factor(self, m: int, num_clients: int) -> float:
        """Return the noise that a sum really has, divided by the planned noise."""


def taps_of(mechanism: object, m: int) -> tuple[float, ...]:
    """Return a group's taps g, the parts of noise that later rounds subtract; () if noise is independent."""
    return mechanism.taps_of(m) if isinstance(mechanism, HasTurns) else ()


def kept_noise(mechanism: object, m: int, num_rounds: int) -> float:
    """Return the final model's noise (stddev), divided by that without subtraction of earlier noise."""
    return mechanism.kept_noise(m, num_rounds) if isinstance(mechanism, HasTurns) else 1.0


def counts_rho(mechanism: object) -> float:
    """Return the zCDP cost of the class counts that each client releases before round 1; 0 if none."""
    return mechanism.counts_rho if isinstance(mechanism, OwnTotals) else 0.0


def sampling_rule(mechanism: object) -> str | None:
    """Return the rule by which released values decide who is sampled; None if a secret key decides."""
    return mechanism.rule if isinstance(mechanism, OwnTotals) else None


def record_groups(mechanism: object, m: int) -> tuple[RecordGroup, ...]:
    """Return the groups of records that a group's clients hold; () if whole clients are protected."""
    return mechanism.record_groups(m) if isinstance(mechanism, ProtectsRecords) else ()


def drawn_at(mechanism: object, group: GroupPlan, round_index: int) -> int:
    """Return the round in which a group's cohort for this round is drawn: usually the same round."""
    return mechanism.drawn_at(group, round_index) if isinstance(mechanism, DrawsAhead) else round_index


def edge_adds_noise(mechanism: object, m: int) -> bool:
    """Whether a trusted edge server, which sees single contributions, adds the noise for a group."""
    return isinstance(mechanism, HasEdges) and mechanism.edge_adds_noise(m)


def noise_factor(mechanism: object, m: int, num_clients: int) -> float:
    """Return the noise that a sum really has, divided by the planned noise; 1 without edge servers."""
    return mechanism.noise_factor(m, num_clients) if isinstance(mechanism, HasEdges) else 1.0


def broken_place(mechanism: object, group_of: Mapping[int, int], request: Release) -> str:
    """Return an error text if noise is added neither by clients nor by allowed edge servers; else ""."""
    edges = all(edge_adds_noise(mechanism, group_of[client]) for client in request.clients.tolist())
    if request.noise_at is NoiseAt.CLIENT or (request.noise_at is NoiseAt.EDGE and edges):
        return ""
    return f"noise is added {request.noise_at.value}, and the plan's is added by every client"
