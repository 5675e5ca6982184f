"""The limits that a client sets to sums before it takes part."""

from dataclasses import dataclass
from math import ceil

from secagg.errors import RemoteProtocolError
from secagg.graph import PRIVACY_BITS, is_private
from secagg.parameters import CURIOUS, MODES, SumParameters


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """A client's own limits, checked against the parameters in the first stage.

    That more than half of the neighbours must help to unmask is no option: `SumParameters`
    cannot be made otherwise, so at least num_clients / 2 members share every sum.

    Attributes:
        minimum_cohort: fewest members asked, this client among them.
        maximum_dropout_fraction: largest dropout_tolerance / num_clients.
        minimum_noise_multiplier: least sigma.
        mode: "active" refuses a sum in which keys and survivors are not signed.
        corrupt_fraction: on a sparse graph, the share of corrupt members (at least the sum's
            corrupt_tolerance) that k and t must withstand but for 2**-40.

    Raises:
        ValueError: a limit that no sum, or every sum, would meet by mistake.
    """

    minimum_cohort: int
    maximum_dropout_fraction: float
    minimum_noise_multiplier: float = 0.0
    mode: str = CURIOUS
    corrupt_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.minimum_cohort < 2:
            raise ValueError(f"minimum_cohort is {self.minimum_cohort}: use at least 2")
        if not 0 <= self.maximum_dropout_fraction < 1:
            raise ValueError(f"maximum_dropout_fraction is {self.maximum_dropout_fraction}: use 0 to below 1")
        if not self.minimum_noise_multiplier >= 0:
            raise ValueError(f"minimum_noise_multiplier is {self.minimum_noise_multiplier}: use 0 or more")
        if self.mode not in MODES or not 0 <= self.corrupt_fraction < 1:
            raise ValueError(
                f"mode {self.mode!r}, corrupt_fraction {self.corrupt_fraction}: use one of "
                f"{', '.join(MODES)}, and 0 to below 1"
            )

    def check(self, parameters: SumParameters) -> None:
        """Raise RemoteProtocolError (stage "advertise", from the server) if a limit is broken."""
        allowed = self.maximum_dropout_fraction * parameters.num_clients
        broken = ""
        if parameters.num_clients < self.minimum_cohort:
            broken = f"num_clients {parameters.num_clients} is below {self.minimum_cohort}"
        elif parameters.dropout_tolerance > allowed:
            broken = f"dropout_tolerance {parameters.dropout_tolerance} is above {allowed:g}"
        elif parameters.noise_multiplier < self.minimum_noise_multiplier:
            broken = (
                f"noise_multiplier {parameters.noise_multiplier:g} is below {self.minimum_noise_multiplier:g}"
            )
        elif self.mode != CURIOUS and parameters.mode != self.mode:
            broken = f"mode {parameters.mode} is less than {self.mode}"
        elif parameters.is_sparse and not self._is_private(parameters):
            broken = (
                f"num_neighbours {parameters.num_neighbours} with threshold {parameters.threshold} "
                f"fails with probability above 2**-{PRIVACY_BITS}"
            )
        if broken:
            raise RemoteProtocolError("advertise", None, f"{broken}, this client's own limit")

    def _is_private(self, parameters: SumParameters) -> bool:
        corrupt = max(parameters.corrupt_tolerance, ceil(self.corrupt_fraction * parameters.num_clients))
        return is_private(
            parameters.num_clients,
            parameters.num_neighbours,
            parameters.threshold,
            min(corrupt, parameters.num_clients - 1),
            parameters.dropout_tolerance,
        )
