"""The mechanism that is accounted for: one group's noised sum under client sampling."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_number,
    require_positive,
    require_rate,
)

Sampling = Literal["poisson", "fixed_size"]
"""poisson: every client on its own with probability q_m. fixed_size: exactly round(q_m |G_m|)."""

Adjacency = Literal["zero_out", "replace_one"]
"""What a neighbouring run changes: one client's update becomes zero, or any other of norm <= C."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """One round of one group: sample clients, sum clipped updates, add N(0, noise_stddev^2).

    Every quantity is explicit, so that no reader needs an accountant's convention: updates have
    L2 norm at most `clipping_norm` (C), the *sum* of a round carries noise of standard deviation
    `noise_stddev` per coordinate, in the units of C. `sampling_rate` is q_m and `group_size`
    |G_m|; with fixed_size sampling the rate that counts is round(q_m |G_m|) / |G_m|.
    """

    sampling: Sampling
    sampling_rate: float
    group_size: int
    noise_stddev: float
    clipping_norm: float
    adjacency: Adjacency = "zero_out"

    def __post_init__(self) -> None:
        require_choice("sampling", self.sampling, get_args(Sampling))
        require_choice("adjacency", self.adjacency, get_args(Adjacency))
        require_rate("sampling_rate", self.sampling_rate)
        require_count("group_size", self.group_size)
        require_positive("clipping_norm", self.clipping_norm)
        if not 0.0 <= require_number("noise_stddev", self.noise_stddev) < math.inf:
            raise PrivacyError(f"noise_stddev is {self.noise_stddev}; it must be finite and not negative")
        if self.sampling == "fixed_size":
            fixed_cohort_size(self.sampling_rate, self.group_size)

    @property
    def noise_multiplier(self) -> float:
        """sigma_m = noise_stddev / clipping_norm, whatever the adjacency."""
        return self.noise_stddev / self.clipping_norm

    @property
    def cohort_size(self) -> int:
        """Clients drawn each round under fixed_size sampling."""
        return fixed_cohort_size(self.sampling_rate, self.group_size)


def fixed_cohort_size(sampling_rate: float, group_size: int) -> int:
    """Return round(q_m |G_m|), the cohort of fixed-size sampling.

    Raises PrivacyError where that is no client at all: the group would never take part.
    """
    count = round(sampling_rate * group_size)
    if count < 1:
        raise PrivacyError(
            f"sampling_rate {sampling_rate} of {group_size} clients rounds to none; "
            f"choose at least {1 / group_size:.3g}, or poisson sampling"
        )
    return count
