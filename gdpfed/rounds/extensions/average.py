"""Releases a weighted average of a run's models instead of the last model.

Source: Shamir, Zhang, "Stochastic Gradient Descent for Non-smooth Optimization: Convergence Results and
Optimal Averaging Schemes", ICML 2013, arXiv:1212.1824, Section 4 (polynomial-decay averaging).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.methods.base import Theta
from gdpfed.rounds.extensions.base import Extension, State

if TYPE_CHECKING:
    from gdpfed.rounds.run import PreparedRun

DECAY = 8
"""eta of the source. The mean age of the models is a tenth of the rounds so far, however many they are."""
AVERAGE, COUNT = "average", "rounds"


class ReleasedAverage(Extension):
    """The running average of models: average_t = (1 - g_t) average_{t-1} + g_t theta_t, g_t falling with t.

    It is made of models that are known anyway: post-processing, which costs no privacy. Training goes on from
    theta.
    """

    key = "released"

    def __init__(self) -> None:
        self._average: npt.NDArray[np.float64] | None = None
        self._count = 0

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return a new average for a run; None if the run releases its last model."""
        return None if run.config.method.average == "none" else cls()

    def stepped(self, theta: Theta) -> None:
        """Include a round's model in the average."""
        self._count += 1
        share = (DECAY + 1) / (DECAY + self._count)
        before = np.zeros(len(theta)) if self._average is None else self._average
        self._average = (1 - share) * before + share * theta

    def released(self, theta: Theta) -> Theta:
        """Return the average of the models; before the first round, return `theta` unchanged."""
        return theta if self._average is None else self._average.astype(np.float32)

    def state_dict(self) -> State:
        """Return the average, shape (d,) in float64, and the number of rounds in it."""
        if self._average is None:
            return {}
        return {AVERAGE: self._average, COUNT: np.array(self._count)}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore the average that `state_dict` returned; raise ValueError for other names or shapes."""
        if not state:
            return
        if state.keys() != {AVERAGE, COUNT} or state[AVERAGE].ndim != 1:
            raise ValueError("the checkpoint's average of models does not fit this run")
        self._average = state[AVERAGE].astype(np.float64)
        self._count = int(state[COUNT])
