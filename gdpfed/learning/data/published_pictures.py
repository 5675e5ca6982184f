"""Published picture data sets: digits, Fashion-MNIST, SVHN, CIFAR-10; missing files are downloaded."""

import os
import socket
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from http.client import HTTPException
from pathlib import Path

import numpy as np
from filelock import FileLock

from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.data.dataset import Dataset, Pictures, Split
from gdpfed.learning.data.source import DataSource

DEFAULT_ROOT = "data"
LOCK_FILE = ".download.lock"
TIMEOUT_SECONDS = 30.0
NOT_READ = (
    *(OSError, RuntimeError, ValueError, AssertionError, LookupError, EOFError),
    *(HTTPException, tarfile.TarError, zlib.error),
)
"""What torchvision raises where a file is missing, damaged or cannot be downloaded."""

Read = Callable[[Path, bool], tuple[Pictures, Pictures]]


def read_or_download(source: DataSource, files: Sequence[str], read: Read, *, num_classes: int) -> Dataset:
    """Read a data set from the folder ``dataset.path`` (by default ``data/``); download missing files.

    torchvision compares what it downloads with the publisher's MD5 sums, so that half a file is
    downloaded again and not taken for a whole one. Processes that start together download one by one.

    `files`: what is read, relative to the root. `read`: (root, whether it may download) to the training and
    the test pictures; fails where a file is missing or damaged.

    Raises LearningError: files are missing and cannot be downloaded, or are damaged; a setting other than the
    path is given.
    """
    source.allow("path")
    root = Path(source.path or DEFAULT_ROOT).expanduser().absolute()
    parts: tuple[Pictures, Pictures] | None = None
    with suppress(*NOT_READ):
        parts = read(root, False)
    if parts is not None:
        return Dataset(*parts, num_classes)

    was_there = root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / LOCK_FILE), _silence():
            parts = read(root, True)
    except NOT_READ as error:
        # The lock file and the empty folders go that the download has left.
        (root / LOCK_FILE).unlink(missing_ok=True)
        made = {folder for name in files for folder in (root / name).parents if folder.is_relative_to(root)}
        for folder in sorted(made - ({root} if was_there else set()), reverse=True):
            with suppress(OSError):
                folder.rmdir()

        reason = kind_and_words(error)
        missing = [name for name in files if not (root / name).is_file()]
        if missing:
            raise LearningError(
                f"data set '{source.name}' lacks {root / missing[0]}{_and_more(missing[1:])}, and "
                f"downloading failed ({reason}): put the files there, or name the directory that has them "
                "with dataset.path"
            ) from None
        raise LearningError(
            f"data set '{source.name}' has a damaged file among {root / files[0]}{_and_more(files[1:])} "
            f"({reason}): delete it to have it made or downloaded again"
        ) from None
    return Dataset(*parts, num_classes)


def _and_more(files: Sequence[str]) -> str:
    names = ", ".join(Path(name).name for name in files)
    return f" ({names} likewise)" if names else ""


@contextmanager
def _silence() -> Iterator[None]:
    """In a ``with`` block, hide progress bars and limit the wait for the network."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        socket.setdefaulttimeout(timeout)


FMNIST_FILES = tuple(
    f"FashionMNIST/raw/{part}-{kind}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
CIFAR10_FILES = tuple(f"cifar-10-batches-py/{name}" for name in CIFAR10_BATCHES)


def digits(source: DataSource) -> Dataset:
    """scikit-learn's bundled handwritten digits: 1,797 grey pictures of 8x8 pixels in ten classes.

    A fifth, the same in every run, is the test split. Pixels 0 to 16 become [0, 1].
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source.allow()
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(Split(x_train, y_train), Split(x_test, y_test), num_classes=10)


def fmnist(source: DataSource) -> Dataset:
    """Fashion-MNIST: 70,000 grey pictures of clothes, 28x28 pixels in ten classes (Xiao et al., 2017).

    60,000 training and 10,000 test pictures; the files may also lie there as ``.gz``.

    Raises LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, FMNIST_FILES, _read_fmnist, num_classes=10)


def _read_fmnist(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import FashionMNIST

    parts = [FashionMNIST(root, train=train, download=download) for train in (True, False)]
    train, test = (Pictures(part.data.numpy()[:, None], part.targets.numpy()) for part in parts)
    return train, test


def svhn(source: DataSource) -> Dataset:
    """Street View House Numbers: 99,289 colour pictures of digits, 32x32 pixels (Netzer et al., 2011).

    73,257 training and 26,032 test pictures; class 0 is the digit 0.

    Raises LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, SVHN_FILES, _read_svhn, num_classes=10)


def _read_svhn(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import SVHN

    parts = [SVHN(root, split=split, download=download) for split in ("train", "test")]
    train, test = (Pictures(np.ascontiguousarray(part.data), part.labels) for part in parts)
    return train, test


def cifar10(source: DataSource) -> Dataset:
    """CIFAR-10: 60,000 colour pictures of things and animals, 32x32 pixels in ten classes (Krizhevsky, 2009).

    50,000 training and 10,000 test pictures; ``cifar-10-python.tar.gz`` may lie there instead.

    Raises LearningError: files are missing and cannot be downloaded, or are damaged.
    """
    return read_or_download(source, CIFAR10_FILES, _read_cifar10, num_classes=10)


def _read_cifar10(root: Path, download: bool) -> tuple[Pictures, Pictures]:
    from torchvision.datasets import CIFAR10

    parts = [CIFAR10(root, train=train, download=download) for train in (True, False)]
    train, test = (
        Pictures(
            np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)), np.asarray(part.targets, dtype=np.int64)
        )
        for part in parts
    )
    return train, test
