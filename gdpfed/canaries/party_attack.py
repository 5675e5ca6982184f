"""Guesses whether a whole party was in a training, by all of its records together."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from gdpfed.canaries.bounds import Scores
from gdpfed.canaries.membership import record_scores
from gdpfed.errors import ReportError
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.persons import persons_held_out
from gdpfed.learning.data.table_rows import read_table, rows_of
from gdpfed.learning.data.tabular import tables_in
from gdpfed.learning.task import Task


@dataclass(frozen=True, eq=False)
class Parties:
    """Records of several parties, and whose each is, from 0."""

    records: Split
    of: npt.NDArray[np.int64]


def party_scores(seen: str, task: Task, model: nn.Module, parties: Parties) -> Scores:
    """The mean score of the records of every party, shape (parties,)."""
    scores = record_scores(seen, task, model, parties.records)
    return np.asarray(np.bincount(parties.of, scores) / np.bincount(parties.of))


def dealt_out(others: Split, parties: Parties) -> Parties:
    """Parties of records that nobody trained on, as large as the others on average.

    The clients of an iid partition are random groups of records, and so are these.
    """
    size = max(1, round(len(parties.of) / (parties.of[-1] + 1)))
    order = np.random.default_rng(0).permutation(len(others))[: len(others) // size * size]
    return Parties(others.take(order), np.arange(len(order)) // size)


def outside_parties(path: Path, data: Dataset) -> Parties:
    """The parties of a folder of tables, or of one table, none of which was in the run.

    Raises:
        LearningError: tables that are not as the run's declaration says.
        ReportError: the run has no declaration.
    """
    columns = data.columns
    if columns is None:
        raise ReportError(
            "--outside names tables, and this run has no columns.yaml to read them by: leave it out"
        )
    names = columns.names(for_training=True)
    found = [
        rows_of(read_table(file, columns, str(file), names), columns, str(file), shared_out=False)
        for file in tables_in(path)
    ]
    of = np.repeat(np.arange(len(found)), [len(each) for each in found])
    persons = [each.persons for each in found if each.persons is not None]
    records = Split(
        np.concatenate([each.x for each in found]),
        np.concatenate([each.y for each in found]),
        persons=np.concatenate(persons) if persons else None,
    )
    if not data.by_person:
        return Parties(records, of)
    grouped, owners = persons_held_out(records, of)
    return Parties(grouped, of if owners is None else owners)
