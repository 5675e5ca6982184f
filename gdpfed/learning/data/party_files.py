"""Finds each data owner's (party's) table in a folder, and the files in it that are not read."""

from pathlib import Path

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import bare_name
from gdpfed.learning.data.declaration import COLUMNS_FILE, read_columns
from gdpfed.learning.data.file_form import (
    ENDINGS_IN_WORDS,
    FILES_FILE,
    HIDDEN,
    databases_in,
    is_table,
    table_name,
)


def tables_in(path: Path) -> list[Path]:
    """Return the table files in a folder, sorted by name, without hidden files; for a file return that file.

    Raises LearningError: a folder without any, or with two that name one party.
    """
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if _is_table(file)]
    if not files:
        raise LearningError(f"{path} has no file that ends in {ENDINGS_IN_WORDS}: add one for each party")
    first: dict[str, Path] = {}
    for file in files:
        if (other := first.setdefault(bare_name(table_name(file)), file)) != file:
            raise LearningError(
                f"{path}: {other.name} and {file.name} name the same party: remove or rename one"
            )
    return files


def not_read(path: Path) -> list[str]:
    """List the files in a folder that are neither a table, nor a query's database, nor a YAML description.

    Raises LearningError: what says it is damaged.
    """
    known = {COLUMNS_FILE, FILES_FILE, *databases_in(path)}
    return [each.name for each in sorted(path.iterdir()) if each.name not in known and not _is_table(each)]


def counted_parties(path: str | None, columns: str | None) -> int:
    """Count the data owners (parties) of a table or folder of tables; return 1 if there is no path.

    `path`, `columns`: as ``dataset.path`` and ``dataset.columns``. They are the values of ``party`` of the
    declaration, or the tables of the folder; no row is read.

    Raises LearningError: nobody says whose rows are, or the declaration is missing or damaged.
    """
    place = Path(path or "").expanduser()
    if path is None or not place.exists():
        return 1
    beside = (place if place.is_dir() else place.parent) / COLUMNS_FILE
    file = Path(columns).expanduser() if columns else beside
    if (columns or file.is_file()) and (party := read_columns(file).party) is not None:
        return len(party.values)
    if place.is_dir() and has_tables(place):
        return len(tables_in(place))
    raise LearningError(
        f"{place} does not say which party has which rows: declare party in {COLUMNS_FILE}, or name a folder "
        "with a file for each party; to divide rows that belong to no party, set dataset.partition=iid and "
        "dataset.num_clients=4"
    )


def has_tables(path: Path) -> bool:
    """Whether a folder holds a table."""
    return any(map(_is_table, path.iterdir()))


def _is_table(file: Path) -> bool:
    return is_table(file) and not file.name.startswith(HIDDEN)
