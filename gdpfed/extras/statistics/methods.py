"""Two methods that sum counts in one round: one protects records or persons, the other clients.

**One sum has one noise**, that of the strictest budget: it is never above what any party allows, and a total
needs the numbers of all. Two sums with a noise each, added up, would have the noise of both, which is more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import ConfigError, not_known
from gdpfed.extras.statistics.layout import SPACINGS, Asked, Layout, Spacing
from gdpfed.methods.base import ClientSum, Cohorts, RunOption, SumRequest, Theta
from gdpfed.methods.dp_sum import DPSum
from gdpfed.methods.fedavg import DPFedAvg
from gdpfed.methods.party_budgets import configured_groups, configured_parties
from gdpfed.methods.record_method import RecordMethodConfig
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.record_steps import Work

SLACK = 1 / 64
"""Of the bound on a record's counts, for what rounding to the grid of the sum may add to them."""
LOSSES = {
    "classes": "cross_entropy",
    "numbers": "squared_error",
    "label_sets": "binary_cross_entropy",
    "times_to_event": "discrete_hazard",
}
"""One for each kind of labels; nothing is trained by it."""


@dataclass
class StatisticsConfig(MethodConfig):
    """The options of methods for statistics, in addition to those of every method."""

    bins: int = 16
    spacing: str = "even"
    columns: list[str] | None = None
    by: str | None = None
    by_party: bool = False
    crossed: Any = None
    survival: bool = False
    minimum_count: float = 10.0

    def validate(self) -> None:
        super().validate()
        require(self.spacing in SPACINGS, not_known(f"method.spacing={self.spacing}", SPACINGS))
        pairs = self.crossed is None or (
            isinstance(self.crossed, list)
            and all(
                isinstance(each, list) and len(each) == len({*map(str, each)}) == 2 for each in self.crossed
            )
        )
        require(pairs, f"method.crossed={self.crossed} must be pairs of two columns, as in [[sex,smoker]]")
        for key, names in (("columns", self.columns), ("crossed", [*map(str, self.crossed or ())])):
            require(
                names is None or len(names) == len({*names}), f"method.{key}={names} names one of them twice"
            )
        require(
            0 <= self.minimum_count < math.inf,
            f"method.minimum_count={self.minimum_count:g} must be a finite number, 0 or more",
        )

    def asked(self, num_clients: int) -> Asked:
        """Return the statistics that the options ask for.

        Raises LearningError: what does not go together.
        """
        return Asked(
            bins=self.bins,
            spacing=cast("Spacing", self.spacing),
            columns=tuple(self.columns or ()),
            by=self.by,
            crossed=tuple((str(rows), str(across)) for rows, across in self.crossed or ()),
            survival=self.survival,
            parties=num_clients if self.by_party else 0,
        ).checked()


@dataclass
class RecordStatisticsConfig(StatisticsConfig, RecordMethodConfig):
    """The options of method=record_statistics."""


ONE_STEP: Mapping[str, Any] = {
    "num_rounds": 1,
    "local_steps": 1,
    "learning_rate": 1.0,
    "learning_rate_decay": 1.0,
    "momentum": 0.0,
}
"""Rounds and training of counts, whatever the data set recommends for models."""


def resolved(config: Config, method: "type[RecordStatistics | ClientStatistics]") -> Config:
    """Return the configuration of a statistics run with all derived settings filled in (idempotent).

    Raises ConfigError: settings that do not go with statistics. Raises LearningError: columns that are none.
    """
    from gdpfed.clients.configured import source_of
    from gdpfed.extras.statistics.rows import source_columns

    _refuse_settings_of_training(config)
    options = cast("StatisticsConfig", config.method)
    columns = source_columns(source_of(config))
    counted = options.columns or [*columns.inputs, *columns.label_names]
    if options.survival:
        if method is ClientStatistics:
            raise ConfigError(
                "method.survival=true counts records or persons, and privacy.unit=client counts shares of "
                "parties, for which a survival curve has no valid band: use privacy=record_level"
            )
        if options.columns or options.crossed:
            raise ConfigError(
                "method.survival=true counts events and censored records alone: leave method.columns and "
                "method.crossed out, and count them in another run"
            )
        counted = []
    options = replace(options, columns=list(counted), average="none", server_learning_rate=1.0)
    if isinstance(options, RecordStatisticsConfig):
        options = replace(options, chosen=[])
    asked = options.asked(config.dataset.num_clients)
    layout, parties = Layout.of(columns, asked), configured_parties(config) or 1
    if config.dataset.model != asked.kind:
        raise ConfigError(
            f"dataset.model={config.dataset.model} does not fit method={method.name} with this method.by, "
            "method.by_party, method.crossed and method.survival: set "
            f"dataset.model={asked.kind}, or use gdpfed stats"
        )
    privacy = replace(
        config.privacy,
        clipping_norm=parties * layout.moves * (1 + SLACK),
        sampling_rate=1.0,
        batch_rate=1.0,
    )
    return replace(
        config,
        dataset=replace(
            config.dataset,
            loss=LOSSES[columns.label_kind],
            model_options={"asked": asked.to_json(), "cells": layout.size},
        ),
        method=options,
        privacy=privacy,
        run=replace(config.run, num_rounds=ONE_STEP["num_rounds"]),
        training=replace(config.training, **{key: ONE_STEP[key] for key in ONE_STEP if key != "num_rounds"}),
    )


def _refuse_settings_of_training(config: Config) -> None:
    """Raise ConfigError for settings that make no sense in a run that counts once and trains no model."""
    name, privacy, training = config.method.name, config.privacy, config.training
    if not privacy.about_records and cast("StatisticsConfig", config.method).by_party:
        raise ConfigError(
            f"method={name} protects each client as a whole, and method.by_party=true would show a table of "
            "each alone, under noise that hides it: use method=record_statistics privacy=record_level"
        )
    for key, one in ONE_STEP.items():
        section = "run" if key == "num_rounds" else "training"
        value = getattr(getattr(config, section), key)
        # What the data set recommends is for models.
        if value not in (one, getattr(config.dataset, key)):
            raise ConfigError(
                f"method={name} counts once and takes no step, so {section}.{key}={value} has no effect: "
                "leave it out"
            )
    for key, value, only in (
        ("privacy.budgets_of", privacy.budgets_of, "clients"),
        ("privacy.noise", privacy.noise, "gaussian"),
        ("privacy.clipping", privacy.clipping, "fixed"),
        ("run.evaluation", config.run.evaluation, "server"),
        ("run.mailbox", config.run.mailbox, None),
        ("training.vote", training.vote, None),
        ("privacy.norm_histogram_share", privacy.norm_histogram_share, None),
        ("training.client_state", training.client_state, None),
        ("training.local_parameters", training.local_parameters, None),
        ("training.optimizer", training.optimizer, "sgd"),
        ("dataset.class_weights", config.dataset.class_weights, None),
    ):
        if value != only:
            raise ConfigError(
                f"method={name} counts and trains nothing, so {key}={value} has no effect: leave it out"
            )


class RecordStatistics(DPSum):
    """Counts records by value or bin in B columns or column pairs; one record's L2 effect is at most sqrt(B).

    One step of DP-SGD without a sample: a Gaussian release of all records, so its epsilon holds against
    everyone who does not add noise to it.
    """

    name: ClassVar[str] = "record_statistics"
    label: ClassVar[str] = "statistics of records"
    curve: ClassVar[None] = None
    config_class: ClassVar[type[MethodConfig]] = RecordStatisticsConfig
    work: ClassVar[Work] = "record_statistics"
    differences: ClassVar[Sequence[str]] = ()
    compared: ClassVar[bool] = False
    goes_with: ClassVar[tuple[RunOption, ...]] = ()

    @classmethod
    def resolve(cls, config: Config) -> Config:
        return resolved(config, cls)

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        strictest = min(group.epsilon for group in configured_groups(config))
        privacy = replace(
            config.privacy,
            budgets=[strictest],
            group_shares=None,
            client_budgets=None,
            num_groups=None,
            group_edges=None,
        )
        return super().make_plan(replace(config, privacy=privacy))

    def change(self, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        return np.asarray(released.total, dtype=np.float64)

    def observers(self, directory: Path) -> Sequence[Any]:
        return _observers(self, self.config, directory)


class ClientStatistics(DPFedAvg):
    """Sums B histograms of fractions of each client's records: vectors of L2 norm sqrt(B) or less."""

    name: ClassVar[str] = "client_statistics"
    label: ClassVar[str] = "statistics of clients"
    curve: ClassVar[None] = None
    config_class: ClassVar[type[MethodConfig]] = StatisticsConfig
    usually_against_everyone: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    goes_with: ClassVar[tuple[RunOption, ...]] = ("turns",)
    config: Config

    @classmethod
    def resolve(cls, config: Config) -> Config:
        return resolved(config, cls)

    @classmethod
    def from_config(cls, config: Config) -> "ClientStatistics":
        made = super().from_config(config)
        made.config = config
        return made

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        return _of_work(super().make_plan(config))

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return _of_work(super().make_turn_plan(config))

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the round's requests: sums of the fractions of each client's records in every cell."""
        return [
            replace(each, work="client_statistics") for each in super().requests(theta, round_index, cohorts)
        ]

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        total = sums[0].total
        return theta if total is None else (theta + total).astype(np.float32)

    def observers(self, directory: Path) -> Sequence[Any]:
        return _observers(self, self.config, directory)


def _of_work(plan: PrivacyPlan) -> PrivacyPlan:
    return replace(plan, mechanism=replace(plan.mechanism, works=("client_statistics",)))


def _observers(
    method: "RecordStatistics | ClientStatistics", config: Config, directory: Path
) -> Sequence[Any]:
    # Which read tables and write pages, and load more than a plan needs.
    from gdpfed.extras.statistics.result import StatisticsFiles

    return (StatisticsFiles(config, method.plan, directory),)
