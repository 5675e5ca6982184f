"""The setting group ``privacy``: budgets, and the settings of noise, sampling, clipping and accounting."""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any

from omegaconf import MISSING

from conf.errors import ConfigError
from conf.schema.checks import are_numbers, require
from conf.schema.ranges import ClippingNorm, at_least, between, one_of, positive, require_ranges, within

SAMPLING_RATE_CHOICES = ("auto", "paper")
CLIENTS = "clients"
"""The value of privacy.budgets with which every client states its own budget."""
PROVED_OF_TURNS = {
    "unit": "client",
    "sampling": "poisson",
    "noise": "gaussian",
    "clipping": "fixed",
    "accountant": "pld",
    "sampling_rates": "auto",
    "min_sampling_rate": 0.0,
}
"""The settings for which the privacy of scheduled rounds with correlated noise is proved."""
PROVED_OF_ALLOCATION = {
    "unit": "client",
    "adjacency": "zero_out",
    "noise": "gaussian",
    "clipping": "fixed",
    "accountant": "pld",
}
"""The settings for which the privacy of random allocation (one secret round in each block) is proved."""
MOST_NOISE_TAPS = 16
MOST_SHOWN = 8
Share = Annotated[float, within("(0, 1)")]
Part = Annotated[float, within("(0, 1]")]


@dataclass
class PrivacyConfig:
    """Privacy settings: budgets, accounting, sampling, noise and clipping."""

    unit: Annotated[str, one_of("client", "record")] = "client"
    against: Annotated[str, one_of("auto", "outsiders", "everyone")] = "auto"
    noise_taps: Annotated[int, within(f"[0, {MOST_NOISE_TAPS}]", ": 0 is noise that is not correlated")] = 1
    accountant: str = "pld"
    renyi_orders: Annotated[str, one_of("auto", "fine", "whole")] = "auto"
    sampling: str = "poisson"
    adjacency: str = "zero_out"
    budgets: Any = MISSING
    budgets_of: Annotated[str, one_of("clients", "records")] = "clients"
    group_shares: list[float] | None = None
    client_budgets: Any = None
    budget_floor: Annotated[float, between(1e-3, 1e6)] = 0.1
    delta_floor: Annotated[float, within("[1e-12, 1)")] = 1e-8
    most_records: Annotated[int, at_least(1)] = 1_000_000
    num_groups: Annotated[int, at_least(1)] | None = None
    group_edges: list[float] | None = None
    delta: Annotated[float, within("(0, 1)")] | None = None
    clipping_norm: ClippingNorm = MISSING
    clipping: Annotated[str, one_of("fixed", "adaptive")] = "fixed"
    clipping_quantile: Share = 0.5
    clipping_learning_rate: Part = 0.2
    clipping_noise: Part = 0.05
    noise: Annotated[str, one_of("gaussian", "discrete_gaussian")] = "gaussian"
    sampling_rate: Annotated[float, within("[1e-9, 1]", ": it is a share of all clients")] = MISSING
    sampling_rates: Any = "auto"
    min_sampling_rate: Annotated[float, within("[0, 1]")] = 0.0
    batch_rate: Part = 0.05
    vote_share: Share = 0.1
    norm_histogram_share: Share | None = None
    client_records: list[int] | None = None
    price: Annotated[float, positive("above 0, or null")] | None = None
    price_bounds: list[float] = field(default_factory=lambda: [0.001, 1.0])
    client_aversions: list[float] | None = None

    def __post_init__(self) -> None:
        # Where a word is accepted, too, nothing makes 1 and 1.0 the same setting, and the same run.
        self.budgets = _as_floats(self.budgets)
        self.sampling_rates = _as_floats(self.sampling_rates)

    def validate(self) -> None:
        require_ranges("privacy", self)
        rates = self.sampling_rates
        require(
            are_numbers(rates) or rates in SAMPLING_RATE_CHOICES,
            f"privacy.sampling_rates={rates} is not known: use auto, paper or one number for each group, "
            "as in privacy.sampling_rates=[0.01,0.02,0.03]",
        )
        self._validate_budgets()
        self._validate_price()
        self._validate_unit()
        self._validate_against()
        self._validate_allocation()

    def _validate_against(self) -> None:
        if self.against == "everyone" and self.unproved_of_turns is not None:
            key = self.unproved_of_turns
            raise ConfigError(
                f"privacy.against=everyone does not go with privacy.{key}={getattr(self, key)}: use "
                f"privacy.{key}={PROVED_OF_TURNS[key]}, or privacy.against=outsiders"
            )

    def _validate_allocation(self) -> None:
        if self.sampling != "allocation":
            return
        for key, only in PROVED_OF_ALLOCATION.items():
            require(
                getattr(self, key) == only,
                f"privacy.sampling=allocation is proved for privacy.{key}={only}, not "
                f"{getattr(self, key)}: use that, or privacy.sampling=poisson",
            )

    @property
    def unproved_of_turns(self) -> str | None:
        """The first setting whose value the privacy proof for scheduled rounds (turns) excludes, or None."""
        return next((key for key, only in PROVED_OF_TURNS.items() if getattr(self, key) != only), None)

    def _validate_price(self) -> None:
        price, bounds, aversions = self.price, self.price_bounds, self.client_aversions
        require(
            price is None or self.budgets == CLIENTS,
            f"privacy.price={price} lets each client choose its budget: set privacy.budgets={CLIENTS}",
        )
        require(
            len(bounds) == 2 and 0 < bounds[0] < bounds[1] < inf,
            f"privacy.price_bounds={bounds} must be the least and the highest zCDP of a whole run, as in "
            "privacy.price_bounds=[0.001,1]",
        )
        require(
            aversions is None or all(0 < aversion < 1 for aversion in aversions),
            f"privacy.client_aversions={_short(aversions)} must lie in (0, 1), one for each client",
        )

    def _validate_unit(self) -> None:
        if not self.about_records:
            for key, usual in (("budgets_of", "clients"), ("client_records", None)):
                value = getattr(self, key)
                require(
                    value == usual,
                    f"privacy.{key}={_short(value)} is about records, and privacy.unit=client protects "
                    "clients: set privacy.unit=record",
                )
            return
        # What the accounting of steps on records covers.
        accounted = {
            "adjacency": "zero_out",
            "noise": "gaussian",
            "sampling_rates": "auto",
            "clipping": "fixed",
        }
        for key, only in accounted.items():
            value = getattr(self, key)
            require(
                value == only,
                f"privacy.{key}={value} does not go with privacy.unit=record: leave privacy.{key}={only}",
            )
        require(
            self.budgets_of == "clients" or self.budgets != CLIENTS,
            f"privacy.budgets={CLIENTS} are one number each, and privacy.budgets_of=records needs those of "
            "every group of records: give privacy.budgets=[...]",
        )
        require(
            self.budgets_of == "clients" or len(self.record_shares) == len(self.budgets),
            f"privacy.group_shares={self.group_shares} must be one share for each group of records in "
            f"privacy.budgets={self.budgets}",
        )
        require(
            all(count >= 1 for count in self.client_records or ()),
            f"privacy.client_records={_short(self.client_records)} has a client without records: leave that "
            "client out",
        )

    @property
    def about_records(self) -> bool:
        """Whether single records are protected, rather than whole clients."""
        return self.unit == "record"

    @property
    def record_shares(self) -> tuple[float, ...]:
        """The fraction of a client's records under each budget; empty if budgets are of whole clients."""
        if self.budgets_of == "clients":
            return ()
        return tuple(self.group_shares or [1 / len(self.budgets)] * len(self.budgets))

    @property
    def planned_groups(self) -> int | None:
        """The number of client groups in the plan; None if it depends on the clients' own budgets."""
        if self.budgets_of == "records":
            return 1
        if self.budgets != CLIENTS:
            return len(self.budgets)
        return self.num_groups if self.group_edges is None else None

    def _validate_budgets(self) -> None:
        require(
            self.budgets == CLIENTS or are_numbers(self.budgets),
            f"privacy.budgets={self.budgets} is neither {CLIENTS} nor one number for each group, "
            "as in privacy.budgets=[1,3,6]",
        )
        for epsilon in () if self.budgets == CLIENTS else self.budgets:
            require(
                0 < epsilon < inf,
                f"privacy.budgets={self.budgets} has {epsilon}: every budget must be above 0 and finite, as "
                "in privacy.budgets=[1,3,6]",
            )
        for key in ("client_budgets", "group_edges"):
            require(
                self.budgets == CLIENTS or getattr(self, key) is None,
                f"privacy.{key}={_short(getattr(self, key))} goes with budgets of the clients' own: "
                f"privacy.budgets={CLIENTS}",
            )
        require(
            self.budgets != CLIENTS or self.group_shares is None,
            f"privacy.group_shares={self.group_shares} does not go with privacy.budgets={CLIENTS}: the "
            "clients' own budgets form the groups, by privacy.num_groups or privacy.group_edges",
        )


def _short(value: Any) -> str:
    """Return a setting's value, shortened for a message of one line."""
    return f"[{value[0]}, ...]" if isinstance(value, list) and len(value) > MOST_SHOWN else str(value)


def _as_floats(value: Any) -> Any:
    return [float(each) for each in value] if are_numbers(value) else value
