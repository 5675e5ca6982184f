"""The files of a folder with a table a party: which are tables, and which name one party twice."""

from pathlib import Path

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import bare_name
from gdpfed.learning.data.declaration import COLUMNS_FILE
from gdpfed.learning.data.table_file import ENDINGS, is_table


def tables_in(path: Path) -> list[Path]:
    """A file itself, or the tables in a folder in the order of their names; hidden files are none.

    Raises LearningError: a folder without any, or with two that name one party.
    """
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if _is_table(file)]
    if not files:
        raise LearningError(f"{path} holds no file with the ending {' or '.join(ENDINGS)}: one a party")
    first: dict[str, Path] = {}
    for file in files:
        if (other := first.setdefault(bare_name(file.stem), file)) != file:
            raise LearningError(
                f"{path}: {other.name} and {file.name} name one party: leave one out, or name them otherwise"
            )
    return files


def not_read(path: Path) -> list[str]:
    """The names of what lies beside the tables of a folder and is not read, the declaration aside."""
    return [each.name for each in sorted(path.iterdir()) if each.name != COLUMNS_FILE and not _is_table(each)]


def has_tables(path: Path) -> bool:
    """Whether a folder holds a table."""
    return any(map(_is_table, path.iterdir()))


def _is_table(file: Path) -> bool:
    return is_table(file) and not file.name.startswith(".")
