"""The user's own pictures, one folder a class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.picture_files import read_picture
from gdpfed.learning.data.picture_folders import NotRead, beside_splits, list_classes, splits_in
from gdpfed.learning.data.source import DataSource

DEFAULT_CHANNELS = 3
DEFAULT_TEST_FRACTION = 0.2


def load(source: DataSource) -> Dataset:
    """Pictures in ``train/CLASS/*`` and ``test/CLASS/*``, or in ``CLASS/*`` alone.

    With class folders alone, ``test_fraction`` of every class, the same in every run, is the test split.
    With ``image_size`` pictures are resized to a square of that edge, whatever shape they had.

    Raises LearningError: no such folder, none or other classes, a tree that is read one level off, a file
    that is no picture, or pictures of several sizes without ``image_size``.
    """
    source.allow("path", "image_size", "channels", "test_fraction")
    root = Path(source.path or "").expanduser()
    if source.path is None or not root.is_dir():
        raise LearningError(
            f"dataset.path={source.path} is no directory: name the one with the class folders"
        )
    return _load_two_splits(root, source) if splits_in(root) else _load_one_level(root, source)


def _load_two_splits(root: Path, source: DataSource) -> Dataset:
    if source.test_fraction is not None:
        raise LearningError(
            f"dataset.test_fraction={source.test_fraction}: {root} has a test split, leave it out"
        )
    others = NotRead()
    train, test = list_classes(root / "train", others), list_classes(root / "test", others)
    if train.classes != test.classes:
        other = sorted(set(train.classes) ^ set(test.classes))
        raise LearningError(
            f"{root}: train and test have different classes, {other[0]} is in one of them only"
        )
    pixels = _decode([*train.paths, *test.paths], source)
    edge = len(train.paths)
    return Dataset(
        Pictures(pixels[:edge], train.y),
        Pictures(pixels[edge:], test.y),
        len(train.classes),
        class_names=train.classes,
        notes=(*beside_splits(root), *others.notes(root)),
    )


def _load_one_level(root: Path, source: DataSource) -> Dataset:
    from sklearn.model_selection import train_test_split

    others = NotRead()
    everything = list_classes(root, others)
    fraction = DEFAULT_TEST_FRACTION if source.test_fraction is None else source.test_fraction
    try:
        train, test = train_test_split(
            np.arange(len(everything.y)), test_size=fraction, random_state=0, stratify=everything.y
        )
    except ValueError as error:
        raise LearningError(
            f"{root} has too few pictures to hold out dataset.test_fraction={fraction} of every class "
            f"({error}): add pictures, or make train/ and test/ folders"
        ) from None
    pixels = _decode(everything.paths, source)
    return Dataset(
        Pictures(pixels[train], everything.y[train]),
        Pictures(pixels[test], everything.y[test]),
        num_classes=len(everything.classes),
        class_names=everything.classes,
        notes=tuple(others.notes(root)),
    )


def _decode(paths: Sequence[str], source: DataSource) -> npt.NDArray[np.uint8]:
    """All pictures as one array of shape (N, channels, height, width)."""
    channels = source.channels or DEFAULT_CHANNELS
    first = read_picture(paths[0], channels, source.image_size)
    pixels = np.empty((len(paths), *first.shape), dtype=np.uint8)
    # One after the other: small pictures spend their time in Python, where threads only wait for each other.
    for index, path in enumerate(paths):
        picture = read_picture(path, channels, source.image_size)
        if picture.shape != first.shape:
            raise LearningError(
                f"{paths[0]} has {_size(first)} pixels and {path} {_size(picture)}: make them one size "
                f"with dataset.image_size={first.shape[1]}"
            )
        pixels[index] = picture
    return pixels


def _size(picture: npt.NDArray[np.uint8]) -> str:
    return f"{picture.shape[2]}x{picture.shape[1]}"
