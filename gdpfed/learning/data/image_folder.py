"""The user's own pictures, one folder a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset, Pictures
from gdpfed.learning.data.source import DataSource

DEFAULT_CHANNELS = 3
DEFAULT_TEST_FRACTION = 0.2
MODES = {1: "L", 3: "RGB"}
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow reads no others here, whatever a file is named: some of them are programs."""
MOST_PIXELS = 2**26
"""Of one picture; its header says how many it has."""


@dataclass(frozen=True)
class _Listing:
    """The picture files below one folder and their classes, in an order that every node finds."""

    classes: list[str]
    paths: list[str]
    y: npt.NDArray[np.int64]


def load(source: DataSource) -> Dataset:
    """Pictures in ``train/CLASS/*`` and ``test/CLASS/*``, or in ``CLASS/*`` alone.

    With class folders alone, ``test_fraction`` of every class, the same in every run, is the test split.
    With ``image_size`` pictures are resized to a square of that edge, whatever shape they had.

    Raises LearningError: no such folder, none or other classes, a file that is no picture, or pictures of
    several sizes without ``image_size``.
    """
    source.allow("path", "image_size", "channels", "test_fraction")
    root = Path(source.path or "").expanduser()
    if source.path is None or not root.is_dir():
        raise LearningError(
            f"dataset.path={source.path} is no directory: name the one with the class folders"
        )
    if (root / "train").is_dir() or (root / "test").is_dir():
        return _load_two_splits(root, source)
    return _load_one_level(root, source)


def _load_two_splits(root: Path, source: DataSource) -> Dataset:
    if source.test_fraction is not None:
        raise LearningError(
            f"dataset.test_fraction={source.test_fraction}: {root} has a test split, leave it out"
        )
    train, test = _list(root / "train"), _list(root / "test")
    if train.classes != test.classes:
        other = sorted(set(train.classes) ^ set(test.classes))
        raise LearningError(
            f"{root}: train and test have different classes, {other[0]} is in one of them only"
        )
    pixels = _decode([*train.paths, *test.paths], source)
    edge = len(train.paths)
    return Dataset(Pictures(pixels[:edge], train.y), Pictures(pixels[edge:], test.y), len(train.classes))


def _load_one_level(root: Path, source: DataSource) -> Dataset:
    from sklearn.model_selection import train_test_split

    everything = _list(root)
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
    )


def _list(folder: Path) -> _Listing:
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(folder))
    except OSError as error:
        reason = " ".join(str(error).split())
        raise LearningError(f"{folder} must hold one folder of pictures for each class: {reason}") from None
    if len(found.classes) < 2:
        raise LearningError(
            f"{folder} holds one class, {found.classes[0]}, and with one class there is nothing to learn: it "
            "must hold one folder of pictures for each class"
        )
    paths = [path for path, _ in found.samples]
    return _Listing(found.classes, paths, np.asarray(found.targets, dtype=np.int64))


def _decode(paths: Sequence[str], source: DataSource) -> npt.NDArray[np.uint8]:
    """All pictures as one array of shape (N, channels, height, width)."""
    mode = MODES[source.channels or DEFAULT_CHANNELS]
    first = _decode_one(paths[0], mode, source.image_size)
    pixels = np.empty((len(paths), *first.shape), dtype=np.uint8)
    # One after the other: small pictures spend their time in Python, where threads only wait for each other.
    for index, path in enumerate(paths):
        picture = _decode_one(path, mode, source.image_size)
        if picture.shape != first.shape:
            raise LearningError(
                f"{paths[0]} has {_size(first)} pixels and {path} {_size(picture)}: make them one size "
                f"with dataset.image_size={first.shape[1]}"
            )
        pixels[index] = picture
    return pixels


def _decode_one(path: str, mode: str, image_size: int | None) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(path, formats=FORMATS) as file:
            if file.width * file.height > MOST_PIXELS:
                raise LearningError(
                    f"{path} has {file.width} x {file.height} pixels, more than {MOST_PIXELS}: scale it down"
                )
            stored_mode, picture = file.mode, file.convert(mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise LearningError(f"{path} cannot be read as a picture: {' '.join(str(error).split())}") from None
    if stored_mode.startswith(("I", "F")):
        # Pillow cuts such values off at 255, which turns most of the picture white.
        raise LearningError(f"{path} has more than 8 bits a pixel (mode {stored_mode}): scale it to 8 bits")
    if image_size is not None and picture.size != (image_size, image_size):
        picture = picture.resize((image_size, image_size), Image.Resampling.BILINEAR)
    values = np.asarray(picture, dtype=np.uint8)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)


def _size(picture: npt.NDArray[np.uint8]) -> str:
    return f"{picture.shape[2]}x{picture.shape[1]}"
