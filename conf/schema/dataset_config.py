"""The setting groups ``dataset`` (data and model) and ``training`` (a client's local training)."""

from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any

from omegaconf import MISSING

from conf.limits import MOST_SETTINGS, VOTABLE
from conf.schema.checks import are_numbers, require
from conf.schema.ranges import (
    BatchSize,
    Characters,
    ClippingNorm,
    LearningRate,
    LearningRateDecay,
    LocalSteps,
    Momentum,
    NumClients,
    NumRounds,
    between,
    one_of,
    positive,
    require_ranges,
    within,
)


@dataclass
class DatasetConfig:
    """A data set with its recommended settings, which are defaults for other groups of settings.

    From ``image_size`` to ``encoder``, what is null does not belong to the data set or has its default
    (:class:`gdpfed.learning.data.DataSource` says what each is).
    """

    name: str = MISSING
    path: str | None = None
    image_size: Annotated[int, between(1, 4096)] | None = None
    channels: int | None = None
    test_fraction: Annotated[float, within("(0, 1)")] | None = None
    sequence_length: Annotated[int, between(1, 100_000)] | None = None
    min_characters: Characters | None = None
    test_stride: Characters | None = None
    columns: str | None = None
    test_path: str | None = None
    complete_rows: bool | None = None
    features: str | None = None
    train_stride: Characters | None = None
    vocabulary: Annotated[int, between(2, 2**31 - 1)] | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    encoder: Any = None
    loss: str = "cross_entropy"
    class_weights: list[float] | None = None
    metrics: list[str] | None = None
    model: str = MISSING
    model_options: Any = None
    partition: str = "iid"
    dirichlet_alpha: float | None = None
    shards: int | None = None
    partition_options: Any = None
    num_clients: NumClients = MISSING
    num_rounds: NumRounds = MISSING
    sampling_rate: float = MISSING
    budgets: list[float] = MISSING
    clipping_norm: ClippingNorm = MISSING
    paper_sampling_rates: list[float] | None = None
    local_steps: LocalSteps = MISSING
    batch_size: BatchSize = MISSING
    learning_rate: LearningRate = MISSING
    learning_rate_decay: LearningRateDecay = 0.99
    momentum: Momentum = 0.0
    against: Annotated[str, one_of("everyone", "outsiders")] = "everyone"

    def validate(self) -> None:
        require_ranges("dataset", self)
        self._validate_partition()
        self._validate_source()
        self._validate_model_options()
        self._validate_judgement()

    def _validate_partition(self) -> None:
        for partition, key, wanted, example in (
            ("dirichlet", "dirichlet_alpha", "a positive concentration", "0.5"),
            ("shards", "shards", "a positive number for each client", "2"),
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

        _require_values("dataset.partition_options", self.partition_options, "{classes:2}")

    def _validate_model_options(self) -> None:
        _require_values("dataset.model_options", self.model_options, "{hidden_units:32}")
        _require_values("dataset.encoder", self.encoder, "{architecture:resnet18}")

    def _validate_judgement(self) -> None:
        weights = self.class_weights
        require(
            weights is None or all(0 < weight < float("inf") for weight in weights),
            f"dataset.class_weights={weights} must be positive numbers, one for each class, as in "
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


@dataclass
class TrainingConfig:
    """How a client trains locally in a round: optimizer, steps, batch size and learning rate."""

    local_steps: LocalSteps = MISSING
    batch_size: BatchSize = MISSING
    learning_rate: LearningRate = MISSING
    learning_rate_decay: LearningRateDecay = MISSING
    momentum: Momentum = MISSING
    optimizer: str = "sgd"
    optimizer_options: Any = None
    proximal: Annotated[float, positive("0 or a positive number", or_zero=True)] = 0.0
    schedule: str = "constant"
    client_state: str | None = None
    local_parameters: list[str] | None = None
    vote: Any = None

    def validate(self) -> None:
        require_ranges("training", self)
        _require_numbers("training.optimizer_options", self.optimizer_options, "{weight_decay:0.01}")
        if self.vote is not None:
            self._validate_vote()

    @property
    def is_sgd(self) -> bool:
        """Whether clients take plain SGD steps, with or without momentum."""
        return self.optimizer == "sgd" and not self.optimizer_options and self.proximal == 0

    def _validate_vote(self) -> None:
        grid, example = self.vote, "as in 'training.vote={learning_rate:[0.1,0.3,1]}'"
        require(
            isinstance(grid, dict) and len(grid) > 0 and set(grid) <= set(VOTABLE),
            f"training.vote={grid} must list values of {', '.join(VOTABLE)}, on which no accounting "
            f"depends, {example}",
        )
        for key, values in grid.items():
            require(
                are_numbers(values) and 0 < len(values) == len(set(values)),
                f"training.vote.{key}={values} must be different numbers, {example}",
            )
            for value in values:
                tried = replace(self, vote=None)
                setattr(tried, key, float(value))
                tried.validate()
        number = prod(len(values) for values in grid.values())
        require(
            2 <= number <= MOST_SETTINGS,
            f"training.vote={grid} has {number} settings: vote on 2 to {MOST_SETTINGS}",
        )


def _require_values(key: str, options: Any, example: str) -> None:
    """Raise ConfigError unless `options` is None or a mapping from names to numbers or text."""
    values = isinstance(options, dict) and all(type(each) in (int, float, str) for each in options.values())
    require(
        options is None or values,
        f"{key}={options} must be numbers or text by name, as in '{key}={example}'",
    )


def _require_numbers(key: str, options: Any, example: str) -> None:
    """Raise ConfigError unless `options` is None or a mapping from names to numbers."""
    numbers = isinstance(options, dict) and all(type(value) in (int, float) for value in options.values())
    require(options is None or numbers, f"{key}={options} must be numbers by name, as in '{key}={example}'")
