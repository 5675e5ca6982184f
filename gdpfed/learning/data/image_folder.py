"""Loads a user's pictures, which are in one folder for each class or listed in a table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.picture_files import ENDINGS, read_picture
from gdpfed.learning.data.picture_folders import NotRead, beside_splits, list_classes, splits_in
from gdpfed.learning.data.picture_form import PICTURES_FILE, PictureForm, read_picture_form, refuse_other
from gdpfed.learning.data.picture_tables import TABLE, ListedPictures, listed_pictures
from gdpfed.learning.data.scan_files import SCANS, read_scan
from gdpfed.learning.data.source import DataSource

DEFAULT_CHANNELS = 3
DEFAULT_TEST_FRACTION = 0.2
KNOWN = (PICTURES_FILE, TABLE)


def load(source: DataSource) -> Dataset:
    """Load pictures from ``train/CLASS/*`` and ``test/CLASS/*``, ``CLASS/*``, or the list ``pictures.csv``.

    Without a test split, ``test_fraction`` of every class, the same in every run, is held out. What
    ``pictures.yaml`` in the folder declares is the same at all parties; a folder with that file alone is a
    data set without examples, of which the nodes bring all. With ``image_size`` pictures are resized to a
    square of that edge, whatever shape they had.

    Raises LearningError: no such folder, none or other classes, a tree that is read one level off, a file
    that is not a picture, or pictures of several sizes without ``image_size``.
    """
    source.allow("path", "image_size", "channels", "test_fraction")
    root = Path(source.path or "").expanduser()
    if source.path is None or not root.is_dir():
        fault = " is not set" if source.path is None else f"={source.path} is not a directory"
        raise LearningError(f"dataset.path{fault}: name the one with the class folders")
    declared = None
    if (root / PICTURES_FILE).is_file():
        declared = read_picture_form(root)
        refuse_other(declared, root, source.image_size, source.channels)
        if [each.name for each in root.iterdir()] == [PICTURES_FILE]:
            # A server has no pictures, and the nodes bring all.
            edge, classes = declared.image_size or 1, declared.classes
            pixels = np.zeros((0, declared.channels, edge, edge), dtype=np.uint8)
            nothing = declared.pictures(pixels, np.zeros(0, dtype=np.int64))
            digest = declared.digest
            return Dataset(nothing, nothing, len(classes), class_names=classes, picture_form=digest)
    if splits_in(root):
        return _load_two_splits(root, source, declared)
    return _load_one_level(root, source, declared)


def own_pictures(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Return inputs and labels of the pictures in a node's folder, read as its ``pictures.yaml`` declares.

    Raises LearningError: as in :func:`load`, or no declaration.
    """
    form = read_picture_form(path)
    found = _listed(path, form.classes, _nothing(form))
    pictures = form.pictures(_decode(found.listing.paths, form), found.listing.y)
    every = pictures.take(np.arange(len(pictures)))
    return every.x, every.y


def own_not_read(path: Path) -> list[str]:
    """List the files in a node's own folder of pictures that are not read, one line each.

    Raises LearningError: as in :func:`own_pictures`.
    """
    form = read_picture_form(path)
    others = _nothing(form)
    _listed(path, form.classes, others)
    return others.notes(path)


def _nothing(form: PictureForm | None) -> NotRead:
    """Return a new, empty counter of the files in a folder that are not read."""
    scans = form is not None and form.window is not None
    return NotRead(known=KNOWN, endings=(*ENDINGS, *SCANS) if scans else ENDINGS)


def _read(path: str, form: PictureForm) -> npt.NDArray[np.uint8]:
    if path.lower().endswith(SCANS):
        return read_scan(path, form)
    if form.spacing is not None:
        raise LearningError(
            f"{path} has no spacing of its pixels, and {PICTURES_FILE} declares one: leave it out there"
        )
    shaped = form.shaped if form.transforms else None
    return read_picture(path, form.channels, form.image_size, form.window, shaped)


def _form(classes: tuple[str, ...], source: DataSource, declared: PictureForm | None) -> PictureForm:
    return declared or PictureForm(classes, source.image_size, source.channels or DEFAULT_CHANNELS)


def _listed(root: Path, classes: tuple[str, ...] | None, others: NotRead) -> ListedPictures:
    """List the pictures of a folder from its ``pictures.csv`` if it has one, else from its class folders."""
    if (root / TABLE).is_file():
        return listed_pictures(root, classes, others)
    return ListedPictures(list_classes(root, others, classes))


def _load_two_splits(root: Path, source: DataSource, declared: PictureForm | None) -> Dataset:
    if source.test_fraction is not None:
        raise LearningError(
            f"dataset.test_fraction={source.test_fraction}: {root} has a test split, leave it out"
        )
    if (root / TABLE).is_file():
        raise LearningError(f"{root} holds {TABLE}, and train/ and test/, too: leave one out")
    others, classes = _nothing(declared), None if declared is None else declared.classes
    train, test = (list_classes(root / part, others, classes) for part in ("train", "test"))
    if train.classes != test.classes:
        other = sorted(set(train.classes) ^ set(test.classes))
        raise LearningError(
            f"{root}: train and test have different classes, {other[0]} is in one of them only"
        )
    form = _form(train.classes, source, declared)
    pixels = _decode([*train.paths, *test.paths], form)
    edge = len(train.paths)
    return Dataset(
        form.pictures(pixels[:edge], train.y),
        form.pictures(pixels[edge:], test.y),
        len(train.classes),
        class_names=train.classes,
        notes=(*beside_splits(root, KNOWN), *others.notes(root)),
        picture_form=form.digest,
    )


def _load_one_level(root: Path, source: DataSource, declared: PictureForm | None) -> Dataset:
    others = _nothing(declared)
    found = _listed(root, None if declared is None else declared.classes, others)
    everything = found.listing
    # Imported here, since it takes long and a folder with both splits does without it.
    from sklearn.model_selection import train_test_split

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

    form = _form(everything.classes, source, declared)
    pixels = _decode(everything.paths, form)
    data = Dataset(
        form.pictures(pixels[train], everything.y[train]),
        form.pictures(pixels[test], everything.y[test]),
        num_classes=len(everything.classes),
        class_names=everything.classes,
        notes=tuple(others.notes(root)),
        picture_form=form.digest,
    )
    if found.owners is None:
        return data
    owners, test_owners = found.owners[train], found.owners[test]
    return replace(data, owners=owners, test_owners=test_owners, owner_names=found.parties)


def _decode(paths: Sequence[str], form: PictureForm) -> npt.NDArray[np.uint8]:
    """Read pictures into one array of shape (N, channels, height, width)."""
    first = _read(paths[0], form)
    pixels = np.empty((len(paths), *first.shape), dtype=np.uint8)
    # One after the other: small pictures spend their time in Python, where threads only wait for each other.
    for index, path in enumerate(paths):
        picture = _read(path, form)
        if picture.shape != first.shape:
            raise LearningError(
                f"{paths[0]} has {_size(first)} pixels and {path} {_size(picture)}: make them one size "
                f"with dataset.image_size={first.shape[1]}"
            )
        pixels[index] = picture
    return pixels


def _size(picture: npt.NDArray[np.uint8]) -> str:
    return f"{picture.shape[2]}x{picture.shape[1]}"
