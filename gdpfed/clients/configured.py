"""Converts the configured learning task and training settings into the form that clients receive."""

import json
from dataclasses import fields
from math import inf

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import ConfigError, LearningError
from gdpfed.learning.data import Dataset, DataSource
from gdpfed.learning.data.tabular import parties_of_person
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import SCHEDULES, LocalTraining, check_training


def source_of(config: Config) -> DataSource:
    """Return the description of the data source that the configuration names."""
    values = {field.name: getattr(config.dataset, field.name) for field in fields(DataSource)}
    encoder = values["encoder"] and tuple(sorted(values["encoder"].items()))
    return DataSource(**values | {"encoder": encoder})


def task_of(config: Config) -> Task:
    """Return the learning task that the configuration describes."""
    data, source = config.dataset, source_of(config)
    return Task(
        source=source,
        model=data.model,
        model_options=tuple(sorted((data.model_options or {}).items())),
        partition=data.partition,
        dirichlet_alpha=data.dirichlet_alpha,
        shards=data.shards,
        num_clients=data.num_clients,
        loss=data.loss,
        class_weights=tuple(data.class_weights or ()),
        seed=config.run.seed,
        record_shares=config.privacy.record_shares,
        by_person=config.privacy.about_records and parties_of_person(source) > 0,
        partition_options=tuple(sorted((data.partition_options or {}).items())),
        local_parameters=tuple(config.training.local_parameters or ()),
    )


def training_of(config: Config, round_index: int) -> LocalTraining:
    """Return how clients train in a round: optimizer, steps, batch size and learning rate.

    Raises LearningError: optimizer or schedule is unknown, or the optimizer does not take its options.
    """
    own = config.training
    training = LocalTraining(
        local_steps=own.local_steps,
        batch_size=own.batch_size,
        learning_rate=learning_rate_of(config, round_index),
        momentum=own.momentum,
        optimizer=own.optimizer,
        optimizer_options=json.dumps(own.optimizer_options, sort_keys=True) if own.optimizer_options else "",
        proximal=own.proximal,
    )
    check_training(training)
    return training


def learning_rate_of(config: Config, round_index: int) -> float:
    """Return the learning rate of a round: eta_t = eta decay^t s(t, T), with the schedule s.

    Raises LearningError: no schedule has that name, or its factor is not positive and finite.
    """
    own, num_rounds = config.training, config.run.num_rounds
    factor = SCHEDULES.get(own.schedule)(round_index, num_rounds)
    if not 0 < factor < inf:
        raise LearningError(
            f"training.schedule={own.schedule} gives the factor {factor} in round {round_index + 1} of "
            f"{num_rounds}: choose a schedule whose factors are positive and finite"
        )
    return float(own.learning_rate * own.learning_rate_decay**round_index * factor)


def order_of(config: Config, task: Task) -> TrainingOrder:
    """Return the server's instruction to train (order) in round 0, as the configuration describes it."""
    return TrainingOrder(
        task.described(),
        training_of(config, 0),
        round_index=0,
        device=config.run.device,
        noise=config.privacy.noise,
    )


def record_counts(config: Config) -> npt.NDArray[np.int64]:
    """Return D_i, the number of records of every client, shape (num_clients,).

    If records are protected, these numbers are public: in a neighbouring run, one record's gradient is zero,
    and the numbers are the same. Raises ConfigError: not one count for each client, or a count is 0.
    """
    given, num_clients = config.privacy.client_records, config.dataset.num_clients
    if given is None:
        task = task_of(config)
        counts = np.asarray([len(task.client_indices(client)) for client in range(num_clients)], np.int64)
    else:
        counts = np.asarray(given, dtype=np.int64)
    if len(counts) != num_clients:
        raise ConfigError(
            f"privacy.client_records has {len(counts)} entries for dataset.num_clients={num_clients}: give "
            "one for each client"
        )
    empty = np.flatnonzero(counts == 0)
    if empty.size:
        raise ConfigError(
            f"client {empty[0]} has no records ({empty.size} of {num_clients} have none): use fewer clients, "
            "or another dataset.partition"
        )
    return counts


def require_classes(data: Dataset, dataset: str) -> None:
    """Raise ConfigError unless every record's label is exactly one class.

    Raises ConfigError: a label is a number, a set of labels, or one class for each position of a text.
    """
    if not data.labels.is_one_class or data.train.y.ndim > 1:
        raise ConfigError(
            f"method.client_sampling=fed_cbs balances classes, and records of dataset={dataset} do not have "
            "one class each: use method.client_sampling=random"
        )
