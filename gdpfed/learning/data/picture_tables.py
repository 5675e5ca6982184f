"""Pictures listed in ``pictures.csv``, with the columns path, label and, optionally, party (data owner)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import ALWAYS_MISSING
from gdpfed.learning.data.file_form import own_form
from gdpfed.learning.data.picture_folders import Listing, NotRead, pictures_below
from gdpfed.learning.data.table_file import TableForm, listed, open_table
from gdpfed.learning.data.text_cells import texts_of
from gdpfed.learning.data.yaml_parts import check_printable

TABLE = "pictures.csv"
PATH, LABEL, PARTY = "path", "label", "party"


@dataclass(frozen=True)
class ListedPictures:
    """The pictures that a table lists, with their data owners (parties) if the table names them.

    Attributes:
        listing: of the pictures, by class.
        parties: the names of the parties, in their alphabetical order; empty where no column says them.
        owners: of each picture the place of its party, shape (N,), int64; None without parties.
    """

    listing: Listing
    parties: tuple[str, ...] = ()
    owners: npt.NDArray[np.int64] | None = None


def listed_pictures(folder: Path, classes: tuple[str, ...] | None, others: NotRead) -> ListedPictures:
    """List the pictures that ``pictures.csv`` names, in its order; count all other pictures in `others`.

    `classes`: as declared; None for those that occur, in the order of their texts.

    Raises LearningError: a picture that is not there, is there twice or lies elsewhere, a label of no class,
    or a row without one; names the line.
    """
    place, rows = str(folder / TABLE), list(_listed_rows(folder))
    known = classes or tuple(sorted({label for _, _, label, _ in rows}))
    if len(known) < 2:
        raise LearningError(
            f"{place} has one class, {known[0]}, and with one class there is nothing to learn: add "
            "pictures of another class"
        )
    numbers, seen = {name: at for at, name in enumerate(known)}, dict[Path, int]()
    for line, path, label, _ in rows:
        if label not in numbers:
            raise LearningError(
                f"{place}: line {line} has the label '{label}', which is not one of {listed(known)}: "
                "correct it, or declare it"
            )
        if (before := seen.setdefault(path, line)) != line:
            raise LearningError(f"{place}: lines {before} and {line} name one picture, {path}: leave one out")
    rest = {Path(each) for each in pictures_below(folder, others)} - seen.keys()
    if rest:
        others.unlisted = len(rest)
    named = {name for _, _, _, name in rows}
    if named > {""}:
        line = next(line for line, _, _, name in rows if not name)
        raise LearningError(
            f"{place}: line {line} names no party, and others do: fill it in, or leave the row out"
        )
    parties = tuple(sorted(named - {""}))
    for name in (*known, *parties):
        check_printable(name, f"{place}: a name")
    listing = Listing(known, [str(path) for _, path, _, _ in rows], _places([row[2] for row in rows], known))
    return ListedPictures(listing, parties, _places([row[3] for row in rows], parties) if parties else None)


def _places(names: list[str], known: tuple[str, ...]) -> npt.NDArray[np.int64]:
    places = {name: at for at, name in enumerate(known)}
    return np.array([places[name] for name in names], dtype=np.int64)


def _listed_rows(folder: Path) -> Iterator[tuple[int, Path, str, str]]:
    """Yield each row's line number, picture, label, and data owner (or an empty text)."""
    file = folder / TABLE
    table = open_table(file, str(file), TableForm(own_form(file), wanted=(PATH, LABEL)))
    wanted = [PATH, LABEL, *([PARTY] if PARTY in table.names else [])]
    count = 0
    for batch in table.batches(wanted):
        texts = {
            name: texts_of(batch.cells[name], name, table.place, exact=False).texts.tolist()
            for name in wanted
        }
        parties = texts.get(PARTY, [""] * len(batch.lines))
        for line, path, label, party in zip(
            batch.lines.tolist(), texts[PATH], texts[LABEL], parties, strict=True
        ):
            if not path or label in ALWAYS_MISSING:
                raise LearningError(
                    f"{file}: line {line} lacks a {LABEL if path else PATH}: fill it in, or leave it out"
                )
            place, picture = f"{file}: line {line}", Path(path.replace("\\", "/"))
            if picture.is_absolute() or ".." in picture.parts:
                raise LearningError(
                    f"{place} names {path}, and pictures lie below {folder}: write paths from there"
                )
            if not (folder / picture).is_file():
                raise LearningError(f"{place} names {path}, which is not there: correct the path")
            yield line, folder / picture, label, party
            count += 1
    if not count:
        raise LearningError(f"{file} lists no pictures: write one line for each picture")
