"""Data sets from data in a Python program's memory (``dataset=python``): arrays, a data frame or a `Dataset`.

No file names such data, so a process in which they were not given cannot load them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gdpfed.errors import LearningError, words_of
from gdpfed.learning.data.arrays import NPZ_KEYS, dataset_of_arrays
from gdpfed.learning.data.cells import arrow_table
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.dataset_check import check_dataset
from gdpfed.learning.data.declaration import columns_of, read_declaration
from gdpfed.learning.data.file_form import FileForm, Found
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.table_file import Batch, TableFile
from gdpfed.learning.data.tabular import dataset_of_table
from gdpfed.yaml_files import read_yaml

NAME = "python"
PLACE = "data"
"""What errors call it."""


def not_here(source: DataSource) -> Dataset:
    """Raise LearningError, since no Python program gave the data of ``dataset=python`` to this process."""
    raise LearningError(
        f"dataset={NAME} is data of a Python program, which this process was not given: start or resume the "
        'run in that program, as in gdpfed.simulate("run.resume=DIR", data=...)'
    )


def dataset_of(
    data: Any,
    *,
    owners: Any = None,
    columns: Mapping[str, Any] | str | Path | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Make a data set from data in a Python program's memory.

    Args:
        data: (x_train, y_train, x_test, y_test) as arrays of numpy or torch, as in an ``.npz`` file; a data
            frame with the declaration of its columns; or a `Dataset`.
        owners: whose each training example is, a name or a number for each; of a data frame the name of a
            column. None where the data say it, or nobody does.
        columns: of a data frame: its declaration (docs/data.md), as a mapping or the path of its file.
        test_fraction: of a data frame: the share of every party's rows that is tested on.

    Raises LearningError: data of a shape, type or value that cannot be used, in one line.
    """
    if isinstance(data, Dataset):
        _refuse(columns, "columns", "a data frame")
        found = data
        check_dataset(found, PLACE)
    elif isinstance(data, tuple | list):
        _refuse(columns, "columns", "a data frame")
        if len(data) != len(NPZ_KEYS):
            raise LearningError(
                f"{PLACE} has {len(data)} parts: give the four arrays ({', '.join(NPZ_KEYS)}), a data frame "
                "with columns=, or a gdpfed.Dataset"
            )
        arrays = {}
        for name, part in zip(NPZ_KEYS, data, strict=True):
            here = part.detach().cpu() if hasattr(part, "detach") else part
            if np.ma.is_masked(here):
                raise LearningError(
                    f"{PLACE}: {name} has masked values, which a training would see: fill them, or leave out "
                    "what has them"
                )
            try:
                arrays[name] = np.asarray(here)
            except (ValueError, TypeError, RuntimeError) as error:
                reason = words_of(error)
                raise LearningError(f"{PLACE}: {name} is not an array of numbers: {reason}") from None
        found = dataset_of_arrays(arrays, PLACE)
    elif hasattr(data, "columns") or hasattr(data, "column_names"):
        return _dataset_of_frame(data, owners, columns, test_fraction)
    else:
        raise LearningError(
            f"{PLACE} is a {type(data).__name__}: give the four arrays ({', '.join(NPZ_KEYS)}), a data frame "
            "with columns=, or a gdpfed.Dataset"
        )
    _refuse(test_fraction, "dataset.test_fraction", "a data frame")
    return found if owners is None else _with_owners(found, owners)


def _refuse(given: object, name: str, of: str) -> None:
    if given is not None:
        raise LearningError(f"{name} cannot be used with this data=, only with {of}: leave it out")


def _with_owners(data: Dataset, owners: Any) -> Dataset:
    """Return the data set with an owner for each training example; owners' names are sorted."""
    given = owners.tolist() if hasattr(owners, "tolist") else owners
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise LearningError(f"owners is {given!r}: give a name or a number for each training example")
    if len(given) != len(data.train):
        raise LearningError(
            f"owners has {len(given)} entries for {len(data.train)} training examples: give one for each"
        )
    for place, owner in enumerate(given):
        if type(owner) not in (str, int) or owner == "":
            raise LearningError(
                f"owners: entry {place} is {owner!r}: give a name, or a whole number, for each example"
            )
    distinct = set(given)
    if distinct == set(range(len(distinct))):
        return replace(data, owners=np.asarray(given, np.int64), owner_names=(), test_owners=None)
    names = sorted({str(owner) for owner in given})
    numbers = {name: number for number, name in enumerate(names)}
    owned = np.asarray([numbers[str(owner)] for owner in given], np.int64)
    return replace(data, owners=owned, owner_names=tuple(names), test_owners=None)


def _dataset_of_frame(
    frame: Any, owners: Any, declared: Mapping[str, Any] | str | Path | None, test_fraction: float | None
) -> Dataset:
    if declared is None:
        raise LearningError(
            f"{PLACE} is a data frame without columns=: declare its label, and the range or the values of "
            'each input, as in columns={"label": {"column": "stays", "classes": ["no", "yes"]}, "numeric": '
            '{"age": [0, 100]}}; ranges that are taken from the rows would reveal them'
        )
    table = arrow_table(frame, PLACE)
    names = table.column_names
    if isinstance(declared, Mapping):
        values, place = read_yaml(yaml.safe_dump(_plain(declared)), as_texts=True), "columns"
    elif not isinstance(declared, str | Path):
        raise LearningError(
            f"columns is a {type(declared).__name__}: give the declaration as a mapping, or the path of its "
            "file"
        )
    else:
        values, place = read_declaration(Path(declared).expanduser())
    if owners is not None:
        _check_owners(owners, values, names, place)
        parties = sorted({str(each) for each in table.column(owners).to_pylist() if each is not None})
        if isinstance(values, Mapping):
            values = {**values, "party": {"column": owners, "values": parties}}
    columns = columns_of(values, place)
    rows = np.arange(1, table.num_rows + 1)

    def read(wanted: Sequence[int], uneven: Any) -> Any:
        yield Batch({names[at]: table.column(at).combine_chunks() for at in wanted}, rows, rows)

    as_file = TableFile(PLACE, names, FileForm(), Found(), read, of_lines=False)
    return dataset_of_table(as_file, columns, test_fraction)


def _check_owners(owners: Any, values: Any, names: Sequence[str], place: str) -> None:
    """Raise LearningError if owners does not name a column of a data frame, or the declaration has parties.

    `values`: of the declaration, by key. `names`: of the frame's columns. `place`: what errors call the
    declaration.
    """
    has = f"it has {', '.join(names)}"
    if not isinstance(owners, str):
        raise LearningError(
            f"owners is a {type(owners).__name__}, and {PLACE} is a data frame: give the name of the column "
            f"that says whose each row is; {has}"
        )
    if owners not in names:
        raise LearningError(f"owners={owners} is not a column of the data frame; {has}")
    if isinstance(values, Mapping) and "party" in values:
        raise LearningError(
            f"owners={owners}, and {place} declares party, which says whose each row is, too: leave out one "
            "of them"
        )


def _plain(value: Any) -> Any:
    """Convert a declaration of columns, given in Python, to plain mappings, lists and values, as in YAML."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is not None and not isinstance(plain, str | int | float | bool | date):
        raise LearningError(f"columns holds {plain!r}: give texts, numbers, dates, lists and mappings")
    return plain
