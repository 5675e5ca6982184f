"""Loads the user's own tables (``dataset=csv``), whose columns are declared in one YAML file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import Columns, without_tests
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.declaration import COLUMNS_FILE, read_columns
from gdpfed.learning.data.file_form import table_name
from gdpfed.learning.data.party_files import has_tables, tables_in
from gdpfed.learning.data.persons import REPEATED_PERSONS, refuse_shared, undeclared_person
from gdpfed.learning.data.source import DataSource, placed_dataset
from gdpfed.learning.data.table_file import TableFile
from gdpfed.learning.data.table_rows import Rows, joined_rows, open_declared, read_rows, read_table
from gdpfed.learning.data.yaml_parts import check_printable
from gdpfed.learning.labels import Labels, labels_of

DEFAULT_TEST_FRACTION = 0.2
ReadRows = Callable[..., Rows]
"""Reads a table as :func:`gdpfed.learning.data.table_rows.read_rows` does, with the same arguments."""


@dataclass(frozen=True)
class Party:
    """The table rows of one data owner (party), or all rows if the table names no owners."""

    name: str
    rows: Rows


@dataclass(frozen=True)
class _Counted:
    """The number of rows that were left out, and of numbers that were clipped to their declared range."""

    left_out: int
    cut_inputs: int

    @classmethod
    def of(cls, parties: Sequence[Party]) -> Self:
        """Add up the left-out rows and the clipped numbers of all data owners (parties)."""
        rows = [party.rows for party in parties]
        return cls(sum(each.left_out for each in rows), sum(each.cut_inputs for each in rows))


def load(source: DataSource, read: ReadRows = read_rows) -> Dataset:
    """Load a table, or a folder with a table for each data owner (party), and set test rows apart.

    A folder with a declaration and no table is a data set without examples: the nodes bring all of them.
    ``read`` may make something else of a row than what a model sees of it; all else stays the same.

    Raises LearningError: files or columns are missing, values are not as declared, or a party has no records.
    """
    source.allow("path", "columns", "test_path", "test_fraction")
    path = _existing(source.path, "dataset.path")
    columns = declared_columns(source)
    said = (source.columns, source.test_path, source.test_fraction)
    if (
        path.is_dir()
        and said == (None, None, None)
        and [each.name for each in path.iterdir()] == [COLUMNS_FILE]
    ):
        # A server has no rows, and the nodes bring all.
        kind = labels_of(columns.label_kind, columns.num_classes)
        no_inputs = np.zeros((0, columns.num_inputs), np.float32)
        no_labels = np.zeros((0, *columns.label_shape), kind.dtype)
        persons = None if columns.person is None else np.zeros(0, np.int64)
        nothing = Split(no_inputs, no_labels, persons=persons)
        names = columns.party.values if columns.party else ()
        owners = np.zeros(0, np.int64) if names else None
        return Dataset(
            nothing,
            nothing,
            num_classes=columns.num_classes,
            owners=owners,
            test_owners=owners,
            owner_names=names,
            target_range=columns.label_range,
            record_groups=len(columns.record_group.values) if columns.record_group else 0,
            columns=columns,
            label_kind=columns.label_kind,
        )

    train = _parties(path, columns, read)
    if source.test_path is None:
        return dataset_of(train, columns, source.test_fraction, str(path))
    for name, given in (("dataset.test_fraction", source.test_fraction), ("test", columns.test)):
        if given is not None:
            raise LearningError(
                f"dataset.test_path={source.test_path} and {name} both say what is for testing: leave one out"
            )
    test = _parties(_existing(source.test_path, "dataset.test_path"), columns, read)
    return _joined(train, test, columns, str(path), _Counted.of([*train, *test]))


def dataset_of_table(table: TableFile, columns: Columns, test_fraction: float | None) -> Dataset:
    """Make a data set from one table, in which a column may name each row's data owner (party).

    Raises LearningError: as in :func:`load`.
    """
    rows = read_table(table, columns, shared_out=True)
    found = dataset_of(_of_one_file(rows, columns), columns, test_fraction, table.place)
    if columns.person is None and (name := undeclared_person(lambda: table, columns)):
        return replace(found, notes=(REPEATED_PERSONS.format(name),))
    return found


def declared_columns(source: DataSource) -> Columns:
    """Read the declaration of the data set's columns, without reading a table.

    Raises LearningError: no such path, no declaration, or a damaged one.
    """
    path = _existing(source.path, "dataset.path")
    if source.columns is None and not (_folder(path) / COLUMNS_FILE).is_file():
        raise LearningError(
            f"dataset.columns is not set, and {_folder(path)} has no {COLUMNS_FILE}: name the file that "
            "declares the columns"
        )
    return read_columns(Path(source.columns).expanduser() if source.columns else _folder(path) / COLUMNS_FILE)


def declared_parties(source: DataSource) -> tuple[str, ...]:
    """Return the names of the data owners (parties), in order, without reading a row.

    Raises LearningError: as in :func:`declared_columns`.
    """
    columns, path = declared_columns(source), _existing(source.path, "dataset.path")
    if columns.party is not None:
        return columns.party.values
    return tuple(table_name(file) for file in tables_in(path)) if path.is_dir() and has_tables(path) else ()


def own_table(path: Path, *, for_testing: bool = False) -> tuple[npt.NDArray[np.generic] | None, ...]:
    """Read inputs, labels, record groups and persons of a node's own table; None for what is not declared.

    The declaration is the file ``columns.yaml`` beside the table, which the operator of the node has put
    there: a server that could choose one would learn of the data by what does not fit.

    `path`: of the table. `for_testing`: whether the rows are read that are for testing, or all where nothing
    is declared about them; else those are left out.

    Raises LearningError: as in :func:`load`.
    """
    columns = own_columns(path)
    rows = read_rows(path, columns, f"data={path}", shared_out=False)
    kept = rows
    if rows.for_testing is not None:
        kept = rows.taken(_positions(rows.for_testing, len(rows), testing=for_testing))
    return kept.x, _within(kept.y), kept.groups, kept.persons


def parties_of_person(source: DataSource) -> int:
    """Return how many data owners may have rows of one person, as declared; 0 if no persons are declared.

    Raises LearningError: as in :func:`declared_columns`.
    """
    placed = placed_dataset(source)
    if placed is not None:
        columns = placed.columns
    else:
        columns = declared_columns(source) if source.name == "csv" and source.path is not None else None
    return 0 if columns is None or columns.person is None else columns.person_parties


def undeclared_persons(source: DataSource) -> str:
    """Return the name of an undeclared column that repeats and seems to identify persons; "" if none does.

    "" where there is none, or persons are declared.
    """
    columns = declared_columns(source)
    files = tables_in(_existing(source.path, "dataset.path"))
    for file in files if columns.person is None else ():
        if name := undeclared_person(partial(open_declared, file, columns, str(file)), columns):
            return name
    return ""


def own_columns(path: Path) -> Columns:
    """Read the declaration of columns in the folder of a node's own table."""
    return read_columns(path.with_name(COLUMNS_FILE))


def dataset_of(parties: list[Party], columns: Columns, test_fraction: float | None, place: str) -> Dataset:
    """Split the rows of every data owner (party) into training and test rows, and make a data set.

    The list is empty afterwards: each party is given up when its rows are copied, so that memory is for one
    table and some more.

    Which rows of a party are held out depends on how many it has, and on nothing that they hold. A person
    who may be at several parties is held out at all of them, or at none.

    Raises LearningError: a party without rows to train on, or nothing to test on.
    """
    if columns.test is not None and test_fraction is not None:
        raise LearningError(
            f"dataset.test_fraction={test_fraction} and the column '{columns.test.name}' both say what is "
            "for testing: leave one out"
        )
    fraction = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
    everybody = None
    if columns.person_parties > 1:
        own = (party.rows.persons for party in parties if party.rows.persons is not None)
        everybody = np.unique(np.concatenate([*own]))
    train, test, counted = list[Party](), list[Party](), _Counted.of(parties)
    for number in range(len(parties)):
        party = parties.pop(0)
        held_out = party.rows.for_testing
        persons = party.rows.persons
        if held_out is None and persons is not None:
            among, first = (np.unique(persons), number) if everybody is None else (everybody, 0)
            held_out = _drawn(len(among), fraction, first)[np.searchsorted(among, persons)]
        elif held_out is None:
            held_out = _drawn(len(party.rows), fraction, number)
        for parts, testing in ((train, False), (test, True)):
            chosen = _positions(held_out, len(party.rows), testing=testing)
            parts.append(Party(party.name, party.rows.taken(chosen)))
        del party, persons
    return _joined(train, test, columns, place, counted)


def _drawn(count: int, fraction: float, number: int) -> npt.NDArray[np.bool_]:
    """Draw at random which of `count` rows or persons are held out for testing, shape (count,)."""
    held_out = np.zeros(count, dtype=np.bool_)
    held_out[np.random.default_rng([count, number]).permutation(count)[: round(fraction * count)]] = True
    return held_out


def _positions(
    for_testing: npt.NDArray[np.bool_] | None, count: int, *, testing: bool
) -> npt.NDArray[np.int64]:
    if for_testing is None:
        return np.arange(count)
    return np.flatnonzero(for_testing == testing)


def _within(labels: Labels) -> Labels:
    """Clip numeric training labels to their declared range."""
    numbers = labels.dtype.kind == "f" and labels.ndim == 1
    return np.clip(labels, -1, 1).astype(np.float32) if numbers else labels


def _existing(path: str | None, setting: str) -> Path:
    found = Path(path or "").expanduser()
    if path is None or not found.exists():
        fault = " is not set" if path is None else f"={path} does not exist"
        raise LearningError(f"{setting}{fault}: name a CSV or Parquet file, or a folder of them")
    return found


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _parties(path: Path, columns: Columns, read: ReadRows) -> list[Party]:
    """Read the rows of each data owner (party), from one table or from a folder with a table for each."""
    if not path.is_dir():
        return _of_one_file(read(path, columns, str(path), shared_out=True), columns)
    files = tables_in(path)
    if columns.party is not None:
        raise LearningError(
            f"{path} has a file for each party, and the column '{columns.party.name}' says whose a "
            "record is, too: leave party out of the declaration, or name one file"
        )
    for file in files:
        check_printable(table_name(file), "the name of a party's file")
    return [Party(table_name(file), read(file, columns, str(file), shared_out=False)) for file in files]


def _of_one_file(rows: Rows, columns: Columns) -> list[Party]:
    if columns.party is None or rows.parties is None:
        return [Party("", rows)]
    parties = [
        Party(name, rows.taken(np.flatnonzero(rows.parties == number)))
        for number, name in enumerate(columns.party.values)
    ]
    # Rows that are left out are of no party that is known; what is cut is counted of all together.
    all_rows = replace(parties[0].rows, left_out=rows.left_out, cut_inputs=rows.cut_inputs)
    first = replace(parties[0], rows=all_rows)
    return [first, *parties[1:]]


def _joined(
    train: list[Party], test: list[Party], columns: Columns, place: str, counted: _Counted
) -> Dataset:
    names = [party.name for party in train]
    if [party.name for party in test] != names:
        raise LearningError(
            f"{place} has the parties {', '.join(names)}, and dataset.test_path "
            f"{', '.join(party.name for party in test)}: they must be the same"
        )
    for party in train:
        if len(party.rows) == 0:
            whose = f"party '{party.name}' has" if party.name else "there are"
            raise LearningError(f"{place}: {whose} no records to train on: give it some, or leave it out")
    if not any(len(party.rows) for party in test):
        if columns.test is not None:
            raise LearningError(f"{place} has no records to test on: {without_tests(columns.test)}")
        raise LearningError(
            f"{place} has no records to test on: set dataset.test_fraction or dataset.test_path"
        )
    shared = len(names) > 1
    for own, held_out in zip(train, test, strict=True):
        refuse_shared(_as_split(own.rows), _as_split(held_out.rows), place)
    owners = (_owners(train), _owners(test)) if shared else (None, None)
    trained, numbers = _split(train), columns.label_range is not None
    return Dataset(
        replace(trained, y=_within(trained.y)),
        _split(test),
        num_classes=columns.num_classes,
        owners=owners[0],
        test_owners=owners[1],
        owner_names=tuple(names) if shared else (),
        target_range=columns.label_range,
        record_groups=len(columns.record_group.values) if columns.record_group else 0,
        columns=columns,
        label_kind=columns.label_kind,
        cut_labels=int((np.abs(trained.y) > 1).sum()) if numbers else 0,
        left_out=counted.left_out,
        cut_inputs=counted.cut_inputs,
    )


def _split(parties: list[Party]) -> Split:
    """Join the rows of all data owners into one `Split`; empty the list to save memory."""
    rows = [party.rows for party in parties]
    parties.clear()
    return _as_split(joined_rows(rows, ""))


def _as_split(rows: Rows) -> Split:
    return Split(rows.x, rows.y, rows.groups, rows.persons)


def _owners(parties: Sequence[Party]) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(len(parties)), [len(party.rows) for party in parties])
