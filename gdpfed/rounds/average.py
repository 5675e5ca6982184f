"""The average of a run's models, released in place of the last one.

Source: Shamir, Zhang, "Stochastic Gradient Descent for Non-smooth Optimization: Convergence Results and
Optimal Averaging Schemes", ICML 2013, arXiv:1212.1824, Section 4 (polynomial-decay averaging).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.methods.base import Theta

DECAY = 8
"""eta of the source. The mean age of the models is a tenth of the rounds so far, however many they are."""
AVERAGE_KEY, COUNT_KEY = "released.average", "released.rounds"

State = dict[str, npt.NDArray[np.generic]]


class ReleasedAverage:
    """average_t = (1 - g_t) average_{t-1} + g_t theta_t with g_t = (DECAY + 1) / (DECAY + t), t = 1, 2, ...

    It is made of models that are known anyway: post-processing, which costs no privacy. Training goes on from
    theta. If it is off, theta itself is released.
    """

    def __init__(self, kind: str) -> None:
        self._on = kind != "none"
        self._average: npt.NDArray[np.float64] | None = None
        self._count = 0

    def add(self, theta: Theta) -> None:
        """Take a round's model into the average."""
        if not self._on:
            return
        self._count += 1
        share = (DECAY + 1) / (DECAY + self._count)
        before = np.zeros(len(theta)) if self._average is None else self._average
        self._average = (1 - share) * before + share * theta

    def released(self, theta: Theta) -> Theta:
        """Return the average, or theta where there is none."""
        return theta if self._average is None else self._average.astype(np.float32)

    def state_dict(self) -> State:
        """Return the average, shape (d,) in float64, and how many rounds are in it; nothing without one."""
        if self._average is None:
            return {}
        return {AVERAGE_KEY: self._average, COUNT_KEY: np.array(self._count)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> State:
        """Take what `state_dict` returned out of a checkpoint's state, and return the rest.

        Raises ValueError for a state that is not an average's.
        """
        rest = {key: value for key, value in state.items() if key not in (AVERAGE_KEY, COUNT_KEY)}
        if len(rest) == len(state):
            return rest
        if not self._on or len(rest) != len(state) - 2 or state[AVERAGE_KEY].ndim != 1:
            raise ValueError("the average of its models is not one that this run keeps")
        self._average = state[AVERAGE_KEY].astype(np.float64)
        self._count = int(state[COUNT_KEY])
        return rest
