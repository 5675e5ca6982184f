"""The group ``secagg``: how the updates of a cohort are summed."""

from dataclasses import dataclass

from conf.schema.checks import require

SECAGG_MODES = ("curious", "active", "off")
FIRST_SEEN = "first_seen"
"""secagg.identities where clients believe the first roster that they are sent."""


@dataclass
class SecAggConfig:
    """How the updates of a cohort are summed."""

    mode: str = "curious"
    threshold: float = 2 / 3
    dropout_tolerance: float = 0.1
    corrupt_tolerance: float = 0.0
    minimum_cohort: int = 3
    complete_below: int = 60
    sparse_corrupt_fraction: float = 0.1
    noise_levels: int = 0
    modulus_bits: int | None = None
    suite: str = "aes128ctr"
    keys_ahead: bool = True
    roster_file: str | None = None
    consortium_key: str | None = None
    identities: str | None = None

    def validate(self) -> None:
        require(self.mode in SECAGG_MODES, f"secagg.mode={self.mode} is not one of {', '.join(SECAGG_MODES)}")
        require(
            0.5 <= self.threshold < 1,
            f"secagg.threshold={self.threshold} must be in [0.5, 1): with less, a server could "
            "collect both shares of one client",
        )
        for key in ("dropout_tolerance", "corrupt_tolerance", "sparse_corrupt_fraction"):
            value = getattr(self, key)
            require(0 <= value < 0.5, f"secagg.{key}={value} must be in [0, 0.5)")
        require(
            self.threshold + self.dropout_tolerance <= 1,
            f"secagg.threshold={self.threshold} and secagg.dropout_tolerance="
            f"{self.dropout_tolerance} add up to more than 1: after that many dropouts too few are "
            "left to unmask",
        )
        bits = self.modulus_bits
        require(
            bits is None or 16 <= bits <= 32,
            f"secagg.modulus_bits={bits} must be from 16 to 32, or null for the fewest that fit",
        )
        require(0 <= self.noise_levels <= 16, f"secagg.noise_levels={self.noise_levels} must be from 0 to 16")
        require(
            self.minimum_cohort >= 2,
            f"secagg.minimum_cohort={self.minimum_cohort} must be at least 2: the sum of one is no sum",
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
            "secagg.mode=active needs to know whose key is whose: set secagg.roster_file and "
            "secagg.consortium_key (see gdpfed identity --help), or secagg.identities=first_seen, which "
            "believes what is sent first",
        )

    @property
    def hides_updates(self) -> bool:
        """Whether the server sees sums alone."""
        return self.mode != "off"

    @property
    def signs(self) -> bool:
        """Whether clients sign keys and survivors, as against a server that may lie."""
        return self.mode == "active"

    def refuse_roster(self) -> None:
        """Refuse a roster of nodes where this machine plays all clients.

        Raises ConfigError: one is set.
        """
        require(
            self.roster_file is None,
            f"secagg.roster_file={self.roster_file} is for nodes that operators start, and here one machine "
            "plays all clients: leave it and secagg.consortium_key out, and with secagg.mode=active set "
            f"secagg.identities={FIRST_SEEN}",
        )
