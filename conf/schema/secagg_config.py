"""The setting group ``secagg``: how the updates of a cohort are summed."""

from dataclasses import dataclass
from typing import Annotated

from conf.schema.checks import require
from conf.schema.ranges import at_least, between, one_of, require_ranges, within

FIRST_SEEN = "first_seen"
"""The value of secagg.identities with which clients trust the first list of public keys they receive."""

Fraction = Annotated[float, within("[0, 0.5)")]


@dataclass
class SecAggConfig:
    """Settings of secure aggregation: how the updates of a cohort are summed."""

    mode: Annotated[str, one_of("curious", "active", "off")] = "curious"
    threshold: Annotated[
        float, within("[0.5, 1)", ": with less, a server could collect both shares of one client")
    ] = 2 / 3
    dropout_tolerance: Fraction = 0.1
    corrupt_tolerance: Fraction = 0.0
    minimum_cohort: Annotated[int, at_least(2, ": a sum of one client hides nothing")] = 3
    same_size: bool = True
    complete_below: int = 60
    sparse_corrupt_fraction: Fraction = 0.1
    noise_levels: Annotated[int, between(0, 16)] = 0
    modulus_bits: Annotated[int, between(16, 32, ", or null for the fewest that fit")] | None = None
    suite: str = "aes128ctr"
    keys_ahead: bool = True
    roster_file: str | None = None
    consortium_key: str | None = None
    identities: str | None = None

    def validate(self) -> None:
        require_ranges("secagg", self)
        require(
            self.threshold + self.dropout_tolerance <= 1,
            f"secagg.threshold={self.threshold} and secagg.dropout_tolerance="
            f"{self.dropout_tolerance} add up to more than 1: after that many dropouts too few are "
            "left to unmask",
        )
        self._validate_identities()

    def _validate_identities(self) -> None:
        require(
            self.identities in (None, FIRST_SEEN),
            f"secagg.identities={self.identities} must be {FIRST_SEEN}, or null for a signed roster",
        )
        require(
            (self.roster_file is None) == (self.consortium_key is None),
            f"secagg.roster_file={self.roster_file} and secagg.consortium_key={self.consortium_key} go "
            "together: the key says who must have signed the roster",
        )
        require(
            self.roster_file is None or self.identities is None,
            f"secagg.identities={FIRST_SEEN} does not go with secagg.roster_file={self.roster_file}: leave "
            "one out",
        )
        require(
            not self.signs or self.roster_file is not None or self.identities is not None,
            "secagg.mode=active needs to know the key of each client: set secagg.roster_file and "
            "secagg.consortium_key (see gdpfed identity --help), or secagg.identities=first_seen, which "
            "trusts the keys that the server sends first",
        )

    @property
    def hides_updates(self) -> bool:
        """Whether masks hide single updates, so that the server sees only sums."""
        return self.mode != "off"

    @property
    def signs(self) -> bool:
        """Whether clients sign their keys and the list of survivors, as needed if the server may lie."""
        return self.mode == "active"

    def refuse_roster(self) -> None:
        """Raise ConfigError if a file of the nodes' public keys (roster) is set in a simulation."""
        require(
            self.roster_file is None,
            f"secagg.roster_file={self.roster_file} is for nodes that operators start, and here one machine "
            "plays all clients: leave it and secagg.consortium_key out, and with secagg.mode=active set "
            f"secagg.identities={FIRST_SEEN}",
        )
