"""Runs a data owner's SQL query on a database, and reads the answer as if it were a table file.

The text of the query is a file ``NAME.sql``, and ``files.yaml`` beside it names the database. The declaration
names columns and types, which are the same at all parties, so the query is the site's own way of writing.

A database may give rows in any order. What is held out, how a run that goes on knows its data, and the
numbers of rows in errors follow from that order. So rows are put in the order of the query's first column,
which must tell them apart: it names a row, and no other value of a row moves it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import
from gdpfed.learning.data.databases import Limits, database_of, quoted_name, readable
from gdpfed.learning.data.file_form import Found
from gdpfed.learning.data.object_cells import column_of, key_column, plain_column
from gdpfed.learning.data.table_file import Batch, TableFile, TableForm, Uneven, check_width

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute
else:
    pa, compute = late_import("pyarrow"), late_import("pyarrow.compute")

MOST_BYTES = 2**20
NOT_SQL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts, quoted names and comments."""
BEGINS = re.compile(r"(select|with)\b", re.IGNORECASE)
CHANGING = re.compile(
    r"\b(?:current_(?:date|time|timestamp)|localtime(?:stamp)?|tablesample|using\s+sample"
    r"|(?:random|randomblob|setseed|gen_random_uuid|uuid\w*|now|today|get_current_time(?:stamp)?"
    r"|(?:clock|statement|transaction)_timestamp|nextval)(?=\s*\())\b|'now'",
    re.IGNORECASE,
)
"""What is another at every reading."""
OTHER_ROWS = re.compile(r"\bover\b", re.IGNORECASE)
OVER_NOTE = (
    "the query looks at other rows (OVER): what goes into a row must be about its own person alone, else one "
    "person moves the rows of others"
)


def open_query(path: Path, place: str, form: TableForm) -> TableFile:
    """Open the answer to a query as a table, and read its column names.

    Raises:
        LearningError: no query, another statement, or a database that does not answer it.
        InputError: a package that the database needs is not installed.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LearningError(f"{place} has more than {MOST_BYTES:,} bytes: a query is shorter")
        query = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LearningError(f"{place} cannot be read as a query: {words_of(error)}") from None
    query = re.sub(r"[;\s]+$", "", query)
    bare = NOT_SQL.sub(" ", query).strip()
    if not BEGINS.match(bare) or ";" in bare:
        shown = (
            "several statements" if BEGINS.match(bare) else f"'{bare.split()[0][:20]}'" if bare else "empty"
        )
        raise LearningError(
            f"{place} is {shown}: a query is one SELECT (WITH ... SELECT), which changes nothing"
        )
    quoted = NOT_SQL.sub(lambda part: part[0] if part[0].lower() == "'now'" else " ", query)
    if changing := CHANGING.search(quoted):
        raise LearningError(
            f"{place} asks for {changing[0]}, which changes with every reading: a run that goes on would "
            "find other data: name a day, or leave it out"
        )

    database, own = database_of(form.own, path.parent, place), form.own
    limits = Limits(own.seconds, own.mebibytes)
    none = _wrapped("*", query, "LIMIT 0")
    with readable(place, limits), database.ask(none, limits, lambda *_: pa.nulls(0)) as answer:
        names = answer.names
    check_width(place, len(names))
    found = Found(head=[f"its rows are what {database.kind} answers, in the order of '{names[0]}'"])
    if OTHER_ROWS.search(bare):
        found.head.append(OVER_NOTE)

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        chosen = [names[at] for at in (0, *wanted)]
        ordered = _wrapped(", ".join(map(quoted_name, chosen)), query, database.order)
        keys, count, make = _Keys(place, names[0]), 0, partial(_column, chosen, form, place)
        with readable(place, limits), database.ask(ordered, limits, make) as answer:
            for columns in answer.parts:
                keys.check(columns[0], count)
                numbers = np.arange(count + 1, count + len(columns[0]) + 1)
                cells = {
                    name: each if name in form.numbers else plain_column(each, name, place)
                    for name, each in zip(chosen[1:], columns[1:], strict=True)
                }
                yield Batch(cells, numbers, numbers)
                count += len(numbers)

    return TableFile(place, names, own, found, read, of_lines=False)


def _column(names: Sequence[str], form: TableForm, place: str, at: int, values: Sequence[Any]) -> "pa.Array":
    """Make the Arrow column at a place of the answer, of which the first tells rows apart."""
    return column_of(values, names[at], form, place) if at else key_column(values, names[at], place)


def _wrapped(chosen: str, query: str, end: str) -> str:
    """Wrap a data owner's query in an outer SELECT of the columns ``chosen``; append the clause ``end``."""
    # It is the site's own text, on a database that is open for reading alone.
    return f"SELECT {chosen} FROM (\n{query}\n) AS asked {end}"  # noqa: S608


class _Keys:
    """A check, batch by batch, that a query's first column has neither missing nor repeated values."""

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name
        self.last: object = None

    def check(self, keys: "pa.Array", before: int) -> None:
        """Raise LearningError if a value in the first column of the next rows is missing or repeated.

        `before`: how many rows have been checked already.
        """
        if compute.any(compute.is_null(keys, nan_is_null=True)).as_py():
            self._refuse("is empty in a row")
        try:
            same = compute.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        except pa.ArrowNotImplementedError:
            self._refuse(f"holds {keys.type}, which cannot be compared")
        if before and keys[0].as_py() == self.last:
            self._refuse(f"is the same in rows {before} and {before + 1}")
        if len(at := np.flatnonzero(same)):
            self._refuse(f"is the same in rows {before + at[0] + 1} and {before + at[0] + 2}")
        self.last = keys[-1].as_py()

    def _refuse(self, fault: str) -> NoReturn:
        raise LearningError(
            f"{self.place}: the first column, '{self.name}', {fault}: rows are put in its order, so begin "
            "the query with what tells them apart, such as the number of a visit"
        )
