"""Counts over records that are held out: one noised sum after the last round, and what it costs.

Some records of every client are never trained on. A neighbouring run has one record without influence, in
its place (zero-out adjacency).

* A record that is trained on moves the models. Whatever is counted is a function of released models and of
  records that are the same in both runs, so the counts cost it nothing.
* A record that is held out moves no model. It is in one cell of the confusion matrix and in one bin of the
  histogram, so it moves the counts by sqrt(2) in norm.

A record pays for its steps or for this one release, and not for both (parallel composition: McSherry,
"Privacy integrated queries", SIGMOD 2009, Theorem 4).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, Unit
from gdpfed.privacy.release import ROUNDING, NoiseAt, Release, broken_number

RECORD_MOVES = math.sqrt(2)
"""How far one record moves the counts: one cell and one bin, by one each."""


@dataclass(frozen=True, kw_only=True)
class HeldOutCounts:
    """The counts that a run releases over records that are held out.

    Attributes:
        epsilon: what a record that is held out pays, at the delta of the plan.
        noise_stddev: of the noise in every count.
    """

    epsilon: float
    noise_stddev: float

    @property
    def charge(self) -> Charge:
        """What it costs a record that is held out."""
        return Charge(event=_counts(self.noise_stddev), count=1, unit="record")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, of a plan's file."""
        return {"epsilon": self.epsilon, "noise_stddev": self.noise_stddev, "charge": self.charge.to_dict()}

    def broken_by(self, request: Release) -> str:
        """Say how a request for the counts breaks what was planned; "" if it does not."""
        if request.work != "held_out_counts" or request.unit != "record" or request.records is not None:
            return f"it asks a {request.unit} for {request.work}, and records that are held out are counted"
        if len(np.unique(request.clients)) < len(request.clients):
            return "a client is asked twice in one sum"
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


def check_counts(charges: Sequence[Charge], unit: Unit) -> None:
    """Refuse terms about held-out records that are not one sum of counts, with PrivacyError."""
    for charge in charges:
        event = charge.event
        known = isinstance(event, Gaussian) and event.is_noisy and event == _counts(event.noise_stddev)
        if not known or len(charges) != 1 or charge.count != 1 or {unit, charge.unit} != {"record"}:
            raise PrivacyError(
                f"the terms' held_out is not one noised sum of counts, which a record moves by "
                f"{RECORD_MOVES:.6g}"
            )


def _counts(noise_stddev: float) -> Gaussian:
    return Gaussian(noise_stddev=noise_stddev, clipping_norm=RECORD_MOVES)


def broken_counts(work: str, noise: str, weight: float) -> str:
    """Say how a client's instructions are not those for counts; "" if they are."""
    if work != "held_out_counts" or weight != 1:
        return f"{work} of weight {weight:g} was ordered where the terms say held_out_counts of weight 1"
    return "" if noise == "gaussian" else f"{noise} noise was ordered where the terms say gaussian"


def counts_noise(charges: Sequence[Charge]) -> float:
    """Return the standard deviation of the noise that the counts of some terms owe."""
    return max(each.event.noise_stddev for each in charges if isinstance(each.event, Gaussian))
