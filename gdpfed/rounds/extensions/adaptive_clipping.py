"""Adaptive clipping: all clipping norms are scaled by a factor, which is adapted to the released sums.

Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping",
arXiv:1905.03871, Algorithm 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import PrivacyError
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.extensions.base import Extension, State

if TYPE_CHECKING:
    from gdpfed.rounds.run import PreparedRun

FACTOR = "factor"


class NormFactor(Extension):
    """F(t), the factor on all clipping norms in adaptive clipping; it is 1 in the first round.

    A sum is asked for in units of F(t), so that norms and noise are the plan's in every round, and what comes
    of it is multiplied by F(t). Its last coordinate says which part of the clients was within its norm; F
    follows from that, a released figure, and from nothing else: it costs no privacy of its own.

    `plan`: one with adaptive clipping. Raises PrivacyError for another one.
    """

    key = "clipping"

    def __init__(self, plan: PrivacyPlan) -> None:
        if plan.adaptive_clipping is None:
            raise PrivacyError(
                "the plan's clipping norms are fixed, and have no factor: use privacy.clipping=adaptive"
            )
        self._plan, self._adaptive = plan, plan.adaptive_clipping
        self._factor = 1.0
        self._norm_of_round = self.clipping_norm
        self.fraction: float | None = None
        """b of the last sum, the released part of the clients within their norm."""

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return the extension that adapts a run's clipping norms; None if these norms are fixed."""
        plan = run.method.plan
        return None if plan.adaptive_clipping is None else cls(plan)

    @property
    def clipping_norm(self) -> float:
        """C(t) = C F(t): the clipping norm of updates in round t."""
        return self._plan.clipping_norm * self._factor

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return the round's requests for sums, changed to use the present factor on all clipping norms."""
        share = self._adaptive.indicator_share
        return [replace(request, norm_factor=self._factor, indicator_share=share) for request in requests]

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Return each sum times the clipping factor, without its last coordinate, which adapts the factor.

        The last coordinate measures the share of clients whose update is within the clipping norm.
        """
        self.fraction, self._norm_of_round = None, self.clipping_norm
        factor, taken = self._factor, list[ClientSum]()
        for each in sums:
            if each.total is None:
                taken.append(each)
                continue
            taken.append(replace(each, total=factor * each.total[:-1]))
            self.fraction = 0.5 + float(each.total[-1]) / (
                2 * self._adaptive.indicator_share * self._expected_norms
            )
            self._factor *= math.exp(
                -self._adaptive.learning_rate * (self.fraction - self._adaptive.quantile)
            )
        return taken

    def record(self) -> dict[str, Any]:
        """Return, for the log, the norm C(t) and the measured share of clients whose update is within it."""
        return {"clipping_norm": self._norm_of_round, "fraction_within": self.fraction}

    @property
    def _expected_norms(self) -> float:
        """Return the expected sum of sampled clients' clipping norms: cohort size times norm, over groups."""
        return math.fsum(group.expected_cohort_size * group.clipping_norm for group in self._plan.groups)

    def state_dict(self) -> State:
        """Return the state to save: the factor F by which the clipping norm has changed."""
        return {FACTOR: np.array(self._factor)}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore the factor that `state_dict` returned; raise ValueError if the state has other entries."""
        if state.keys() != {FACTOR}:
            raise ValueError("the checkpoint's factor of the clipping norms does not fit this run")
        self._factor = float(state[FACTOR])
