"""Data sets by name, each loaded once a process."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.features import with_features
from gdpfed.learning.data.source import DataSource
from gdpfed.registry import Registry

Loader = Callable[[DataSource], Dataset]

DATASETS: Registry[Loader] = Registry("data set", "gdpfed.datasets", error=LearningError)


@lru_cache(maxsize=4)
def load_dataset(source: DataSource) -> Dataset:
    """Load a data set by the name of its loader, once a process.

    Raises:
        LearningError: no loader of that name, or data that cannot be used.
    """
    data = DATASETS.get(source.name)(replace(source, features=None))
    return data if source.features is None else with_features(data, source.features)
