"""The cells (values or bins) that are counted for each declared column or pair of columns.

A record is in one cell of every block. So B blocks move by sqrt(B) in L2 norm when one record is added or
removed, whatever the record is. A block is a column, a column within every group or at every party, or a pair
of columns.
"""

import difflib
import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, not_known
from gdpfed.learning.data.columns import Columns, Numeric
from gdpfed.learning.data.times_to_event import TimesToEvent, interval_of, survived

Spacing = Literal["even", "decades"]
SPACINGS = ("even", "decades")
BELOW, ABOVE, MISSING = "below", "above", "missing"
STEPS = (1, 2, 5)
MOST_DECADES = 6
"""Powers of ten below the largest end of a range that bins by decades tell apart."""
PARTY = "party"
MOST_BINS, MOST_CELLS = 1000, 1_000_000
EDGES_NOTE = "give a column with a range in the declaration, or one with values"


@dataclass(frozen=True)
class Asked:
    """The statistics that a run requests from its clients: columns, bins, groups, pairs of columns.

    Attributes:
        bins: of equal width between the ends of a column's range; not used by decades.
        spacing: ``even`` bins, or ``decades``: bins between 0 and the numbers 1, 2 and 5 times powers of ten.
        columns: which columns are counted, in their order; empty for all inputs and labels.
        by: the column whose values are the groups; None without groups.
        crossed: pairs of columns that are counted together.
        survival: whether events and censored records are counted by interval, and nothing else is.
        parties: how many parties there are, where each is a group of its own; 0 where they are counted
            together.
    """

    bins: int = 16
    spacing: Spacing = "even"
    columns: tuple[str, ...] = ()
    by: str | None = None
    crossed: tuple[tuple[str, str], ...] = ()
    survival: bool = False
    parties: int = 0

    def setting_of(self, column: str) -> str:
        """Return the setting that names a column."""
        if column in self.columns:
            return "method.columns"
        return "method.by" if column == self.by else "method.crossed"

    def to_json(self) -> str:
        """Return the requested statistics as JSON text, which :meth:`from_json` reads."""
        values = asdict(self)
        # Without what says nothing, as before there were these two.
        for key, nothing in (("survival", False), ("parties", 0)):
            if values[key] == nothing:
                del values[key]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the requested statistics from JSON text that :meth:`to_json` wrote."""
        try:
            values = json.loads(text)
            crossed = tuple((str(rows), str(columns)) for rows, columns in values.pop("crossed"))
            return cls(columns=tuple(map(str, values.pop("columns"))), crossed=crossed, **values).checked()
        except (ValueError, TypeError, KeyError, AttributeError):
            raise LearningError(
                f"{text!r} does not say which statistics are asked for: name columns, or a survival curve"
            ) from None

    def checked(self) -> Self:
        """Check the requested statistics and return them; raise LearningError if they are invalid."""
        if type(self.bins) is not int or not 1 <= self.bins <= MOST_BINS:
            raise LearningError(f"method.bins={self.bins} must be a whole number from 1 to {MOST_BINS}")
        if self.spacing not in SPACINGS:
            raise LearningError(not_known(f"method.spacing={self.spacing}", SPACINGS))
        if type(self.survival) is not bool or (self.survival and (self.columns or self.crossed)):
            raise LearningError(
                "method.survival=true counts events and censored records alone: leave method.columns and "
                "method.crossed out, and count them in another run"
            )
        if type(self.parties) is not int or self.parties < 0:
            raise LearningError(f"{self.parties!r} is not a number of parties: give a whole number from 1")
        if self.parties and (self.by is not None or self.crossed or self.survival):
            raise LearningError(
                "method.by_party=true counts columns at each party, and goes neither with method.by nor with "
                "method.crossed or method.survival: count those in a run of their own"
            )
        return self

    @property
    def kind(self) -> str:
        """The name of the model that counts these statistics; a node's operator can forbid this name."""
        if self.survival:
            return "statistics_survival"
        if self.parties:
            return "statistics_by_party"
        if self.crossed:
            return "statistics_crossed"
        return "statistics" if self.by is None else "statistics_by_group"


@dataclass(frozen=True)
class Cells:
    """The cells of one table column: the values, or ranges of values, that are counted.

    Attributes:
        name: of the column.
        labels: of the cells, in order.
        edges: of the bins, which are the cells but the first and the last two; empty where the column holds
            no numbers.
        may_miss: whether the last cell is for rows without a value.
        times: of which times to an event these are the cells; None of one column.
    """

    name: str
    labels: tuple[str, ...]
    edges: tuple[float, ...] = ()
    may_miss: bool = True
    times: TimesToEvent | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of_numbers(cls, column: Numeric, asked: Asked) -> Self:
        """Return a numeric column's cells: bins within the range, too small, too large, and missing."""
        edges = edges_of(column.low, column.high, asked.bins, asked.spacing)
        bins = [f"{low:.6g} to {high:.6g}" for low, high in pairwise(edges)]
        return cls(column.name, (BELOW, *bins, ABOVE, MISSING), edges)

    @classmethod
    def of_times(cls, columns: Columns) -> Self:
        """Return the cells of a time-to-event label: events by interval, then censored records by interval.

        Raises LearningError: the declaration has no such label.
        """
        times = columns.times
        if times is None:
            raise LearningError(
                "method.survival=true counts times to an event, and the declared label is not one: "
                "declare label: {time: COLUMN, event: COLUMN, edges: [...]}"
            )
        names = times.interval_names
        censored = [f"censored after {name}" for name in ("0", *names)]
        labels = (*(f"event by {name}" for name in names), *censored)
        return cls(f"{times.time}, {times.event}", labels, may_miss=False, times=times)

    def of_labels(self, labels: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return each label's cell (event or censored record, by interval): float32[N,2] -> int64[N]."""
        count = len(self) // 2
        return np.where(labels[:, 1] > 0, interval_of(labels[:, 0]), count + survived(labels[:, 0]))

    def of_number(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return each number's cell: its bin or, for NaN, the cell of missing values: float64[N] -> int64[N].

        A bin holds its lower end, and the last one its upper end, too.
        """
        places = np.searchsorted(self.edges, numbers, side="right")
        places[numbers == self.edges[-1]] -= 1
        return np.where(np.isnan(numbers), len(self) - 1, places).astype(np.int64)


def edges_of(low: float, high: float, bins: int, spacing: Spacing) -> tuple[float, ...]:
    """Return the edges of a range's bins: evenly spaced, or at 1, 2 and 5 times powers of ten."""
    if spacing == "even":
        return tuple(float(edge) for edge in np.linspace(low, high, bins + 1))
    largest = math.floor(math.log10(max(abs(low), abs(high))))
    powers = range(largest - MOST_DECADES, largest + 1)
    steps = [step * 10.0**power for power in powers for step in STEPS]
    known = {0.0, *steps, *(-step for step in steps)}
    return (float(low), *sorted(edge for edge in known if low < edge < high), float(high))


@dataclass(frozen=True)
class Block:
    """A block of counts over one column or a pair of columns; each record counts once in it.

    Attributes:
        first, second: numbers of the columns that are counted; a column alone has no second one.
        by_group: whether the first is counted within every group, which is then the second.
    """

    first: int
    second: int | None = None
    by_group: bool = False


@dataclass(frozen=True)
class Layout:
    """All cells (values or bins) that one sum counts, in blocks: one for each column or pair of columns.

    Attributes:
        columns: each column's cells; with `by_party` the last one is for the party that counts.
        blocks: in the order in which they stand in the sum.
        by_party: whether each party's records are in groups of their own.
    """

    columns: tuple[Cells, ...]
    blocks: tuple[Block, ...]
    by_party: bool = False

    @classmethod
    def of(cls, columns: Columns, asked: Asked) -> Self:
        """Return all cells (values or bins) that the requested statistics count in the declared columns.

        Raises LearningError: a column that is not declared, groups that are not values, or too many cells.
        """
        if asked.survival:
            return cls.of_survival(columns, asked)
        counted = asked.columns or (*columns.inputs, *columns.label_names)
        groups = () if asked.by is None else (asked.by,)
        names = dict.fromkeys([*counted, *groups, *chain.from_iterable(asked.crossed)])
        kept = tuple(cells_of(columns, name, asked, asked.setting_of(name)) for name in names)
        places = {name: number for number, name in enumerate(names)}
        if asked.by is not None and kept[places[asked.by]].edges:
            raise LearningError(
                f"method.by={asked.by} holds numbers: name a column whose values are the groups"
            )
        if asked.parties:
            blocks = [Block(places[name], len(kept), by_group=True) for name in counted]
            kept += (Cells(PARTY, party_names(asked.parties), may_miss=False),)
        elif asked.by is None:
            blocks = [Block(places[name]) for name in counted]
        else:
            group = places[asked.by]
            others = [places[name] for name in counted if name != asked.by]
            blocks = [Block(group), *(Block(each, group, by_group=True) for each in others)]
        crossed = [Block(places[rows], places[across]) for rows, across in asked.crossed]
        made = cls(kept, (*blocks, *crossed), bool(asked.parties))
        if made.size > MOST_CELLS:
            raise LearningError(
                f"{made.size} cells are more than {MOST_CELLS}: use fewer method.bins, or cross fewer columns"
            )
        return made

    @classmethod
    def of_survival(cls, columns: Columns, asked: Asked) -> Self:
        """Return what is counted for survival curves: events and censored records, by interval and group.

        Raises LearningError: there are no times to an event, or the groups are no values of a column.
        """
        times = Cells.of_times(columns)
        if asked.by is None:
            return cls((times,), (Block(0),))
        groups = cells_of(columns, asked.by, asked, "method.by")
        if groups.edges or asked.by in columns.label_names:
            raise LearningError(
                f"method.by={asked.by} is no input with values: name a column whose values are the groups"
            )
        return cls((times, groups), (Block(0, 1, by_group=True),))

    @property
    def declared(self) -> tuple[Cells, ...]:
        """The cells of the declared columns; leaves out the extra column for data owners, if there is one."""
        return self.columns[:-1] if self.by_party else self.columns

    def shape(self, block: Block) -> tuple[int, ...]:
        """Return the shape of a block: (cells,), (groups, cells) or (rows, columns)."""
        first = len(self.columns[block.first])
        if block.second is None:
            return (first,)
        second = len(self.columns[block.second])
        return (second, first) if block.by_group else (first, second)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The positions in the vector of counts at which blocks begin, and the end of the last block."""
        sizes = [math.prod(self.shape(block)) for block in self.blocks]
        return tuple(int(each) for each in np.cumsum([0, *sizes]))

    @property
    def size(self) -> int:
        """d: the number of all cells (values or bins) that are counted."""
        return self.starts[-1]

    @property
    def moves(self) -> float:
        """The L2 sensitivity of the counts to one record, which counts once in each of B blocks: sqrt(B)."""
        return math.sqrt(len(self.blocks))

    def places(self, cells: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return each row's position in the vector of counts, for each block: int64[N, K] -> int64[N, B]."""
        found = np.empty((len(cells), len(self.blocks)), dtype=np.int64)
        for number, (block, start) in enumerate(zip(self.blocks, self.starts[:-1], strict=True)):
            at = cells[:, block.first].astype(np.int64)
            if block.second is not None:
                other, inner = cells[:, block.second].astype(np.int64), self.shape(block)[1]
                at = other * inner + at if block.by_group else at * inner + other
            found[:, number] = start + at
        return found

    def parts(self, vector: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """Split a vector of all cells, shape (d,), into arrays, one for each block."""
        pieces = np.split(vector, self.starts[1:-1])
        return [piece.reshape(self.shape(block)) for piece, block in zip(pieces, self.blocks, strict=True)]


def party_names(parties: int) -> tuple[str, ...]:
    """Return a name for each of several data owners (parties), made of the owner's number: party 0, ..."""
    return tuple(f"{PARTY} {number}" for number in range(parties))


def cells_of(columns: Columns, name: str, asked: Asked, setting: str) -> Cells:
    """Return the cells that are counted for a declared column: its values, or the bins of its numbers.

    `setting`: that names it. Raises LearningError: it is neither an input nor a label.
    """
    number = columns.number(name)
    if number is not None:
        return Cells.of_numbers(number, asked)
    categorical = next((each for each in columns.categorical if each.name == name), None)
    if categorical is not None:
        return Cells(name, (*categorical.values, MISSING))
    if name == columns.label:
        return Cells(name, columns.class_names, may_miss=False)
    if name in columns.label_names:
        return Cells(name, columns.values(name), may_miss=False)
    known = [*columns.inputs, *columns.label_names]
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean '{near[0]}'? there" if near else "there"
    raise LearningError(
        f"{setting}: '{name}' is neither an input nor a label of the declaration: {EDGES_NOTE}; {meant} "
        f"are {', '.join(known)}"
    )
