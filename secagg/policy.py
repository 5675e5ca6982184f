"""What a client demands of a sum before it takes part, whatever the server asks."""

from dataclasses import dataclass

from secagg.errors import RemoteProtocolError
from secagg.parameters import RoundParameters


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """A client's own limits, checked against the parameters in the first stage.

    That more than half of the neighbours must help to unmask is no option: `RoundParameters`
    cannot be made otherwise, so at least num_clients / 2 members share every sum.

    Attributes:
        minimum_cohort: fewest members asked, this client among them.
        maximum_dropout_fraction: largest dropout_tolerance / num_clients.
        minimum_noise_multiplier: least sigma.

    Raises:
        ValueError: a limit that no sum, or every sum, would meet by mistake.
    """

    minimum_cohort: int
    maximum_dropout_fraction: float
    minimum_noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        if self.minimum_cohort < 2:
            raise ValueError(f"minimum_cohort is {self.minimum_cohort}: use at least 2")
        if not 0 <= self.maximum_dropout_fraction < 1:
            raise ValueError(f"maximum_dropout_fraction is {self.maximum_dropout_fraction}: use 0 to below 1")
        if not self.minimum_noise_multiplier >= 0:
            raise ValueError(f"minimum_noise_multiplier is {self.minimum_noise_multiplier}: use 0 or more")

    def check(self, parameters: RoundParameters) -> None:
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
        if broken:
            raise RemoteProtocolError("advertise", None, f"{broken}, this client's own limit")
