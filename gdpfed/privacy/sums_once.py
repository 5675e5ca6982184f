"""Sums that a run releases once, beside its rounds: counts on held-out records, and a vote over settings.

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

All clients take part and that is no secret, so nothing is amplified, and the figure holds against everyone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, Gaussian, Unit
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.release import ROUNDING, NoiseAt, Release, broken_number
from gdpfed.record_steps import KINDS

Once = Literal["held_out_counts", "vote"]
"""The works of such sums."""
ASKED_OF: dict[Once, str] = {
    "held_out_counts": "records that are held out are counted",
    "vote": "settings are voted on",
}
TIMES = (
    "its clients count on held-out records once, after its last round",
    "its clients vote on settings once, before its first round",
)
"""When a plan has counts, and when a vote."""
RECORD_MOVES = math.sqrt(2)
"""How far one record moves such a sum: one cell and one bin of counts, or one vote to another."""


def moved(work: Once, unit: Unit, adjacency: Adjacency) -> float:
    """How far one unit moves such a sum, in norm."""
    alone = work == "vote" and unit == "client" and adjacency == "zero_out"
    return 1.0 if alone else RECORD_MOVES


def once_of(work: str) -> Once | None:
    """The sum beside the rounds that a work belongs to; None for one of rounds. Clients vote in two ways."""
    if work in KINDS and KINDS[work].vote:
        return "vote"
    return "held_out_counts" if work == "held_out_counts" else None


def vote_index(num_rounds: int) -> int:
    """The number that a vote goes by among rounds from 0: none of them has it, nor have counts."""
    return num_rounds + 1


@dataclass(frozen=True, kw_only=True)
class SumOnce:
    """What a run releases once, beside its rounds.

    Attributes:
        work: what clients send.
        epsilon: what it costs by itself, at the delta of the plan.
        noise_stddev: of the noise in every coordinate.
        unit: who pays: a record that is held out, for counts; every record or client, for a vote.
        moves: how far one unit moves the sum, in norm.
        options: how many settings a vote is about; 0 of counts.
        blocks: in how many blocks counts are, one a client; 1 where those of all clients are added up.
    """

    work: Once
    epsilon: float
    noise_stddev: float
    unit: Unit = "record"
    moves: float = RECORD_MOVES
    options: int = 0
    blocks: int = 1

    @property
    def charge(self) -> Charge:
        """What it costs one unit."""
        return Charge(event=_event(self.noise_stddev, self.moves), count=1, unit=self.unit)

    def due_after(self, num_rounds: int) -> int:
        """After how many of a run's rounds it is due."""
        return 0 if self.work == "vote" else num_rounds

    def index(self, num_rounds: int) -> int:
        """The number that it goes by among a run's rounds from 0."""
        return vote_index(num_rounds) if self.work == "vote" else num_rounds

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, of a plan's file."""
        options = {"options": self.options} if self.options else {}
        if self.blocks > 1:
            options["blocks"] = self.blocks
        return {
            "epsilon": self.epsilon,
            "noise_stddev": self.noise_stddev,
            **options,
            "charge": self.charge.to_dict(),
        }

    def broken_by(self, request: Release, groups: Sequence[GroupPlan]) -> str:
        """Say how a request for the sum breaks what was planned for these groups; "" if it does not."""
        if once_of(request.work) != self.work or request.unit != self.unit:
            return f"it asks a {request.unit} for {request.work}, and {ASKED_OF[self.work]}"
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


def check_once(
    work: Once, charges: Sequence[Charge], of_rounds: Sequence[Charge], record_is: str = ""
) -> None:
    """Refuse terms of one work that are not one sum, or move less than their unit does, with PrivacyError.

    A person may be at several parties and turn the vote of each, or be counted at one and trained on at
    another.
    """
    if work == "held_out_counts" and charges and getattr(of_rounds[0].event, "parties", 1) > 1:
        raise PrivacyError(
            "the terms have counts on held-out records, and a person may be trained on at another party"
        )
    if work == "vote" and charges and record_is:
        raise PrivacyError(f"the terms have a vote, which is proved for rows, and a record is a {record_is}")
    for charge in charges:
        event, unit = charge.event, of_rounds[0].unit
        plain = isinstance(event, Gaussian) and event.is_noisy
        adjacencies = {getattr(each.event, "adjacency", "zero_out") for each in of_rounds}
        least = moved(work, unit, "replace_one" if "replace_one" in adjacencies else "zero_out")
        known = plain and event == _event(event.noise_stddev, least)  # type: ignore[attr-defined]
        counted = work == "vote" or unit == "record"
        if not (known and counted) or (len(charges), charge.count, charge.unit) != (1, 1, unit):
            raise PrivacyError(
                f"the terms' {'vote' if work == 'vote' else 'held_out'} is not one noised sum, which a "
                f"{unit} moves by {least:.6g}"
            )


def _event(noise_stddev: float, moves: float) -> Gaussian:
    return Gaussian(noise_stddev=noise_stddev, clipping_norm=moves)


def broken_once(planned: Once, work: str, noise: str, weight: float) -> str:
    """Say how a client's instructions are not those for such a sum; "" if they are."""
    if once_of(work) != planned or weight != 1:
        return f"{work} of weight {weight:g} was ordered where the terms say {planned} of weight 1"
    return "" if noise == "gaussian" else f"{noise} noise was ordered where the terms say gaussian"


def noise_of(charges: Sequence[Charge]) -> float:
    """Return the standard deviation of the noise that such a sum owes by some terms."""
    return max(each.event.noise_stddev for each in charges if isinstance(each.event, Gaussian))
