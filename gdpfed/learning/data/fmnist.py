"""Fashion-MNIST: 70,000 grey pictures of clothes, 28x28 pixels in ten classes (Xiao et al., 2017)."""

from pathlib import Path

from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.download import read_or_download
from gdpfed.learning.data.source import DataSource

FILES = tuple(
    f"FashionMNIST/raw/{part}-{kind}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


def load(source: DataSource) -> Dataset:
    """60,000 training and 10,000 test pictures; the files may also lie there as ``.gz``.

    Raises:
        LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, FILES, _read, num_classes=10)


def _read(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import FashionMNIST

    parts = [FashionMNIST(root, train=train, download=download) for train in (True, False)]
    train, test = (Pictures(part.data.numpy()[:, None], part.targets.numpy()) for part in parts)
    return train, test
