"""The format of a data owner's table file, such as the decimal mark: detected, or stated by the owner.

The declaration says what a table means, and is the same at all parties. How a file writes it is the site's
own matter: separator, encoding, decimal mark, dates, marks of missing values. What the lines above the rows
show is taken from there. What a cell shows is taken from that cell alone, so that no record changes how
another one is read; a cell that might mean two things is refused. A file ``files.yaml`` beside the tables
says what they do not show.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdpfed.decimal_numbers import counted
from gdpfed.errors import LearningError, either
from gdpfed.learning.data.yaml_parts import Part, read_parts

FILES_FILE = "files.yaml"
SEPARATORS = (",", ";", "\t", "|")
DECIMALS = (".", ",")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
PACKINGS = (".gz", ".bz2", ".xz")
TEXT_ENDINGS = (".csv", ".tsv")
WORKBOOKS = (".xlsx", ".xlsm")
QUERY = ".sql"
ENDINGS = (*TEXT_ENDINGS, ".parquet", *WORKBOOKS, QUERY)
ENDINGS_IN_WORDS = f"{either(ENDINGS)} ({either(TEXT_ENDINGS)} may be compressed, as in .csv{PACKINGS[0]})"
HIDDEN = (".", "~$")
"""How the names of files begin that systems put beside tables, as Excel does while one is open."""
LIMITS = ("seconds", "mebibytes")
MOST_OF_A_LIMIT = 10**6
FIRST, LAST = "first", "last"
KEYS = (
    *("separator", "encoding", "decimal", "dates", "missing", "values", "header", "unnamed", "sheet"),
    *("database", *LIMITS),
)
MARKS = frozenset(
    ("?", "-", "--", ".", "n/a", "N/A", "#N/A", "#NA", "<NA>", "NaT", "NULL", "null", "None", "(null)", "\\N")
)
"""Texts that stand for a missing value wherever a column does not have them as values."""


@dataclass(frozen=True)
class FileForm:
    """The properties of a table file that its data owner states; all other properties are detected.

    Attributes:
        separator, encoding: of CSV.
        decimal: the decimal mark; the other one of full stop and comma groups thousands then.
        dates: the form of all dates, as :meth:`datetime.datetime.strptime` reads it.
        missing: texts that stand for a missing value in every column that does not have them as values.
        missing_in: columns, each with texts that stand for a missing value in it, whatever its values are.
        values_in: columns, each with pairs of a text of the site's own and the declared value for which it
            stands.
        header: the names of the columns of a CSV file or a sheet without a line of them.
        unnamed: which value of a CSV file's rows no name is for: the first, or the last, which is empty.
        sheet: of a workbook.
        database: of a query, what it asks: a file, a folder, or an address of PostgreSQL.
        seconds, mebibytes: that a query may take.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    dates: str | None = None
    missing: tuple[str, ...] = ()
    missing_in: tuple[tuple[str, tuple[str, ...]], ...] = ()
    values_in: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    header: tuple[str, ...] = ()
    unnamed: str | None = None
    sheet: str | None = None
    database: str | None = None
    seconds: int = 600
    mebibytes: int = 1024

    def marks(self, name: str) -> tuple[str, ...]:
        """Return the texts that mean a missing value in this column only."""
        return dict(self.missing_in).get(name, ())

    def values(self, name: str) -> dict[str, str]:
        """Return the declared values for which the site's own texts stand in this column, by text."""
        return dict(dict(self.values_in).get(name, ()))


@dataclass
class Found:
    """What was detected in a table's file while it was read: separator, encoding, decimal mark.

    Attributes:
        head: what its first lines show, one line each.
        separator: of a CSV file; empty of others.
        recoded: how many lines are not UTF-8, and are read in another encoding, by its name.
        commas, grouped: numbers with a decimal comma, and with thousands marks, by column.
        truths: truth values that are read as 1 and 0, by column.
        named: texts of the site's own that stand for declared values, by column.
        marks: texts that stand for a missing value though nobody declares them, with their column.
        dates: forms of dates that nobody declares, with their column.
    """

    head: list[str] = field(default_factory=list)
    separator: str = ""
    recoded: Counter[str] = field(default_factory=Counter)
    commas: Counter[str] = field(default_factory=Counter)
    grouped: Counter[str] = field(default_factory=Counter)
    truths: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    marks: Counter[tuple[str, str]] = field(default_factory=Counter)
    dates: Counter[tuple[str, str]] = field(default_factory=Counter)

    def notes(self) -> Iterator[str]:
        """Yield notes on what was detected in a table's file, one line each."""
        yield from self.head
        for encoding, count in self.recoded.items():
            yield f"{_times(count, 'line')} not UTF-8, and read as {encoding}"
        for words, found in (
            ("a decimal comma", self.commas),
            ("thousands marks", self.grouped),
            ("a truth value", self.truths),
        ):
            for name, count in found.items():
                yield f"column '{name}': {_times(count, 'number')} written with {words}"
        for name, count in self.named.items():
            yield f"column '{name}': {_times(count, 'text')} read as the value that {FILES_FILE} says"
        for (name, mark), count in self.marks.items():
            yield f"column '{name}': '{mark}' stands for a missing value in {counted(count, 'row')}"
        for (name, form), count in self.dates.items():
            yield f"column '{name}': {_times(count, 'date')} written as {form}"


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'s are' if count > 1 else ' is'}"


def table_name(path: Path) -> str:
    """Return the name of a table without its file endings: ``bonn`` for ``bonn.csv.gz``."""
    name = path.name[: -len(packing)] if (packing := packing_of(path)) else path.name
    return Path(name).stem


def packing_of(path: Path) -> str:
    """Return the ending of a compressed file, such as ``.gz``; return "" if the file is not compressed."""
    ending = path.suffix.lower()
    return ending if ending in PACKINGS else ""


def kind_of(path: Path) -> str:
    """Return the ending that shows a file's type, in lower case: ``.csv`` for ``a.csv`` and ``a.CSV.gz``."""
    packing = packing_of(path)
    return Path(path.name[: -len(packing)] if packing else path.name).suffix.lower()


def ending_of(path: Path) -> str:
    """Return the ending of a file with that of its compression: ``.csv.gz`` for ``a.CSV.gz``."""
    return kind_of(path) + packing_of(path)


def is_table(path: Path) -> bool:
    """Whether a file name has the ending of a table, such as ``.xlsx``, ``.csv`` or ``.csv.gz``."""
    return kind_of(path) in (TEXT_ENDINGS if packing_of(path) else ENDINGS)


def own_form(path: Path) -> FileForm:
    """Return what ``files.yaml`` in the same folder states about the format of this table file.

    Raises LearningError: a file that is damaged, or names a table that is not there.
    """
    file = path.parent / FILES_FILE
    if not file.exists():
        return FileForm()
    forms = dict(read_parts(file, "say how files are written").items("tables"))
    there = {table_name(each) for each in file.parent.iterdir() if is_table(each)}
    for name in forms:
        if name not in there:
            raise LearningError(
                f"{file}: there is no table '{name}' beside it; tables are called by their names without "
                f"ending: {', '.join(sorted(there)[:5])}"
            )
    form = _read_form(forms[table_name(path)]) if table_name(path) in forms else FileForm()
    kind = kind_of(path)
    for key, said, kinds, what in (
        ("database", form.database, (QUERY,), "a query"),
        ("sheet", form.sheet, WORKBOOKS, "a workbook"),
        ("separator", form.separator, TEXT_ENDINGS, "a CSV file"),
        ("encoding", form.encoding, TEXT_ENDINGS, "a CSV file"),
        ("unnamed", form.unnamed, TEXT_ENDINGS, "a CSV file"),
    ):
        if said is not None and kind not in kinds:
            raise LearningError(f"{file}: {key} is for {what}, and {path.name} is not {what}: leave it out")
    return form


def databases_in(folder: Path) -> set[str]:
    """Return the names of the databases that the queries in a folder use.

    Raises LearningError: as in :func:`own_form`.
    """
    queries = [each for each in folder.iterdir() if kind_of(each) == QUERY]
    return {Path(form.database).name for each in queries if (form := own_form(each)).database is not None}


def _missing(marks: Part) -> dict[str, Any]:
    """Read the marks of missing values: one list for all columns, or a list for each column."""
    if isinstance(marks.values, list):
        return {"missing": tuple(each.text(empty=True) for each in marks.list())}
    if isinstance(marks.values, Mapping):
        by_column = ((name, texts.list()) for name, texts in marks.items())
        return {
            "missing_in": tuple(
                (name, tuple(each.text(empty=True) for each in texts)) for name, texts in by_column
            )
        }
    raise marks.wrong("a list of texts, as in ['-9', 'n/a'], or such a list for each column by its name")


def _values_in(part: Part) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield each column's name with pairs of a text of the site's own and the value for which it stands."""
    for name, texts in part.items():
        if not isinstance(texts.values, Mapping):
            raise texts.wrong("declared values by texts of the file, as in {M: male}")
        yield name, tuple((own, value.text()) for own, value in texts.items())


def _read_form(part: Part) -> FileForm:
    """Read what the data owner states of one table's file."""
    said = part.mapping(required=(), allowed=KEYS)
    given: dict[str, Any] = {}
    for key, words in (
        ("separator", SEPARATORS),
        ("encoding", ENCODINGS),
        ("decimal", DECIMALS),
        ("unnamed", (FIRST, LAST)),
    ):
        if key in said:
            if said[key].values not in words:
                raise said[key].wrong(f"one of {', '.join(map(repr, words))}")
            given[key] = str(said[key].values)
    for key in LIMITS:
        if key in said:
            number = said[key].number()
            if number % 1 or not 1 <= number <= MOST_OF_A_LIMIT:
                raise said[key].wrong(f"a whole number from 1 to {MOST_OF_A_LIMIT:,}")
            given[key] = int(number)
    dates = said["dates"].date_form() if "dates" in said else None
    if "missing" in said:
        given |= _missing(said["missing"])
    if "values" in said:
        given["values_in"] = tuple(_values_in(said["values"]))
    return FileForm(
        **given,
        dates=dates,
        header=tuple(each.text() for each in said["header"].list()) if "header" in said else (),
        sheet=said["sheet"].text() if "sheet" in said else None,
        database=said["database"].text() if "database" in said else None,
    )
