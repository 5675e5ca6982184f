"""Runs read-only queries on databases: SQLite, DuckDB and PostgreSQL.

Each is opened for reading alone, and the query sees what lies in it and no other file. A query that takes too
long is stopped. SQLite needs no package, the two others need the extra ``query``.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from gdpfed.errors import InputError, LearningError, words_of
from gdpfed.late_import import late_import, packages_needed
from gdpfed.learning.data.file_form import (
    FILES_FILE,
    SEPARATORS,
    TEXT_ENDINGS,
    FileForm,
    Found,
    is_table,
    kind_of,
    table_name,
)
from gdpfed.learning.data.text_files import encoded_blocks

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = late_import("pyarrow")
duckdb, psycopg = late_import("duckdb"), late_import("psycopg")

ROWS = 2**13
"""That are taken at once."""
AN_ADDRESS = "write postgresql://USER@HOST:PORT/DATABASE"
POSTGRES = ("postgresql://", "postgres://")
SQLITE_HEAD = b"SQLite format 3\0"
DUCKDB_HEAD, DUCKDB_HEAD_AT = b"DUCK", 8
HEAD_BYTES = 64
CONNECT_SECONDS = 20
MOST_BYTES_A_VALUE = 2**24
KEPT_SHUT = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": 1,
}
"""DuckDB brings nothing from elsewhere and writes nothing. One thread, since several add up in any order."""


CSV_FORM = (
    "header = true, all_varchar = true, delim = '{}', quote = '\"', escape = '\"', comment = '', skip = 0, "
    "null_padding = false, ignore_errors = false, strict_mode = true"
)
"""How DuckDB reads a CSV file, with its separator; of itself it takes these from the rows."""
CSV_FAULT = re.compile(r"sniffing file|CSV Error on Line: (?P<line>[0-9]+)|CSV Parser")
CSV_FILE = re.compile(r"(?:file \"|^  file = )(.+?)(?:\"\.)?$", re.MULTILINE)
RAISE = {"sqlite3", "duckdb", "_duckdb", "psycopg", "pyarrow"}


@dataclass
class Limits:
    """The limits of a query: how many seconds it may take, and how much memory the process may have.

    `over`: whether the time was up.
    """

    seconds: float
    mebibytes: int
    ends: float = field(init=False, default=float("inf"))

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call ``stop`` after the query's time limit, unless the ``with`` block has ended by then."""
        self.ends = time.monotonic() + self.seconds
        timer = Timer(self.seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True)
class Answer:
    """A database's answer to a query: the column names, and the rows in parts, each as Arrow columns."""

    names: list[str]
    parts: Iterator[Sequence["pa.Array"]]


MakeColumn = Callable[[int, Sequence[Any]], "pa.Array"]
"""From a column's place in the answer and some of its values to an Arrow column."""


@dataclass(frozen=True)
class Database:
    """A kind of database: its name, and the function that runs a query.

    Attributes:
        kind: what it is called.
        order: what puts an answer in the order of its first column, each value in one place.
        ask: from a query, limits and what makes columns of values to its answer, which is taken in a ``with``
            block.
    """

    kind: str
    order: str
    ask: Callable[[str, Limits, MakeColumn], AbstractContextManager[Answer]]


def database_of(own: FileForm, folder: Path, place: str) -> Database:
    """Return the database that ``files.yaml`` names for the query in this folder.

    Raises LearningError: none is named, none is there, or it is of another kind.
    """
    said = own.database
    if said is None:
        raise LearningError(
            f"{place} is a query without a database: name one as database in {FILES_FILE} beside it, a file "
            "of SQLite or DuckDB, a folder of Parquet and CSV files, or postgresql://..."
        )
    if said.startswith(POSTGRES):
        return Database("PostgreSQL", "ORDER BY 1", partial(_of_postgres, said, place))
    path = folder / Path(said).expanduser()
    if path.is_dir():
        return Database("DuckDB", "ORDER BY 1", partial(_of_duckdb, path, place))
    if not path.is_file():
        raise LearningError(f"{place}: the database {path} is not there: name another in {FILES_FILE}")
    with path.open("rb") as file:
        begins = file.read(HEAD_BYTES)
    if begins.startswith(SQLITE_HEAD):
        # A column may compare texts by rules of its own, under which two are one.
        return Database("SQLite", "ORDER BY 1 COLLATE BINARY", partial(_of_sqlite, path, place))
    if begins.startswith(DUCKDB_HEAD, DUCKDB_HEAD_AT):
        return Database("DuckDB", "ORDER BY 1", partial(_of_duckdb, path, place))
    raise LearningError(
        f"{place}: {path} is not a file of SQLite or DuckDB; Parquet and CSV files are named by their folder"
    )


@contextmanager
def readable(place: str, limits: Limits) -> Iterator[None]:
    """Replace a database error raised in the ``with`` block by a LearningError with one line of text.

    Raises:
        LearningError: names the place, and the limit where one was reached.
        InputError: a package that the database needs is not installed.
    """
    try:
        with packages_needed():
            yield
    except Exception as error:
        # By the names of its classes' modules, since the database's package need not be imported.
        modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        of_database = isinstance(error, MemoryError | OSError) or bool(modules & RAISE)
        if isinstance(error, InputError) or not of_database:
            raise
        if limits.over:
            fault = (
                f"took more than {limits.seconds} seconds: ask for less, or set more seconds in {FILES_FILE}"
            )
        elif isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            fault = (
                f"needs more than {limits.mebibytes} MiB of memory: ask for less, or set more mebibytes in "
                f"{FILES_FILE}"
            )
        else:
            fault = _csv_fault(str(error)) or f"cannot be answered: {words_of(error, 300)}"
        raise LearningError(f"{place} {fault}") from None


def _csv_fault(said: str) -> str | None:
    """Return where a CSV file cannot be read, and what its owner does about it; None for another error."""
    fault = CSV_FAULT.search(said)
    if fault is None:
        return None
    file = CSV_FILE.search(said)
    where = (f" {Path(file[1]).name}" if file else "") + (f", line {fault['line']}," if fault["line"] else "")
    remedy = "save it as UTF-8"
    if "Invalid unicode" not in said:
        remedy += (
            ", with the names in its first line, that line's separator and number of values in all lines, "
            "and quotes in texts doubled"
        )
    return f"asks for the CSV file{where} which cannot be read: {remedy}"


def _timed(parts: Iterator[Sequence["pa.Array"]], limits: Limits) -> Iterator[Sequence["pa.Array"]]:
    """Yield the parts of an answer; raise TimeoutError once the query's time is over."""
    for part in parts:
        if limits.over:
            raise TimeoutError
        yield part


def _permission(action: int, *_: str | None) -> int:
    """Allow SQLite to read by SELECT (recursion included) and to call functions; deny all other actions."""
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


@contextmanager
def _of_sqlite(file: Path, place: str, query: str, limits: Limits, make: MakeColumn) -> Iterator[Answer]:
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    with closing(connection), limits.stopping(connection.interrupt):
        connection.execute(f"PRAGMA cache_size=-{1024 * limits.mebibytes}")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES_A_VALUE)
        connection.set_authorizer(_permission)
        cursor = connection.execute(query)
        names = [str(each[0]) for each in cursor.description]
        yield Answer(names, _timed(_columns_of(cursor, make), limits))


@contextmanager
def _of_duckdb(source: Path, place: str, query: str, limits: Limits, make: MakeColumn) -> Iterator[Answer]:
    config = {**KEPT_SHUT, "memory_limit": f"{limits.mebibytes}MiB"}
    # By the name of a table, the call that reads its file, and the file's quoted path.
    views: dict[str, tuple[str, str]] = {}
    if source.is_dir():
        for file in sorted(source.iterdir()):
            kind = kind_of(file)
            if not is_table(file) or kind not in (*TEXT_ENDINGS, ".parquet"):
                continue
            if (name := table_name(file)) in views:
                raise LearningError(f"{place}: {source} has two files of the table {name}: leave one out")
            quoted = "'" + str(file.resolve()).replace("'", "''") + "'"
            if kind == ".parquet":
                views[name] = f"read_parquet({quoted})", quoted
            else:
                views[name] = f"read_csv({quoted}, {CSV_FORM.format(_separator(file))})", quoted
        if not views:
            raise LearningError(f"{place}: {source} holds no Parquet and no CSV file for the query to read")

    opened = ":memory:" if source.is_dir() else str(source)
    connection = duckdb.connect(opened, read_only=not source.is_dir(), config=config)
    with closing(connection), limits.stopping(connection.interrupt):
        for name, (read, _) in views.items():
            connection.execute(f"CREATE VIEW {quoted_name(name)} AS FROM {read}")
        paths = ", ".join(path for _, path in views.values())
        connection.execute(f"SET allowed_paths=[{paths}]")
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        kinds = [each.type.name for each in connection.extract_statements(query)]
        if kinds != ["SELECT"]:
            raise LearningError(f"{place} must be one SELECT: DuckDB reads it as {', '.join(kinds)}")
        reader = connection.sql(query).to_arrow_reader(ROWS)
        yield Answer(list(reader.schema.names), _timed((batch.columns for batch in reader), limits))


def _separator(file: Path) -> str:
    """Return the separator of a CSV file: the one that is most often in its line of names.

    Those in quotes do not count, and those before a space only where all are, as in a name like
    "age (in years, whole ones)".
    """
    with closing(encoded_blocks(file, None, "utf-8", str(file), Found())) as blocks:
        names = re.split(r"[\r\n]", next(blocks, b"").decode(), maxsplit=1)[0]
    bare = re.sub(r'"[^"]*"', "", names)
    return max(
        SEPARATORS, key=lambda each: (len(re.findall(rf"{re.escape(each)}(?! )", bare)), bare.count(each))
    )


def quoted_name(name: str) -> str:
    """Quote the name of a column or table for SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _of_postgres(url: str, place: str, query: str, limits: Limits, make: MakeColumn) -> Iterator[Answer]:
    packages = psycopg.conninfo  # Where there is no such package, it is this that says so.
    try:
        said = packages.conninfo_to_dict(url)
    except psycopg.Error:
        # Without the address, which may hold a password.
        raise LearningError(
            f"{place}: the address of its database in {FILES_FILE} cannot be read: {AN_ADDRESS}"
        ) from None
    if any("password" in key for key in said):
        raise LearningError(
            f"{place}: {FILES_FILE} holds a password: take it out there, and give it to the process as "
            "PGPASSWORD, or in a file that PGPASSFILE names"
        )

    settings = {
        "default_transaction_read_only": "on",
        "max_parallel_workers_per_gather": "0",
        "statement_timeout": f"{limits.seconds}s",
        "synchronize_seqscans": "off",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    connection = psycopg.connect(url, connect_timeout=CONNECT_SECONDS, options=options)
    with closing(connection), limits.stopping(connection.cancel):
        connection.read_only = True
        # A cursor of the server's takes one statement, and hands over some rows at once.
        with connection.cursor("asked") as cursor:
            cursor.execute(query)
            names = [each.name for each in cursor.description]
            yield Answer(names, _timed(_columns_of(cursor, make), limits))


def _columns_of(cursor: Any, make: MakeColumn) -> Iterator[Sequence["pa.Array"]]:
    """Yield the rows that a cursor fetches, some thousand at once, as columns."""
    while part := cursor.fetchmany(ROWS):
        yield [make(at, values) for at, values in enumerate(zip(*part, strict=True))]
