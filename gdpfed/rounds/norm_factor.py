"""The norm factor of adaptive clipping: how sums are scaled by it, and how it is updated.

Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping",
arXiv:1905.03871, Algorithm 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.privacy.plan import PrivacyPlan

FACTOR_KEY = "clipping.factor"

State = dict[str, npt.NDArray[np.generic]]


class NormFactor:
    """F(t), by which all norms differ from those of the first round; 1 without adaptive clipping.

    A sum is asked for in units of F(t), so that norms and noise are the plan's in every round, and what comes
    of it is multiplied by F(t). Its last coordinate says which part of the clients was within its norm; F
    follows from that, a released figure, and from nothing else: it costs no privacy of its own.
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        self._plan = plan
        self._factor = 1.0
        self.fraction: float | None = None
        """b of the last sum, the released part of the clients within their norm."""

    @property
    def clipping_norm(self) -> float | None:
        """C(t) = C F(t), of the updates; None where it is fixed."""
        return None if self._plan.adaptive_clipping is None else self._plan.clipping_norm * self._factor

    def asked(self, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return what is really asked for."""
        adaptive = self._plan.adaptive_clipping
        if adaptive is None:
            return list(requests)
        share = adaptive.indicator_share
        return [replace(each, norm_factor=self._factor, indicator_share=share) for each in requests]

    def taken(self, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Return the sums in the unit of updates and without their last coordinate, and move F by that."""
        adaptive = self._plan.adaptive_clipping
        if adaptive is None:
            return list(sums)
        self.fraction = None
        factor, taken = self._factor, []
        for each in sums:
            if each.total is None:
                taken.append(each)
                continue
            taken.append(replace(each, total=factor * each.total[:-1]))
            self.fraction = 0.5 + float(each.total[-1]) / (2 * adaptive.indicator_share * self._heard)
            self._factor *= math.exp(-adaptive.learning_rate * (self.fraction - adaptive.quantile))
        return taken

    @property
    def _heard(self) -> float:
        """sum_m r_m B_m: what the norms of a round's contributions add up to, as is to be expected."""
        return math.fsum(group.expected_cohort_size * group.clipping_norm for group in self._plan.groups)

    def state_dict(self) -> State:
        """Return the factor; nothing where there is none."""
        return {} if self._plan.adaptive_clipping is None else {FACTOR_KEY: np.array(self._factor)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> State:
        """Take what `state_dict` returned out of a checkpoint's state, and return the rest.

        Raises ValueError for a state without the factor that this run needs, or with one that it does not.
        """
        rest = {key: value for key, value in state.items() if key != FACTOR_KEY}
        if (self._plan.adaptive_clipping is None) != (len(rest) == len(state)):
            raise ValueError("the factor of its clipping norms is not one that this run keeps")
        if FACTOR_KEY in state:
            self._factor = float(state[FACTOR_KEY])
        return rest
