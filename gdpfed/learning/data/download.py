"""Files of torchvision's data sets: read where they are, downloaded where they are not."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from filelock import FileLock

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.source import DataSource

DEFAULT_ROOT = "data"
LOCK_FILE = ".download.lock"
TIMEOUT_SECONDS = 30.0

Read = Callable[[Path, bool], tuple[Pictures, Pictures]]


def read_or_download(source: DataSource, files: Sequence[str], read: Read, *, num_classes: int) -> Dataset:
    """Read a data set from ``dataset.path``, by default ``data/`` under the working directory.

    torchvision compares what it downloads with the publisher's MD5 sums, so that half a file is
    downloaded again and not taken for a whole one. Processes that start together download one by one.

    Args:
        files: what is read, relative to the root.
        read: (root, whether it may download) to the training and the test pictures; fails where a file is
            missing or damaged.

    Raises:
        LearningError: files are missing and cannot be downloaded, or are damaged; a setting other than the
            path is given.
    """
    source.allow("path")
    train, test = _read_or_download(source, files, read)
    return Dataset(train, test, num_classes)


def _read_or_download(source: DataSource, files: Sequence[str], read: Read) -> tuple[Pictures, Pictures]:
    root = Path(source.path or DEFAULT_ROOT).expanduser().absolute()
    # Of what torchvision raises for a file that is missing or damaged, hardly two kinds are the same.
    try:
        return read(root, False)
    except Exception:  # noqa: S110 - the second attempt tells
        pass
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / LOCK_FILE), _silence():
            return read(root, True)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise LearningError(_explain(source, root, files, reason)) from None


def _explain(source: DataSource, root: Path, files: Sequence[str], reason: str) -> str:
    missing = [name for name in files if not (root / name).is_file()]
    if missing:
        return (
            f"data set '{source.name}' lacks {root / missing[0]}{_and_more(missing[1:])}, and downloading "
            f"failed ({reason}): put the files there, or name the directory that has them with dataset.path"
        )
    return (
        f"data set '{source.name}' has a damaged file among {root / files[0]}{_and_more(files[1:])} "
        f"({reason}): delete it to have it made or downloaded again"
    )


def _and_more(files: Sequence[str]) -> str:
    names = ", ".join(Path(name).name for name in files)
    return f" ({names} likewise)" if names else ""


@contextmanager
def _silence() -> Iterator[None]:
    """No progress bars, and no waiting for ever where a firewall drops packets."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        socket.setdefaulttimeout(timeout)
