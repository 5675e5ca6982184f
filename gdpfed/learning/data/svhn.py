"""Street View House Numbers: 99,289 colour pictures of digits, 32x32 pixels (Netzer et al., 2011)."""

from pathlib import Path

import numpy as np

from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.download import read_or_download
from gdpfed.learning.data.source import DataSource

FILES = ("train_32x32.mat", "test_32x32.mat")


def load(source: DataSource) -> Dataset:
    """73,257 training and 26,032 test pictures; class 0 is the digit 0.

    Raises:
        LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, FILES, _read, num_classes=10)


def _read(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import SVHN

    parts = [SVHN(root, split=split, download=download) for split in ("train", "test")]
    train, test = (Pictures(np.ascontiguousarray(part.data), part.labels) for part in parts)
    return train, test
