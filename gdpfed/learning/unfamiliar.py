"""Reports values in new records that lie outside the declared ranges and values of a model's columns.

A prediction is made of them all the same, since a number beyond its range counts as the range's end, and a
category that is not declared as the declared other one. What occurred in training is in no file: only the
declaration says what a model may have seen.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gdpfed.learning.data.cells import Table
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.table_file import listed
from gdpfed.learning.data.table_rows import as_numbers, as_texts, beyond_range, num_rows
from gdpfed.learning.data.text_cells import numbered

MOST_NAMED = 5
"""Of the different values of a column that are not declared."""


@dataclass
class Unfamiliar:
    """Counts values in new records that are missing, or outside a column's declared range or values.

    Attributes:
        columns: the declaration.
        rows: how many there were.
        beyond: numbers beyond their declared range, by column.
        missing: cells without a value, by column.
        others: values that are not declared and count as the other one, by column and value.
    """

    columns: Columns
    rows: int = 0
    beyond: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    others: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, table: Table) -> None:
        """Count a table's missing values, and values outside a column's declared range or values."""
        self.rows += num_rows(table)
        for name in self.columns.inputs:
            self.missing[name] += int(table[name].missing.sum())
        for number in self.columns.numeric:
            self.beyond[number.name] += beyond_range(as_numbers(table[number.name]).numbers, number)
        for each in self.columns.categorical:
            if each.other is None:
                continue  # Such a value is refused.
            cells = as_texts(table[each.name])
            unknown = (numbered(cells, dict.fromkeys(each.values, 1)) < 0) & ~cells.missing
            which, counts = np.unique(cells.which[unknown], return_counts=True)
            found = self.others.setdefault(each.name, Counter())
            for at, count in zip(which.tolist(), counts.tolist(), strict=True):
                found[cells.distinct[at]] += count

    def words(self) -> Iterator[str]:
        """Yield one line for each column with values outside its declaration, or with no value at all."""
        for number in self.columns.numeric:
            if count := self.beyond[number.name]:
                yield (
                    f"column '{number.name}': {count} of {self.rows} lie beyond {number.low:g} to "
                    f"{number.high:g}, which the model learnt of, and count as its end"
                )
        for each in self.columns.categorical:
            if found := self.others.get(each.name):
                shown = listed([f"'{text}'" for text, _ in found.most_common()], MOST_NAMED)
                yield (
                    f"column '{each.name}': {found.total()} of {self.rows} are {shown}, which is not "
                    f"declared, and count as '{each.other}'"
                )
        for name in self.columns.inputs:
            if self.rows and self.missing[name] == self.rows:
                yield f"column '{name}' is missing in all rows, and what is declared for it stands there"
