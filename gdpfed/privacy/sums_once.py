"""One-time sums, outside the rounds: held-out counts, a vote, and a histogram of updates' norms.

**Counts** follow the last round. Some records of every client are never trained on. A neighbouring run has
one record without influence, in its place (zero-out adjacency).

* A record that is trained on moves the models. Whatever is counted is a function of released models and of
  records that are the same in both runs, so the counts cost it nothing.
* A record that is held out moves no model. It is in one cell of the confusion matrix and in one bin of the
  histogram, so it moves the counts by sqrt(2) in norm. Where every client has a block of coordinates of its
  own, the record is in one block, and moves all blocks together no further.

A record pays for its steps or for this one release, and not for both (parallel composition: McSherry,
"Privacy integrated queries", SIGMOD 2009, Theorem 4).

**A vote** comes before the first round (DP-Hype, arXiv:2510.04902). Every client sends e_j, j being the
setting that does best on its own records, whatever it does to find out. All its records may have a part in
that, those it trains on alone.

* One record of a client may turn its vote from e_j to e_k, which are sqrt(2) apart. So every record pays for
  the vote and for its steps (sequential composition); a record that is held out has no part in it.
* A whole client is e_j in one run and nothing in the other, which are 1 apart; under replace_one any other
  vote, sqrt(2) apart.

**A histogram of norms** comes before the first round, too. Every client computes one update as in a round and
sends e_j, j being the bin that the norm of its update is in. So a client moves it as far as it moves a vote.

All clients take part and that is not secret, so nothing is amplified, and the figures hold against everyone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, Gaussian, Unit
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.release import ROUNDING, NoiseAt, Release, broken_number
from gdpfed.record_steps import NORM_MULTIPLES, Once, kind_of

RECORD_MOVES = math.sqrt(2)
"""How far one record moves such a sum: one cell and one bin of counts, or one vote to another."""


def once_of(work: str) -> Once | None:
    """Return the kind of one-time sum for which clients compute `work`; None for work in training rounds."""
    return kind_of(work).once


@dataclass(frozen=True, kw_only=True)
class SumOnce(ABC):
    """A sum that a run releases once, outside its rounds, such as a vote or counts.

    Attributes:
        epsilon: what it costs by itself, at the delta of the plan.
        noise_stddev: of the noise in every coordinate.
        unit: who pays: a record that is held out, for counts; every record or client, for what comes first.
        moves: how far one unit moves the sum, in norm.
    """

    work: ClassVar[Once]
    entry: ClassVar[str]
    """Its name among the entries of terms."""
    sent_as: ClassVar[str]
    """Its name in the entry of a run in a client's own ledger, once the client has sent its part."""
    asked_of: ClassVar[str]
    time: ClassVar[str]
    """When a plan has it."""
    before_rounds: ClassVar[bool]
    paid_by: ClassVar[tuple[Unit, ...]]

    epsilon: float
    noise_stddev: float
    unit: Unit = "record"
    moves: float = RECORD_MOVES

    @property
    def charge(self) -> Charge:
        """The privacy cost of the one-time sum for one client or record."""
        return Charge(event=_event(self.noise_stddev, self.moves), count=1, unit=self.unit)

    @classmethod
    def due_after(cls, num_rounds: int) -> int:
        """Return after how many rounds the one-time sum is due: 0, or all rounds."""
        return 0 if cls.before_rounds else num_rounds

    @classmethod
    def index(cls, num_rounds: int) -> int:
        """Return the round number under which the one-time sum is recorded; no real round has this number."""
        return num_rounds + cls.before_rounds

    @staticmethod
    def moved(unit: Unit, adjacency: Adjacency) -> float:
        """Return the sensitivity (norm) of the one-time sum to one client or record."""
        return RECORD_MOVES

    @staticmethod
    @abstractmethod
    def unproved(parties: int, record_is: str) -> str:
        """Return why privacy is unproved for a person with records at several parties; "" if it is proved."""

    @abstractmethod
    def size(self) -> dict[str, int]:
        """Return the size of the one-time sum for the plan's JSON: a number of options, bins or blocks."""

    def to_dict(self) -> dict[str, Any]:
        """Return the one-time sum as JSON, for a plan's file."""
        return {
            "epsilon": self.epsilon,
            "noise_stddev": self.noise_stddev,
            **self.size(),
            "charge": self.charge.to_dict(),
        }

    def broken_by(self, request: Release, groups: Sequence[GroupPlan]) -> str:
        """Return how a request for the one-time sum breaks the plan; "" if it does not."""
        if once_of(request.work) != self.work or request.unit != self.unit:
            return f"it asks a {request.unit} for {request.work}, and {self.asked_of}"
        if len(np.unique(request.clients)) < len(request.clients):
            return "a client is asked twice in one sum"
        if not np.isin(request.clients, [client for group in groups for client in group.clients]).all():
            return "it asks a client that is not in the plan"
        if request.noise_at is not NoiseAt.CLIENT or request.noise != "gaussian" or request.taps:
            return "its noise is not what every client adds a share of"
        if request.client_weights is not None or request.client_clipping_norms is not None or request.alone:
            return "its clients do not count alike"
        if not request.noise_stddev >= self.noise_stddev * (1 - ROUNDING):
            return (
                f"noise of standard deviation {request.noise_stddev:.6g} is below the plan's "
                f"{self.noise_stddev:.6g}"
            )
        return broken_number(request)

    @classmethod
    def check(cls, charges: Sequence[Charge], of_rounds: Sequence[Charge], record_is: str = "") -> None:
        """Raise PrivacyError unless `charges` is empty or contains exactly one full cost of this sum."""
        unit, parties = of_rounds[0].unit, getattr(of_rounds[0].event, "parties", 1)
        if charges and (unproved := cls.unproved(parties, record_is)):
            raise PrivacyError(unproved)
        adjacencies = {getattr(of_round.event, "adjacency", "zero_out") for of_round in of_rounds}
        least = cls.moved(unit, "replace_one" if "replace_one" in adjacencies else "zero_out")
        for charge in charges:
            event = charge.event
            plain = isinstance(event, Gaussian) and event.is_noisy
            known = plain and event == _event(event.noise_stddev, least)  # type: ignore[attr-defined]
            alone = (len(charges), charge.count, charge.unit) == (1, 1, unit)
            if not (known and alone and unit in cls.paid_by):
                raise PrivacyError(
                    f"the terms' {cls.entry} is not one noised sum, which a {unit} moves by {least:.6g}"
                )


@dataclass(frozen=True, kw_only=True)
class HeldOutCounts(SumOnce):
    """Counts of right answers on records that clients hold out of training, summed after the last round.

    A person may be counted at one party and trained on at another, which is proved of no budget. `blocks`: in
    how many blocks they are, one a client; 1 where those of all clients are added up.
    """

    work = "held_out_counts"
    entry = "held_out"
    sent_as = "counted"
    asked_of = "records that are held out are counted"
    time = "its clients count on held-out records once, after its last round"
    before_rounds = False
    paid_by = ("record",)

    blocks: int = 1

    @staticmethod
    def unproved(parties: int, record_is: str) -> str:
        several = "the terms have counts on held-out records, and a person may be trained on at another party"
        return several if parties > 1 else ""

    def size(self) -> dict[str, int]:
        return {"blocks": self.blocks} if self.blocks > 1 else {}


@dataclass(frozen=True, kw_only=True)
class Vote(SumOnce):
    """A vote of clients on settings of the training, summed before the first round.

    A person may turn the vote of each of its parties, so it is proved for rows. `options`: how many settings.
    """

    work = "vote"
    entry = "vote"
    sent_as = "voted"
    asked_of = "settings are voted on"
    time = "its clients vote on settings once, before its first round"
    before_rounds = True
    paid_by = ("client", "record")

    options: int

    @staticmethod
    def moved(unit: Unit, adjacency: Adjacency) -> float:
        return 1.0 if (unit, adjacency) == ("client", "zero_out") else RECORD_MOVES

    @staticmethod
    def unproved(parties: int, record_is: str) -> str:
        rows = f"the terms have a vote, which is proved for rows, and a record is a {record_is}"
        return rows if record_is else ""

    def size(self) -> dict[str, int]:
        return {"options": self.options}


@dataclass(frozen=True, kw_only=True)
class NormHistogram(SumOnce):
    """A histogram of the norms of clients' updates, summed before the first round.

    Clients are protected; how far one moves it is as of a vote.
    """

    work = "norm_histogram"
    entry = "norm_histogram"
    sent_as = "norm_counted"
    asked_of = "norms of updates are counted"
    time = "the norms of its clients' updates counted once, before its first round"
    before_rounds = True
    paid_by = ("client",)

    @classmethod
    def index(cls, num_rounds: int) -> int:
        return Vote.index(num_rounds) + 1

    @staticmethod
    def moved(unit: Unit, adjacency: Adjacency) -> float:
        return Vote.moved(unit, adjacency)

    @staticmethod
    def unproved(parties: int, record_is: str) -> str:
        return ""

    def size(self) -> dict[str, int]:
        return {"bins": len(NORM_MULTIPLES) + 1}


ONCE: Mapping[Once, type[SumOnce]] = {each.work: each for each in (HeldOutCounts, Vote, NormHistogram)}


def _event(noise_stddev: float, moves: float) -> Gaussian:
    return Gaussian(noise_stddev=noise_stddev, clipping_norm=moves)


def broken_once(planned: Once, work: str, noise: str, weight: float) -> str:
    """Return how a client's instructions differ from those of the planned one-time sum; "" if they agree."""
    if once_of(work) != planned or weight != 1:
        return f"the server asks for {work} of weight {weight:g} where the terms say {planned} of weight 1"
    return "" if noise == "gaussian" else f"the server asks for {noise} noise where the terms say gaussian"


def noise_of(charges: Sequence[Charge]) -> float:
    """Return the standard deviation of the noise that a one-time sum with this privacy cost must have."""
    return max(charge.event.noise_stddev for charge in charges if isinstance(charge.event, Gaussian))
