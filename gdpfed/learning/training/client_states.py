"""State that a client keeps between rounds to correct its steps, such as SCAFFOLD's.

A kind of state says how many numbers a client keeps, what is added to every gradient of a round, and what is
kept when the round is over. The server may tell all clients one vector more beside the model, which it makes
of released sums alone. Another package adds a kind as an entry point of the group ``gdpfed.client_states``,
or for one process with ``register``. Its vectors have one row a client; a package's kind is called for one
client at a time.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.registry import Registry

Floats = npt.NDArray[np.float32]
Updates = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RoundSums:
    """The noised sums released in one round, from which the server computes the clients' next shared vector.

    Attributes:
        total: sum_m y_m of the sums that there are, float64[d], noise included.
        expected: how many updates were to be expected in these sums: sum_m q_m |G_m|. How many were in them
            is a secret of the sample.
        num_clients: n, all clients of the run.
    """

    total: Updates
    expected: float
    num_clients: int


class KeptState(ABC):
    """A kind of state that a client keeps between rounds; the state starts as zeros."""

    def size(self, dimension: int) -> int:
        """Return how many numbers a client keeps, for a model of `dimension` parameters."""
        return dimension

    def check(self, training: LocalTraining) -> None:  # noqa: B027 - most states go with any training
        """Raise LearningError if this state does not work with these training settings."""

    @abstractmethod
    def added(self, kept: Floats, told: Floats, training: LocalTraining) -> Floats:
        """Return the vectors that clients add to all gradients of a round, one for each: float32[clients, d].

        `kept`: by each of them, float32[clients, size]. `told`: by the server to all, float32[d].
        """

    @abstractmethod
    def kept(self, kept: Floats, told: Floats, sent: Updates, training: LocalTraining) -> Floats:
        """Return the state that clients keep after a round, float32[clients, size].

        `sent`: their updates as they go into the sum, clipped and rounded, without noise, shape (clients, d).
        """

    def told(self, told: Floats, sums: RoundSums, training: LocalTraining) -> Floats:
        """Return the vector that the server sends to all clients in the next round, float32[d]."""
        return told


CLIENT_STATES: Registry[KeptState] = Registry("client state", "gdpfed.client_states", error=LearningError)


class Scaffold(KeptState):
    """SCAFFOLD: a client keeps a control variate c_i, and its steps are y <- y - eta (g(y) - c_i + c).

    Source: Karimireddy et al., arXiv:1910.06378, Algorithm 1 with option II: after K steps of rate eta from x
    to y_i, c_i <- c_i - c + (x - y_i) / (K eta). With Delta_i = y_i - x that is affine in the update, so the
    server steps c by the sum that it has anyway: of a round with S clients

        c <- c + (1 / n) sum_{i in S} (c_i' - c_i) = (1 - |S| / n) c - sum_{i in S} Delta_i / (n K eta).

    Delta_i is the update that goes into the sum, clipped, so that c stays the mean of all c_i, but for noise
    and for |S|, which is a secret: its expectation stands in its place.
    """

    def check(self, training: LocalTraining) -> None:
        if not training.is_sgd or training.momentum:
            raise LearningError(
                "training.client_state=scaffold follows from plain steps of SGD: set training.optimizer=sgd, "
                "training.optimizer_options=null, training.momentum=0 and training.proximal=0"
            )

    def added(self, kept: Floats, told: Floats, training: LocalTraining) -> Floats:
        return told - kept

    def kept(self, kept: Floats, told: Floats, sent: Updates, training: LocalTraining) -> Floats:
        return (kept - told - sent / _length(training)).astype(np.float32)

    def told(self, told: Floats, sums: RoundSums, training: LocalTraining) -> Floats:
        n = sums.num_clients
        step = -sums.expected / n * told.astype(np.float64) - sums.total / (n * _length(training))
        return (told + step).astype(np.float32)


def _length(training: LocalTraining) -> float:
    """Return K eta: the number of local steps times their learning rate."""
    return training.local_steps * training.learning_rate


CLIENT_STATES.register("scaffold", Scaffold())
