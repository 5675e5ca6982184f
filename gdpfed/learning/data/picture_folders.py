"""Lists the pictures of a folder that has a subfolder for each class, and counts files that are not read."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.file_form import PACKINGS
from gdpfed.learning.data.picture_files import ENDINGS

SYSTEM = ("__macosx", "@eadir", "thumbs.db", "desktop.ini")
"""What systems put beside data, besides all whose name begins with a dot."""
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")
MOST_NAMED = 5


@dataclass
class NotRead:
    """Counts files that are not read: hidden files, other file types, and pictures not in ``pictures.csv``.

    `known`: names of files that say how pictures are read. `endings`: of pictures. `pictures`: how many there
    are. `unlisted`: how many of these no table lists. `places`: the folders that were searched, by device and
    number.
    """

    files: Counter[str] = field(default_factory=Counter)
    system: list[str] = field(default_factory=list)
    known: tuple[str, ...] = ()
    endings: tuple[str, ...] = ENDINGS
    pictures: int = 0
    unlisted: int = 0
    places: dict[tuple[int, int], str] = field(default_factory=dict)

    def notes(self, folder: Path) -> list[str]:
        """Return notes on the files that are not read, one line each."""
        lines = []
        if self.files:
            count = self.files.total()
            lines.append(
                f"{folder}: {count} of {count + self.pictures} files are not read: "
                f"{counts_in_words(self.files)}; pictures end in "
                f"{', '.join(self.endings)} and lie in the folder of their class"
            )
        if self.unlisted:
            lines.append(f"{folder}: {self.unlisted} pictures are in no row of the table, and are not read")
        if self.system:
            names = listed(sorted(set(self.system)))
            lines.append(f"{folder}: {len(self.system)} hidden files and folders are passed over: {names}")
        return lines


@dataclass(frozen=True)
class Listing:
    """The picture files of a folder with their classes, in an order that is equal on all nodes.

    Attributes:
        classes: the names of the class folders, in the order of their numbers.
        paths, y: of every picture its file and the number of its class.
    """

    classes: tuple[str, ...]
    paths: list[str]
    y: npt.NDArray[np.int64]


def list_classes(folder: Path, others: NotRead, declared: tuple[str, ...] | None = None) -> Listing:
    """List the pictures of a folder by class, counting other files in `others`.

    `declared`: the classes, of which the folder need not have all; None for those that there are folders of.

    Raises LearningError: no class folders, one alone, one without pictures, or a tree that is read one level
    off.
    """
    wanted = f"{folder} must hold one folder of pictures for each class"
    if not folder.is_dir():
        raise LearningError(f"{wanted}: it is not a folder")
    shown = [name for name in _shown(_names_in(folder), others) if name not in others.known]
    classes = [name for name in shown if (folder / name).is_dir()]
    others.files.update(ending_of(name) for name in shown if not (folder / name).is_dir())
    if not classes:
        raise LearningError(f"{wanted}: it holds none")
    for name in classes:
        if not name.isprintable():
            raise LearningError(
                f"{folder}: the class folder {name!r} has characters that cannot be shown: rename it"
            )
    _refuse_one_level_off(folder, classes, others.endings)
    if declared is not None:
        return _list_declared(folder, classes, declared, others)
    if len(classes) < 2:
        raise LearningError(
            f"{folder} holds one class, {classes[0]}, and with one class there is nothing to learn: it must "
            "hold one folder of pictures for each class"
        )
    found = [list(pictures_below(folder / name, others)) for name in classes]
    for name, pictures in zip(classes, found, strict=True):
        if not pictures:
            raise LearningError(f"{wanted}: {name} holds no picture ({', '.join(ENDINGS)})")
    numbers = np.repeat(np.arange(len(classes)), [len(pictures) for pictures in found])
    return Listing(
        tuple(classes), [path for pictures in found for path in pictures], numbers.astype(np.int64)
    )


def _list_declared(folder: Path, there: Sequence[str], declared: tuple[str, ...], others: NotRead) -> Listing:
    """List the pictures of the declared classes.

    Raises LearningError: a folder of no class, or no picture at all.
    """
    for name in there:
        if name not in declared:
            near = get_close_matches(name, declared, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            raise LearningError(
                f"{folder / name}: '{name}' is not one of the classes {listed(declared)}{hint}: rename it, "
                "or declare the class"
            )
    found = [list(pictures_below(folder / name, others)) if name in there else [] for name in declared]
    numbers = np.repeat(np.arange(len(declared)), [len(pictures) for pictures in found])
    if not len(numbers):
        raise LearningError(f"{folder} holds no picture ({', '.join(others.endings)}): put pictures into it")
    return Listing(declared, [path for each in found for path in each], numbers.astype(np.int64))


def splits_in(root: Path) -> bool:
    """Whether a folder holds a training and a test folder rather than class folders.

    Raises LearningError: it holds some under other names.
    """
    names = [each.name for each in sorted(root.iterdir()) if each.is_dir()]
    if "train" in names or "test" in names:
        return True
    alike = [name for name in names if name.lower() in SPLITS]
    if len(alike) > 1:
        raise LearningError(
            f"{root} holds {listed(alike)}: call them train and test, if they are the splits and not classes"
        )
    return False


def beside_splits(root: Path, known: Sequence[str] = ()) -> Iterator[str]:
    """Yield notes on files and folders that are not read because they lie beside ``train`` and ``test``."""
    others = NotRead()
    for name in _shown(_names_in(root), others):
        if name in ("train", "test", *known):
            continue
        if not (root / name).is_dir():
            others.files[ending_of(name)] += 1
            continue
        pictures = sum(1 for _ in pictures_below(root / name, NotRead()))
        yield f"{root}: {name}/ beside train/ and test/ is not read: {pictures} pictures"
    yield from others.notes(root)


def counts_in_words(endings: Counter[str]) -> str:
    """Write numbers of files by ending, as in ".csv 3, .txt 1"."""
    return ", ".join(f"{ending} {count}" for ending, count in sorted(endings.items()))


def ending_of(name: str) -> str:
    """Return the ending of a file name; for a compressed file return both endings, as in ``.nii.gz``."""
    path = Path(name.lower())
    packing = path.suffix if path.suffix in PACKINGS else ""
    return f"{Path(name.lower().removesuffix(packing)).suffix}{packing}" or "without an ending"


def listed(names: Sequence[str]) -> str:
    """Join at most `MOST_NAMED` of these names for a message, and add how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def pictures_below(folder: Path, others: NotRead) -> Iterator[str]:
    """Yield the paths of all pictures in a folder and its subfolders, sorted by folder and name.

    Raises LearningError: a folder that was searched before, to which a link leads.
    """
    walked = []
    for place, below, names in os.walk(folder, followlinks=True):
        found = Path(place).stat()
        if (before := others.places.setdefault((found.st_dev, found.st_ino), place)) != place:
            raise LearningError(
                f"{place} and {before} are one folder, to which a link leads, and each picture may count "
                "once only: take the link out"
            )
        below[:] = _shown(sorted(below), others)
        walked.append((place, names))
    for place, names in sorted(walked):
        for name in _shown(sorted(names), others):
            if name in others.known:
                continue
            if name.lower().endswith(others.endings):
                others.pictures += 1
                yield str(Path(place, name))
            else:
                others.files[ending_of(name)] += 1


def _names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def _shown(names: Sequence[str], others: NotRead) -> list[str]:
    """Return the names without hidden files and without files of operating systems, such as Thumbs.db."""
    shown = [name for name in names if not name.startswith(".") and name.lower() not in SYSTEM]
    others.system += [name for name in names if name not in shown]
    return shown


def _refuse_one_level_off(folder: Path, classes: Sequence[str], endings: tuple[str, ...]) -> None:
    """Raise LearningError if ``folder`` is one level too high: its subfolders hold the class folders."""
    below = []
    for name in classes:
        shown = _shown(_names_in(folder / name), NotRead())
        if any(each.lower().endswith(endings) for each in shown):
            return
        below.append([each for each in shown if (folder / name / each).is_dir()])
    counts = Counter(name for each in below for name in each)
    common = sum(count for count in counts.values() if 2 * count > len(classes))
    # Folders of patients in those of classes have names of their own.
    if len(counts) < 2 or 2 * common < counts.total():
        return
    most = max(range(len(classes)), key=lambda at: len(below[at]))
    first, inner = classes[most], listed(below[most])
    if len(classes) == 1:
        raise LearningError(
            f"{folder / first} holds no pictures but the folders {inner}: if these are the classes, set "
            f"dataset.path={folder / first}"
        )
    others = listed([name for name in classes if name != first])
    alike = f"as {others} does" if len(set(map(tuple, below))) == 1 else f"and {others} some of them"
    raise LearningError(
        f"{folder}: {first} holds no pictures but the folders {inner}, {alike}: are these the classes, and "
        f"{listed(classes)} the parties? Put all pictures of a class into its folder"
    )
