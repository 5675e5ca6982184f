"""From the configuration to the learning task, which knows no configuration."""

from dataclasses import fields

from conf.schema import Config
from gdpfed.learning.datasets import DataSource
from gdpfed.learning.task import Task


def task_of(config: Config) -> Task:
    """The learning task that the configuration describes."""
    data = config.dataset
    return Task(
        source=DataSource(**{field.name: getattr(data, field.name) for field in fields(DataSource)}),
        model=data.model,
        model_options=tuple(sorted((data.model_options or {}).items())),
        partition=data.partition,
        dirichlet_alpha=data.dirichlet_alpha,
        num_clients=data.num_clients,
        seed=config.run.seed,
    )
