"""Subnets (the devices behind one edge server each): which edge servers are trusted, and options."""

import math
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import not_known
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.privacy.events import Sampling
from gdpfed.privacy.planning.groups import Group, groups_from_sizes, merge_groups

TRUSTS = get_args(Trust)
USUAL_WINDOW = 5


@dataclass
class SubnetConfig(MethodConfig):
    """The options of all methods with edge servers; a subnet is the devices behind one edge server."""

    num_subnets: int = 4
    local_aggregations: int | None = None
    participants: Any = None

    def validate(self) -> None:
        super().validate()
        require(self.num_subnets >= 1, f"method.num_subnets={self.num_subnets} must be at least 1")
        count, drawn = self.local_aggregations, self.participants
        require(count is None or count >= 1, f"method.local_aggregations={count} must be at least 1, or null")
        numbers = drawn if isinstance(drawn, list) else [] if drawn is None else [drawn]
        require(
            all(isinstance(each, int) and each >= 1 for each in numbers),
            f"method.participants={drawn} must be at least 1, one such number for each subnet, or null",
        )
        require(
            not isinstance(drawn, list) or len(drawn) == self.num_subnets,
            f"method.participants={drawn} must be one number, or one for each of "
            f"method.num_subnets={self.num_subnets}",
        )


@dataclass
class TrustConfig(SubnetConfig):
    """The options that say which edge servers are trusted, and by which mechanism noise is added."""

    mechanism: str = "auto"
    trust: Any = "secagg"
    trusted_share: float | None = None

    def validate(self) -> None:
        super().validate()
        words = self.trust if isinstance(self.trust, list) else [self.trust]
        require(
            all(word in TRUSTS for word in words),
            f"{not_known(f'method.trust={self.trust}', TRUSTS)}, or a list with one of them for each subnet",
        )
        require(
            not isinstance(self.trust, list) or len(self.trust) == self.num_subnets,
            f"method.trust={self.trust} must be one word, or one for each of "
            f"method.num_subnets={self.num_subnets}",
        )
        share = self.trusted_share
        require(
            share is None or 0 <= share <= 1,
            f"method.trusted_share={share} must be from 0 to 1, or null",
        )
        require(
            share is None or isinstance(self.trust, str),
            f"method.trusted_share={share} does not go with a word for each subnet: leave one out",
        )

    def trust_of_subnets(self) -> tuple[Trust, ...]:
        """Return each edge server's trust setting; `trusted_share` makes a first part of them "trusted"."""
        if isinstance(self.trust, list):
            return tuple(cast("list[Trust]", self.trust))
        trusted = round((self.trusted_share or 0.0) * self.num_subnets)
        words: list[Trust] = ["trusted"] * trusted
        return (*words, *[cast("Trust", self.trust)] * (self.num_subnets - trusted))


def subnets_of(config: Config) -> tuple[Group, ...]:
    """Divide clients into nearly equal groups, one for each edge server; the smallest budget holds for all.

    Raises:
        ConfigError: a subnet from which too few devices take part to be summed, or budgets of records' own.
    """
    method, num_clients = config.method, config.dataset.num_clients
    require(
        config.privacy.budgets_of == "clients",
        f"privacy.budgets_of={config.privacy.budgets_of} does not go with method={method.name}, which holds "
        "all records to one budget: leave it out",
    )
    sizes = sizes_of_subnets(config)
    taking_part = sizes if method.participants is None else _each(method.participants, len(sizes))
    for size, some in zip(sizes, taking_part, strict=True):
        require(
            some <= size,
            f"method.participants={method.participants} of subnets with {size} devices: choose at most "
            f"{size}",
        )
    require(
        min(taking_part) >= config.secagg.minimum_cohort,
        f"method.num_subnets={method.num_subnets} of dataset.num_clients={num_clients} leaves subnets of "
        f"{min(taking_part)} devices a sum, below secagg.minimum_cohort={config.secagg.minimum_cohort}: use "
        "fewer subnets, or more devices",
    )
    epsilon = merge_groups(configured_groups(config)).epsilon
    return groups_from_sizes(epsilon, sizes)


def sizes_of_subnets(config: Config) -> list[int]:
    """Return the number of devices behind each edge server; the numbers differ by at most one."""
    count = config.method.num_subnets
    least, rest = divmod(config.dataset.num_clients, count)
    return [least + (number < rest) for number in range(count)]


def drawing(config: Config) -> tuple[Sampling, tuple[float, ...]]:
    """Return how devices are drawn for a round, and the sampling rate at each edge server.

    All of them, or `participants` of each subnet, every set being equally likely.
    """
    sizes, drawn = sizes_of_subnets(config), config.method.participants
    if drawn is None:
        return "poisson", (1.0,) * len(sizes)
    counts = _each(drawn, len(sizes))
    return "fixed_size", tuple(min(1.0, some / size) for some, size in zip(counts, sizes, strict=True))


def rate_of_all(config: Config) -> float:
    """Return the fraction of all devices that a round draws."""
    drawn, count = config.method.participants, config.method.num_subnets
    if drawn is None:
        return 1.0
    return min(1.0, sum(_each(drawn, count)) / config.dataset.num_clients)


def _each(drawn: Any, count: int) -> list[int]:
    return list(drawn) if isinstance(drawn, list) else [int(drawn)] * count


def windows_of_round(config: Config) -> int:
    """Return J, the number of sums that each edge server makes in a round.

    Raises ConfigError: windows that the steps of a round do not divide into.
    """
    steps, given = config.training.local_steps, config.method.local_aggregations
    if given is None:
        return next(count for count in range(-(-steps // USUAL_WINDOW), steps + 1) if steps % count == 0)
    count = int(given)
    require(
        steps % count == 0,
        f"training.local_steps={steps} are not method.local_aggregations={count} windows of equally many "
        "steps: choose a number that divides them",
    )
    return count


CONTROLS = ("none", "planned")
NOISE_TERMS = ("planned", "printed", "corrected")
TRANSMISSIONS = ("turns", "together")


@dataclass
class ControlConfig(TrustConfig):
    """The options by which H2FDP chooses local steps and participants before training."""

    control: str = "none"
    control_weights: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    control_noise: str = "planned"
    noise_scale: float | None = None
    total_steps: int | None = None
    most_local_steps: int = 40
    most_participants: int | None = None
    smoothness: float | None = None
    distance: float = 50.0
    transmission: str = "turns"

    def validate(self) -> None:
        super().validate()
        require(
            self.control != "adaptive",
            "method.control=adaptive is refused: a schedule that follows the run has no accounting for "
            "windows, and nothing that the choice depends on changes in a run: use method.control=planned",
        )
        _one_of("control", self.control, CONTROLS)
        _one_of("control_noise", self.control_noise, NOISE_TERMS)
        _one_of("transmission", self.transmission, TRANSMISSIONS)
        weights = self.control_weights
        require(
            len(weights) == 3 and all(math.isfinite(each) and each >= 0 for each in weights) and any(weights),
            f"method.control_weights={weights} must be three numbers, of energy, delay and noise, none "
            "negative and not all of them zero",
        )
        for key in ("total_steps", "most_local_steps", "most_participants"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"method.{key}={value} must be at least 1")
        for key in ("noise_scale", "smoothness"):
            value = getattr(self, key)
            require(
                value is None or (math.isfinite(value) and value > 0),
                f"method.{key}={value} must be above 0, or null",
            )
        require(
            math.isfinite(self.distance) and self.distance >= 1,
            f"method.distance={self.distance} must be at least 1 metre",
        )

    @property
    def together(self) -> bool:
        """Whether an edge server's devices send at the same time rather than one by one."""
        return self.transmission == "together"


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    require(value in known, not_known(f"method.{key}={value}", known))
