"""The privacy plan of one group of clients, in a form that all privacy mechanisms share."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdpfed.errors import PrivacyError
from gdpfed.privacy.validation import require_count, require_rate

BUDGET_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class RoundRange:
    """Consecutive rounds in which a group has the same sampling rate, clipping norm and noise.

    `sampling_rate` is q_m as the sampling law rounds it, `clipping_norm` is C_m, the L2 bound on a
    contribution, and `noise_multiplier` is sigma_m: the sum's noise has standard deviation sigma_m C_m.
    `record_steps` is the number of DP-SGD steps that each record pays for in a round; it is 0 if whole
    clients are protected, and in rounds that the plan leaves the group out of.
    """

    num_rounds: int
    sampling_rate: float
    clipping_norm: float
    noise_multiplier: float
    record_steps: int = 0

    def __post_init__(self) -> None:
        require_count("a round range's num_rounds", self.num_rounds)
        require_rate("a round range's sampling_rate", self.sampling_rate)
        require_count("a round range's record_steps", self.record_steps, at_least=0)

    @property
    def noise_stddev(self) -> float:
        """sigma_m C_m: the standard deviation of the sum's noise per coordinate; 0 without noise."""
        return self.noise_multiplier * self.clipping_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """The plan of one group of clients: its budget, sampling rates, clipping norms and noise.

    `epsilon` is the clients' budget. `epsilon_accounted` is the cost of the whole training against those who
    know neither who was sampled nor how many. `epsilon_against_server` is the cost against the server for a
    client that takes part in `participations_p99` rounds; inf without a bound. `ranges` are the rounds in
    order; properties that take no round are those of the first range. Other numbers of a group are in the
    mechanism.
    """

    epsilon: float
    epsilon_accounted: float
    epsilon_against_server: float
    participations_p99: int
    clients: Sequence[int]
    ranges: tuple[RoundRange, ...]

    def __post_init__(self) -> None:
        check_accounted(self.epsilon, self.epsilon_accounted)

    def at(self, round_index: int) -> RoundRange:
        """Return the group's sampling rate, clipping norm and noise in a round, counted from 0.

        Raises PrivacyError if the plan has no such round.
        """
        position = 0
        for round_range in self.ranges:
            position += round_range.num_rounds
            if round_index < position:
                return round_range
        raise PrivacyError(
            f"round {round_index} lies beyond the plan's {position} rounds; ask for one of rounds 0 "
            f"to {position - 1}"
        )

    @property
    def sampling_rate(self) -> float:
        """q_m: the probability that a client of the group is drawn for a round."""
        return self.ranges[0].sampling_rate

    @property
    def expected_cohort_size(self) -> float:
        """r_m = q_m |G_m|: how many clients of the group a round draws on average."""
        return self.sampling_rate * len(self.clients)

    @property
    def clipping_norm(self) -> float:
        """C_m, the L2 bound on a client's contribution."""
        return self.ranges[0].clipping_norm

    @property
    def noise_multiplier(self) -> float:
        """sigma_m: the noise of the group's sum, in units of the clipping norm C_m."""
        return self.ranges[0].noise_multiplier

    @property
    def noise_variance_multiplier(self) -> float:
        """sigma_m^2: the sum's noise has variance sigma_m^2 C_m^2 per coordinate."""
        return self.noise_multiplier**2

    @property
    def noise_stddev(self) -> float:
        """sigma_m C_m: the standard deviation of the sum's noise per coordinate, in the unit of updates."""
        return self.ranges[0].noise_stddev


def check_accounted(epsilon: float, accounted: float) -> None:
    """Raise PrivacyError if a group's accounted epsilon is above its budget."""
    if not accounted <= epsilon * (1 + BUDGET_TOLERANCE):
        raise PrivacyError(
            f"a group's accounted epsilon {accounted:.6g} is above its budget {epsilon:.6g}; calibrate its "
            "noise for this plan"
        )
