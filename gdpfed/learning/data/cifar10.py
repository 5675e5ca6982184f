"""CIFAR-10: 60,000 colour pictures of things and animals, 32x32 pixels in ten classes (Krizhevsky, 2009)."""

from pathlib import Path

import numpy as np

from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.download import read_or_download
from gdpfed.learning.data.source import DataSource

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
FILES = tuple(f"cifar-10-batches-py/{name}" for name in BATCHES)


def load(source: DataSource) -> Dataset:
    """50,000 training and 10,000 test pictures; ``cifar-10-python.tar.gz`` may lie there instead.

    Raises:
        LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, FILES, _read, num_classes=10)


def _read(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import CIFAR10

    parts = [CIFAR10(root, train=train, download=download) for train in (True, False)]
    train, test = (
        Pictures(
            np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)),
            np.asarray(part.targets, dtype=np.int64),
        )
        for part in parts
    )
    return train, test
