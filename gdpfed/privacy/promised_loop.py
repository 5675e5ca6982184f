"""Describes another library's training loop, for an audit: what it releases and what privacy it claims."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import SECRET_SAMPLINGS, Adjacency, Sampling
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.sampled.mechanism import SampledSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_positive,
    require_rate,
)

Floats = npt.NDArray[np.floating]
MOST_VALUES = 200_000_000
"""Of the matrix that a loop is given, in which every unit has a row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """What a training loop released: the sum of every round, or the models before and after each round.

    Attributes:
        sums: with their noise, in the unit of a contribution, shape (T, d).
        models: shape (T + 1, d), in place of sums.
        step: by what a model moves if a sum is one: 1 / n where a round adds the mean of n, and
            -(learning rate) / n where it is a step of SGD on a mean.
        asked: whose contribution was in which sum, bool[T, m]; None where the loop does not tell.
    """

    sums: Floats | None = None
    models: Floats | None = None
    step: float = 1.0
    asked: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if (self.sums is None) == (self.models is None):
            raise PrivacyError("a loop has released both sums and models, or neither: give one of them")
        if self.step == 0.0 or not math.isfinite(self.step):
            raise PrivacyError(f"a loop's step is {self.step}; it must be finite and not zero")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingLoop:
    """A training loop that sums clipped contributions with Gaussian noise, in T rounds.

    A unit is what is protected: a client with its update, or a record with its gradient. `run` is given a
    matrix of shape (m, d), a row a unit, and trains so that unit i contributes row i wherever it is asked,
    and nobody else contributes. Rows are longer than the norm: clipping them is the loop's part.

    Attributes:
        run: what trains.
        num_units: m; each has a coordinate of its own, so at most d.
        dimension: d.
        num_rounds: T.
        noise_multiplier: sigma; a sum's noise has standard deviation sigma C in every coordinate.
        clipping_norm: C, the L2 norm of one contribution at most.
        delta: at which epsilon is stated.
        sampling_rate, sampling: how likely a unit is asked in a round, and by which law; 1 for everybody.
        adjacency: whether a unit's contribution becomes zero, or any other, which moves a sum by 2 C.
        epsilon: what the loop's own accounting states; None to compare with nothing but its numbers.
        name: of the loop, in tables.

    Raises:
        PrivacyError: numbers that cannot be.
    """

    run: Callable[[npt.NDArray[np.float64]], Released]
    num_units: int
    dimension: int
    num_rounds: int
    noise_multiplier: float
    clipping_norm: float
    delta: float
    sampling_rate: float = 1.0
    sampling: Sampling = "poisson"
    adjacency: Adjacency = "zero_out"
    epsilon: float | None = None
    name: str = "a loop"

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise PrivacyError(f"a loop's run is {self.run!r}; give a function of a matrix")
        require_count("num_units", self.num_units)
        require_count("num_rounds", self.num_rounds)
        if require_count("dimension", self.dimension) < self.num_units:
            raise PrivacyError(
                f"{self.num_units} units have a coordinate each, and dimension is {self.dimension}; use "
                "fewer units, or a larger model"
            )
        if self.num_units * self.dimension > MOST_VALUES:
            raise PrivacyError(
                f"{self.num_units} units in {self.dimension} dimensions take a matrix of more than "
                f"{MOST_VALUES} values; use fewer units, or a smaller model"
            )
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("clipping_norm", self.clipping_norm)
        require_delta(self.delta)
        require_rate("sampling_rate", self.sampling_rate)
        require_choice("sampling", self.sampling, SECRET_SAMPLINGS)
        require_choice("adjacency", self.adjacency, get_args(Adjacency))
        if self.epsilon is not None:
            require_positive("epsilon", self.epsilon)

    def plan(self) -> PrivacyPlan:
        """Return the loop's claimed privacy parameters as a privacy plan with one group."""
        rounds = RoundRange(
            num_rounds=self.num_rounds,
            sampling_rate=self.sampling_rate,
            clipping_norm=self.clipping_norm,
            noise_multiplier=self.noise_multiplier,
        )
        group = GroupPlan(
            epsilon=math.inf,
            epsilon_accounted=math.inf,
            epsilon_against_server=math.inf,
            participations_p99=self.num_rounds,
            clients=range(self.num_units),
            ranges=(rounds,),
        )
        return PrivacyPlan(
            groups=(group,),
            num_rounds=self.num_rounds,
            delta=self.delta,
            mechanism=SampledSums(sampling=self.sampling, adjacency=self.adjacency, one_sum=True),
            accountant="pld",
            clipping_norm=self.clipping_norm,
            sampling_rate=self.sampling_rate,
        )
