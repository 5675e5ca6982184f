"""The schema of the option files: a typo or a wrong type fails when they are composed.

Every option file extends one of these dataclasses. They are plain data, so the rest of the project can take
them as arguments without knowing Hydra. Values are checked where they are used for the first time: what the
mathematics forbids is refused by :mod:`gdpfed.privacy`, what only a configuration can get wrong is refused
here, in ``validate``, which :func:`conf.load.load` calls.
"""

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from omegaconf import MISSING

from conf.errors import ConfigError
from conf.limits import require_limits

RENYI_ORDERS = ("auto", "fine", "whole")
SECAGG_MODES = ("curious", "active", "off")
FIRST_SEEN = "first_seen"
"""secagg.identities where clients believe the first roster that they are sent."""
NOISES = ("gaussian", "discrete_gaussian")
DEVICES = ("auto", "cpu", "cuda")
PARTITIONS = ("iid", "labels", "shards", "dirichlet", "natural")
ENGINES = ("auto", "batched", "sequential")
AVERAGES = ("none", "polynomial")
CLIPPINGS = ("fixed", "adaptive")
PRECISIONS = ("float32", "tf32", "bf16")
SAMPLING_RATE_CHOICES = ("auto", "paper")
CLIENTS = "clients"
"""privacy.budgets where every client says its own."""
UNITS = ("client", "record")
MOST_SHOWN = 8
BUDGETS_OF = ("clients", "records")


def require(holds: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )


def _short(value: Any) -> str:
    """A value for a message of one line."""
    return f"[{value[0]}, ...]" if isinstance(value, list) and len(value) > MOST_SHOWN else str(value)


def _as_floats(value: Any) -> Any:
    return [float(each) for each in value] if _are_numbers(value) else value


@dataclass
class DatasetConfig:
    """One data set with the settings recommended for it, from which run, privacy and training start.

    From ``image_size`` to ``features``, what is null does not belong to the data set or has its default
    (:class:`gdpfed.learning.data.DataSource` says what each is).
    """

    name: str = MISSING
    path: str | None = None
    image_size: int | None = None
    channels: int | None = None
    test_fraction: float | None = None
    sequence_length: int | None = None
    min_characters: int | None = None
    test_stride: int | None = None
    columns: str | None = None
    test_path: str | None = None
    complete_rows: bool | None = None
    features: str | None = None
    loss: str = "cross_entropy"
    class_weights: list[float] | None = None
    metrics: list[str] | None = None
    model: str = MISSING
    model_options: Any = None
    partition: str = "iid"
    dirichlet_alpha: float | None = None
    shards: int | None = None
    num_clients: int = MISSING
    num_rounds: int = MISSING
    sampling_rate: float = MISSING
    budgets: list[float] = MISSING
    clipping_norm: float = MISSING
    paper_sampling_rates: list[float] | None = None
    local_steps: int = MISSING
    batch_size: int = MISSING
    learning_rate: float = MISSING
    learning_rate_decay: float = 0.99
    momentum: float = 0.0

    def validate(self) -> None:
        require_limits("dataset", self)
        _require_training("dataset", self)
        require(
            self.partition in PARTITIONS,
            f"dataset.partition={self.partition} is none of {', '.join(PARTITIONS)}",
        )
        self._validate_partition()
        self._validate_source()
        self._validate_model_options()
        self._validate_judgement()

    def _validate_partition(self) -> None:
        for partition, key, wanted, example in (
            ("dirichlet", "dirichlet_alpha", "a positive concentration", "0.5"),
            ("shards", "shards", "a positive number a client", "2"),
        ):
            value = getattr(self, key)
            if self.partition == partition:
                require(
                    value is not None and 0 < value < float("inf"),
                    f"dataset.partition={partition} needs {wanted}, not dataset.{key}={value}: set for "
                    f"instance dataset.{key}={example}",
                )
            else:
                require(
                    value is None,
                    f"dataset.{key}={value} has no meaning with dataset.partition={self.partition}: "
                    f"choose dataset.partition={partition}, or leave it out",
                )

    def _validate_model_options(self) -> None:
        options = self.model_options
        numbers = isinstance(options, dict) and all(type(value) in (int, float) for value in options.values())
        require(
            options is None or numbers,
            f"dataset.model_options={options} must be numbers by name, as in "
            "'dataset.model_options={hidden_units:32}'",
        )

    def _validate_judgement(self) -> None:
        weights = self.class_weights
        require(
            weights is None or all(0 < weight < float("inf") for weight in weights),
            f"dataset.class_weights={weights} must be positive numbers, one a class, as in "
            "'dataset.class_weights=[1,3]'",
        )
        require(
            self.metrics is None or len(self.metrics) > 0,
            f"dataset.metrics={self.metrics} names no metric: name one, or leave it out",
        )

    def _validate_source(self) -> None:
        require(
            self.channels in (None, 1, 3), f"dataset.channels={self.channels} must be 1 (grey) or 3 (RGB)"
        )
        fraction = self.test_fraction
        require(fraction is None or 0 < fraction < 1, f"dataset.test_fraction={fraction} must be in (0, 1)")


@dataclass
class TrainingConfig:
    """How a client trains in a round."""

    local_steps: int = MISSING
    batch_size: int = MISSING
    learning_rate: float = MISSING
    learning_rate_decay: float = MISSING
    momentum: float = MISSING

    def validate(self) -> None:
        require_limits("training", self)
        _require_training("training", self)


def _require_training(group: str, settings: DatasetConfig | TrainingConfig) -> None:
    """Check the settings of local training, as recommended or as chosen."""
    decay = settings.learning_rate_decay
    require(0 < decay <= 1, f"{group}.learning_rate_decay={decay} must be in (0, 1]")
    momentum = settings.momentum
    require(0 <= momentum < 1, f"{group}.momentum={momentum} must be in [0, 1)")


@dataclass
class MethodConfig:
    """What every method has; a method with options of its own extends it beside its class."""

    name: str = MISSING
    server_learning_rate: float = 1.0
    average: str = "none"

    def settle(self, num_groups: int) -> None:
        """Give options that are null, and depend on the number of groups, their values."""

    def validate(self) -> None:
        """Check the options; a class that adds some extends this.

        Raises:
            ConfigError: one line that names the value and the remedy.
        """
        require_limits("method", self)
        require(
            self.average in AVERAGES,
            f"method.average={self.average} is none of {', '.join(AVERAGES)}",
        )


@dataclass
class PrivacyConfig:
    """Budgets, their accounting, and what follows from them."""

    unit: str = "client"
    accountant: str = "pld"
    renyi_orders: str = "auto"
    sampling: str = "poisson"
    adjacency: str = "zero_out"
    budgets: Any = MISSING
    budgets_of: str = "clients"
    group_shares: list[float] | None = None
    client_budgets: list[float] | None = None
    budget_floor: float = 0.1
    most_records: int = 1_000_000
    num_groups: int = 3
    group_edges: list[float] | None = None
    delta: float | None = None
    clipping_norm: float = MISSING
    clipping: str = "fixed"
    clipping_quantile: float = 0.5
    clipping_learning_rate: float = 0.2
    clipping_noise: float = 0.05
    noise: str = "gaussian"
    sampling_rate: float = MISSING
    sampling_rates: Any = "auto"
    min_sampling_rate: float = 0.0
    batch_rate: float = 0.05
    client_records: list[int] | None = None
    price: float | None = None
    price_bounds: list[float] = field(default_factory=lambda: [0.001, 1.0])
    client_aversions: list[float] | None = None

    def __post_init__(self) -> None:
        # Where a word is accepted, too, nothing makes 1 and 1.0 the same setting, and the same run.
        self.budgets = _as_floats(self.budgets)
        self.sampling_rates = _as_floats(self.sampling_rates)

    def validate(self) -> None:
        require(
            self.renyi_orders in RENYI_ORDERS,
            f"privacy.renyi_orders={self.renyi_orders} is none of {', '.join(RENYI_ORDERS)}",
        )
        require(self.noise in NOISES, f"privacy.noise={self.noise} is none of {', '.join(NOISES)}")
        rates = self.sampling_rates
        require(
            _are_numbers(rates) or rates in SAMPLING_RATE_CHOICES,
            f"privacy.sampling_rates={rates} is none of auto, paper or one number a group, "
            "as in privacy.sampling_rates=[0.01,0.02,0.03]",
        )
        require_limits("privacy", self)
        self._validate_clipping()
        self._validate_budgets()
        self._validate_price()
        self._validate_unit()

    def _validate_clipping(self) -> None:
        require(
            self.clipping in CLIPPINGS, f"privacy.clipping={self.clipping} is none of {', '.join(CLIPPINGS)}"
        )
        require(
            0 < self.clipping_quantile < 1,
            f"privacy.clipping_quantile={self.clipping_quantile} must be in (0, 1)",
        )
        require(
            0 < self.clipping_learning_rate <= 1,
            f"privacy.clipping_learning_rate={self.clipping_learning_rate} must be in (0, 1]",
        )
        require(
            0 < self.clipping_noise <= 1, f"privacy.clipping_noise={self.clipping_noise} must be in (0, 1]"
        )

    def _validate_price(self) -> None:
        price, bounds, aversions = self.price, self.price_bounds, self.client_aversions
        require(price is None or 0 < price < inf, f"privacy.price={price} must be above 0, or null")
        require(
            price is None or self.budgets == CLIENTS,
            f"privacy.price={price} is answered by clients with budgets: set privacy.budgets={CLIENTS}",
        )
        require(
            len(bounds) == 2 and 0 < bounds[0] < bounds[1] < inf,
            f"privacy.price_bounds={bounds} must be the least and the highest zCDP of a whole run, as in "
            "privacy.price_bounds=[0.001,1]",
        )
        require(
            1e-3 <= self.budget_floor <= 1e6,
            f"privacy.budget_floor={self.budget_floor} must be from 0.001 to 1e+06",
        )
        require(self.most_records >= 1, f"privacy.most_records={self.most_records} must be at least 1")
        require(
            aversions is None or all(0 < each < 1 for each in aversions),
            f"privacy.client_aversions={_short(aversions)} must lie in (0, 1), one a client",
        )

    def _validate_unit(self) -> None:
        require(self.unit in UNITS, f"privacy.unit={self.unit} is none of {', '.join(UNITS)}")
        require(
            self.budgets_of in BUDGETS_OF,
            f"privacy.budgets_of={self.budgets_of} is none of {', '.join(BUDGETS_OF)}",
        )
        require(0 < self.batch_rate <= 1, f"privacy.batch_rate={self.batch_rate} must be in (0, 1]")
        if self.unit == "client":
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
            f"privacy.client_records={_short(self.client_records)} has a client without records: leave it "
            "out",
        )

    @property
    def record_shares(self) -> tuple[float, ...]:
        """Which share of a client's records has each budget; empty where all of them have the client's."""
        if self.budgets_of == "clients":
            return ()
        return tuple(self.group_shares or [1 / len(self.budgets)] * len(self.budgets))

    @property
    def planned_groups(self) -> int | None:
        """How many groups the settings make; None where that is found from the clients' own budgets."""
        if self.budgets_of == "records":
            return 1
        if self.budgets != CLIENTS:
            return len(self.budgets)
        return self.num_groups if self.group_edges is None else None

    def _validate_budgets(self) -> None:
        require(
            self.budgets == CLIENTS or _are_numbers(self.budgets),
            f"privacy.budgets={self.budgets} is neither {CLIENTS} nor one number a group, "
            "as in privacy.budgets=[1,3,6]",
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
        require(
            self.mode in SECAGG_MODES,
            f"secagg.mode={self.mode} is not one of {', '.join(SECAGG_MODES)}",
        )
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
        require(
            0 <= self.noise_levels <= 16,
            f"secagg.noise_levels={self.noise_levels} must be from 0 to 16",
        )
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
            self.mode != "active" or self.roster_file is not None or self.identities is not None,
            "secagg.mode=active needs to know whose key is whose: set secagg.roster_file and "
            "secagg.consortium_key (see gdpfed identity --help), or secagg.identities=first_seen, which "
            "believes what is sent first",
        )

    def refuse_roster(self) -> None:
        """Refuse a roster of nodes where this machine plays all clients.

        Raises:
            ConfigError: one is set.
        """
        require(
            self.roster_file is None,
            f"secagg.roster_file={self.roster_file} is for nodes that operators start, and here one machine "
            "plays all clients: leave it and secagg.consortium_key out, and with secagg.mode=active set "
            f"secagg.identities={FIRST_SEEN}",
        )


@dataclass
class RunConfig:
    """One training run: how long, where its files go, how it is resumed."""

    num_rounds: int = MISSING
    seed: int = 0
    directory: str | None = None
    resume: str | None = None
    stop_after_round: int | None = None
    timeout_seconds: float = 600.0
    minimum_nodes: int | None = None
    device: str = "auto"
    mlflow: str | None = None
    show_cohorts: bool = False
    bridge: str | None = None

    def validate(self) -> None:
        require_limits("run", self)
        least = self.minimum_nodes
        require(least is None or least >= 1, f"run.minimum_nodes={least} must be at least 1")
        stop = self.stop_after_round
        require(stop is None or stop >= 1, f"run.stop_after_round={stop} must be at least 1")
        require(self.device in DEVICES, f"run.device={self.device} is none of {', '.join(DEVICES)}")
        require(
            self.resume is None or self.directory is None,
            f"run.resume={self.resume} continues in its own directory: leave out run.directory",
        )


@dataclass
class SimulationConfig:
    """How ``gdpfed simulate`` trains a cohort; runs over Flower have no use for it."""

    engine: str = "auto"
    workers: int | None = None
    clients_at_once: int | None = None
    precision: str = "float32"

    def validate(self) -> None:
        require(self.engine in ENGINES, f"simulation.engine={self.engine} is none of {', '.join(ENGINES)}")
        for key in ("workers", "clients_at_once"):
            value = getattr(self, key)
            require(
                value is None or value >= 1,
                f"simulation.{key}={value} must be at least 1, or null to let the engine choose",
            )
        require(
            self.precision in PRECISIONS,
            f"simulation.precision={self.precision} is none of {', '.join(PRECISIONS)}",
        )
        require(
            self.precision == "float32" or self.engine != "sequential",
            f"simulation.precision={self.precision} needs simulation.engine=batched: one client after the "
            "other trains as a node does, in float32",
        )


@dataclass
class Config:
    """The whole configuration of a run."""

    dataset: DatasetConfig = MISSING
    training: TrainingConfig = MISSING
    method: Any = MISSING
    privacy: PrivacyConfig = MISSING
    secagg: SecAggConfig = MISSING
    run: RunConfig = MISSING
    simulation: SimulationConfig = MISSING

    def validate(self) -> None:
        """Check every section.

        Raises:
            ConfigError: one line that names the value and the remedy.
        """
        for section in fields(self):
            getattr(self, section.name).validate()
        require(
            self.secagg.noise_levels == 0 or self.privacy.noise == "discrete_gaussian",
            f"secagg.noise_levels={self.secagg.noise_levels} takes noise out again as the integers it was "
            "added as: use privacy.noise=discrete_gaussian",
        )
