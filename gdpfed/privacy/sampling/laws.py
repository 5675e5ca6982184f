"""Sampling laws: each draws a group's cohort, checks its size, and says what a round costs.

One object draws, checks and states the cost, so that the three cannot disagree.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.events import Adjacency, NoiseLaw, SampledGaussian, Sampling, fixed_cohort_size
from gdpfed.privacy.validation import require_choice

stats = late_import("scipy.stats")

ClientIds = npt.NDArray[np.int64]

TURN_ROUNDING = 1e-9


class SamplingLaw(ABC):
    """Base class of sampling laws: how a group's cohort is drawn in a round.

    `name`: its name in the configuration. `absent_clients_count`: whether a client that cannot be reached
    stays in the cohort, since the accounting assumes cohorts of the full size.
    """

    name: ClassVar[Sampling]
    absent_clients_count: ClassVar[bool] = False

    def drawn_rate(self, rate: float, group_size: int) -> float:
        """Return the sampling rate that this law really uses for a wanted rate; some laws round it."""
        return rate

    @abstractmethod
    def cohort_size(self, rate: float, group_size: int, generator: np.random.Generator) -> int:
        """Draw the number of a group's clients that take part in a round."""

    def draw(self, clients: Sequence[int], rate: float, generator: np.random.Generator) -> ClientIds:
        """Draw a round's cohort: first its size, then a uniform subset of that size (int64, ascending)."""
        size = self.cohort_size(rate, len(clients), generator)
        positions = np.sort(generator.choice(len(clients), size, replace=False, shuffle=False))
        if isinstance(clients, range):
            return np.sort(clients.start + clients.step * positions)
        return np.sort(np.fromiter((clients[i] for i in positions), np.int64, size))

    def check(self, size: int, rate: float, group_size: int) -> None:
        """Raise PrivacyError for a cohort size that this law can never draw."""
        if not 0 <= size <= group_size:
            raise PrivacyError(f"{size} clients of a group of {group_size} cannot have been drawn")

    @abstractmethod
    def size_probabilities(self, least: int, rate: float, group_size: int) -> npt.NDArray[np.float64]:
        """Return the probabilities that 0, 1, ... clients are drawn, for all sizes below `least`."""

    @abstractmethod
    def largest_expected(self, rate: float, group_size: int) -> int:
        """Return a cohort size that is exceeded in fewer than one in a million rounds."""

    def event(
        self,
        *,
        rate: float,
        group_size: int,
        noise_stddev: float,
        clipping_norm: float,
        adjacency: Adjacency,
        noise: NoiseLaw,
        num_sums: int,
    ) -> SampledGaussian:
        """Return the event that stands for the privacy cost of one round at this sampling rate."""
        return SampledGaussian(
            sampling=self.name,
            sampling_rate=rate,
            group_size=group_size,
            noise_stddev=noise_stddev,
            clipping_norm=clipping_norm,
            adjacency=adjacency,
            noise=noise,
            num_sums=num_sums,
        )


class PoissonSampling(SamplingLaw):
    """The sampling law by which every client takes part independently, with probability q_m.

    The code draws a binomial size, then a uniform subset of that size. That is the same distribution, and the
    time grows with the cohort, not with the group.
    """

    name: ClassVar[Sampling] = "poisson"

    def cohort_size(self, rate: float, group_size: int, generator: np.random.Generator) -> int:
        return int(generator.binomial(group_size, rate))

    def size_probabilities(self, least: int, rate: float, group_size: int) -> npt.NDArray[np.float64]:
        sizes = np.arange(min(least, group_size + 1))
        return np.asarray(stats.binom.pmf(sizes, group_size, rate), dtype=np.float64)

    def largest_expected(self, rate: float, group_size: int) -> int:
        mean = rate * group_size
        return min(group_size, math.ceil(mean + 5 * math.sqrt(mean) + 5))


class FixedSizeSampling(SamplingLaw):
    """The sampling law of a fixed size: round(q_m |G_m|) clients, all subsets being equally likely."""

    name: ClassVar[Sampling] = "fixed_size"
    absent_clients_count: ClassVar[bool] = True

    def drawn_rate(self, rate: float, group_size: int) -> float:
        return fixed_cohort_size(rate, group_size) / group_size

    def cohort_size(self, rate: float, group_size: int, generator: np.random.Generator) -> int:
        return fixed_cohort_size(rate, group_size)

    def check(self, size: int, rate: float, group_size: int) -> None:
        expected = fixed_cohort_size(rate, group_size)
        if size != expected:
            raise PrivacyError(f"it has {size} clients; fixed_size sampling draws exactly {expected}")

    def size_probabilities(self, least: int, rate: float, group_size: int) -> npt.NDArray[np.float64]:
        sizes = np.arange(min(least, group_size + 1))
        return np.asarray(sizes == fixed_cohort_size(rate, group_size), dtype=np.float64)

    def largest_expected(self, rate: float, group_size: int) -> int:
        return fixed_cohort_size(rate, group_size)


class Allocation(PoissonSampling):
    """The law by which a client is in one random round of each block of rounds; cohort sizes are binomial.

    The rounds of a block are drawn together, so the mechanism draws the cohorts, not this law.
    """

    name: ClassVar[Sampling] = "allocation"

    def draw(self, clients: Sequence[int], rate: float, generator: np.random.Generator) -> ClientIds:
        raise PrivacyError("the rounds of a block are drawn together; ask their mechanism")

    def event(self, **terms: Any) -> SampledGaussian:
        raise PrivacyError("what a block of rounds costs is not that of each; ask their mechanism")


class Scheduled(SamplingLaw):
    """The law of scheduled rounds (turns): about q_m |G_m| clients of a group take part in each round."""

    name: ClassVar[Sampling] = "scheduled"

    def cohort_size(self, rate: float, group_size: int, generator: np.random.Generator) -> int:
        return self.largest_expected(rate, group_size)

    def size_probabilities(self, least: int, rate: float, group_size: int) -> npt.NDArray[np.float64]:
        sizes = np.arange(min(least, group_size + 1))
        return np.asarray(np.clip(1 - np.abs(sizes - rate * group_size), 0.0, 1.0), dtype=np.float64)

    def largest_expected(self, rate: float, group_size: int) -> int:
        return min(group_size, math.ceil(rate * group_size - TURN_ROUNDING))

    def event(self, **terms: Any) -> SampledGaussian:
        raise PrivacyError("what turns cost is that of all of them together; ask their mechanism")


_LAWS: dict[str, SamplingLaw] = {
    law.name: law for law in (PoissonSampling(), FixedSizeSampling(), Allocation(), Scheduled())
}


def sampling_law(name: str) -> SamplingLaw:
    """Return the sampling law with this name; raise PrivacyError for an unknown name."""
    require_choice("sampling", name, get_args(Sampling))
    return _LAWS[name]
