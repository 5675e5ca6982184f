"""Describes a data set by its name and settings, which are small enough for messages, and loads it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.dataset_check import loaded
from gdpfed.learning.data.encoded import FILE, Encoder, Values
from gdpfed.learning.data.features import with_features
from gdpfed.learning.weights_file import WeightsFile
from gdpfed.registry import Registry


@dataclass(frozen=True)
class DataSource:
    """The settings of a data set; a setting is None if the default applies or the data set does not use it.

    Attributes:
        name: the name of the loader.
        path: the file or directory with the data.
        image_size: the width and height in pixels to which pictures are resized.
        channels: 1 for grey, 3 for colour.
        test_fraction: the share of the data that is held out for testing, if it has no test split.
        sequence_length: the number of characters from which the next one is predicted.
        min_characters: a role of a play with fewer characters is left out.
        test_stride: the number of characters from one test window to the next.
        columns: the file that declares the columns of a table.
        test_path: the file or folder of the test split of a table.
        complete_rows: whether rows with a missing value are left out.
        features: the name of a public transform of the inputs.
        train_stride: the number of characters from one training window to the next.
        vocabulary: the number of tokens, if inputs are arrays of tokens.
        weights: the safetensors file with weights for the model or the encoder.
        weights_sha256: the file's SHA-256 in hexadecimal.
        encoder: the architecture and sizes of an encoder with these weights, for features=file.
    """

    name: str
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
    train_stride: int | None = None
    vocabulary: int | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    encoder: Values | None = None

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "DataSource":
        """Make the settings from a dictionary that was read from JSON.

        Raises TypeError: an entry is unknown or missing.
        """
        said = values.get("encoder")
        return cls(**values | {"encoder": None if said is None else tuple((str(k), v) for k, v in said)})

    def to_json(self) -> str:
        """Return the settings as JSON text, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataSource":
        """Read the settings that `to_json` wrote."""
        return cls.from_values(json.loads(text))

    @property
    def named_file(self) -> str | None:
        """The first path that is set among `path`, `test_path` and `columns`; None if none of them is set."""
        return self.path or self.test_path or self.columns

    @property
    def without_features(self) -> "DataSource":
        """The same settings without the feature transform and its file of weights."""
        return replace(self, features=None, weights=None, weights_sha256=None, encoder=None)

    @property
    def weights_file(self) -> WeightsFile | None:
        """The file of weights that the settings name; None without one.

        Raises LearningError: only one of path and SHA-256 is set, or the SHA-256 is malformed.
        """
        if self.weights is None and self.weights_sha256 is None:
            return None
        return WeightsFile.of(self.weights, self.weights_sha256)

    @property
    def file_encoder(self) -> Encoder | None:
        """The frozen network that transforms examples; None without one.

        Raises LearningError: dataset.encoder is set without dataset.features=file, or as in `weights_file`.
        """
        file = self.weights_file
        if self.features != FILE:
            if self.encoder is not None:
                raise LearningError(
                    f"dataset.encoder is read with dataset.features=file alone, and dataset.features is "
                    f"{self.features}: leave dataset.encoder out"
                )
            return None
        return None if file is None else Encoder(self.encoder or (), file, self.vocabulary)

    def allow(self, *settings: str) -> None:
        """Raise LearningError if a setting outside ``settings`` (those that the loader uses) is given."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("name", *settings) and value is not None:
                raise LearningError(
                    f"dataset.{field.name}={value} has no meaning for data set '{self.name}': leave it out"
                )


Loader = Callable[[DataSource], Dataset]

DATASETS: Registry[Loader] = Registry("data set", "gdpfed.datasets", error=LearningError)
_PLACED: dict[DataSource, Dataset] = {}


def place_dataset(source: DataSource, data: Dataset) -> None:
    """Store a data set in this process; from then on, `load_dataset` returns it for ``source``."""
    _PLACED[source] = data
    load_dataset.cache_clear()


@contextmanager
def dataset_placed(source: DataSource, data: Dataset) -> Iterator[None]:
    """Store a data set in this process for these settings, for the duration of a ``with`` block."""
    place_dataset(source, data)
    try:
        yield
    finally:
        del _PLACED[source]
        load_dataset.cache_clear()


def placed_dataset(source: DataSource) -> Dataset | None:
    """Return the data set that was stored in this process for these settings; None if there is none."""
    return _PLACED.get(source)


@lru_cache(maxsize=4)
def load_dataset(source: DataSource) -> Dataset:
    """Load the data set that ``source`` describes; the process caches the last few data sets.

    Raises LearningError: no loader has that name, or the data cannot be used.
    """
    if source in _PLACED:
        return _PLACED[source]
    encoder, plain = source.file_encoder, source.without_features
    data = _PLACED[plain] if plain in _PLACED else loaded(DATASETS.get(source.name), plain)
    if source.features is None:
        return data
    return replace(with_features(data, source.features, encoder), read_as=data.fingerprints)
