"""Cuts a CSV file into records by line ends and quotes; Arrow's parser must find equally many records.

A quote counts as one where a field begins; the next one that is not doubled closes it, and a line end between
them is part of a text. So a stray quote swallows rows, and no parser can tell. What is inside of a quote is
looked at here: lines that read as rows of the table are rows that a quote has swallowed.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError

Positions = npt.NDArray[np.int64]
IsRow = Callable[[list[str]], bool]

LARGEST_RECORD = 2**31 - 2**16
"""Bytes of a record; Arrow's texts end there."""
QUOTE, LINE_FEED, RETURN = b'"'[0], b"\n"[0], b"\r"[0]
MARK = "\ufeff".encode()
REMEDY = "close it, or double it where it belongs to a text"


@dataclass(frozen=True, eq=False)
class Records:
    """Several complete records of a CSV file, as bytes, with the number of the line where each begins.

    `data`: their bytes, UTF-8. `lines`: in which line of the file each begins, from 1, shape (N,); empty
    lines are not records.
    """

    data: bytes
    lines: Positions


@dataclass(frozen=True, eq=False)
class _Scan:
    """A block of a CSV file's bytes, with the positions of its line ends and quotes.

    Attributes:
        ends: where lines end, the positions of their last bytes.
        toggles: where quotes open and close, in turn.
        inside: which line ends are part of a quoted text.
    """

    data: bytes
    ends: Positions
    toggles: Positions
    inside: npt.NDArray[np.bool_]

    @property
    def record_ends(self) -> Positions:
        return self.ends[~self.inside]


class RecordReader:
    """Cuts blocks of a CSV file into complete records; `is_row` finds table rows inside an unclosed quote.

    `line`: the line of the file that the blocks begin with.

    Attributes:
        header: the names of the columns, of the first record; set by whoever has read it.
    """

    def __init__(
        self, blocks: Iterator[bytes], separator: str, place: str, is_row: IsRow, *, line: int = 1
    ) -> None:
        self._blocks, self._place, self._is_row = blocks, place, is_row
        self._separator = separator.encode()
        self._line = line
        self._rest = b""
        self._over = False
        self.header: Sequence[str] = ()

    def first(self) -> Records | None:
        """Return the next non-empty record, which later calls do not return again; None if there is none."""
        while True:
            scan = self._scanned()
            for number, end in enumerate(scan.record_ends.tolist()):
                begin = int(scan.record_ends[number - 1]) + 1 if number else 0
                if scan.data[begin : end + 1].strip(b"\r\n"):
                    return self._taken(scan, begin, end + 1)
            if self._over:
                return self._taken(scan, 0, len(scan.data)) if scan.data.strip(b"\r\n") else None
            self._more()

    def look(self) -> None:
        """Read a first block of the file, unless that was done before."""
        if not self._rest and not self._over:
            self._more()

    def records_below(self, most: int) -> list[str]:
        """Return up to `most` of the next non-empty records, without removing them from the buffer."""
        scan = self._scanned()
        ends = pairwise([0, *(scan.record_ends + 1).tolist(), len(scan.data)])
        records = (scan.data[begin:end].strip(b"\r\n").decode(errors="replace") for begin, end in ends)
        return list(islice((record for record in records if record.strip()), most))

    def _taken(self, scan: _Scan, begin: int, end: int) -> Records:
        """Return the record from ``begin`` to ``end``; remove all bytes before ``end`` from the buffer."""
        line = self._line + int(np.searchsorted(scan.ends, begin))
        self._line += int(np.searchsorted(scan.ends, end))
        self._rest = scan.data[end:]
        self._refuse_open(scan, end)
        return Records(scan.data[begin:end], np.array([line], dtype=np.int64))

    def __iter__(self) -> Iterator[Records]:
        """Yield all records of the file that `first` has not returned, in groups of many records.

        Raises LearningError: a quote that has swallowed rows, or is not closed.
        """
        while True:
            scan = self._scanned()
            ends = scan.record_ends
            cut = len(scan.data) if self._over else int(ends[-1]) + 1 if len(ends) else 0
            self._refuse_swallowed(scan, cut)
            if self._over:
                self._refuse_open(scan, cut)
            if cut:
                outside = np.flatnonzero(~scan.inside & (scan.ends < cut))
                starts = np.concatenate([[0], scan.ends[outside] + 1])
                stops = np.append(scan.ends[outside], cut)
                lines = self._line + np.concatenate([[0], outside + 1])
                values = np.frombuffer(scan.data, dtype=np.uint8)
                # Of an empty line there is nothing, or the first half of its end.
                alone = (stops == starts + 1) & (values[np.minimum(starts, len(values) - 1)] == RETURN)
                filled = (stops > starts) & ~alone
                self._refuse_mark(scan.data, cut, starts, lines)
                self._line += int(np.searchsorted(scan.ends, cut))
                self._rest = scan.data[cut:]
                if filled.any():
                    yield Records(scan.data[:cut], lines[filled])
            if self._over:
                return
            self._more()

    def _more(self) -> None:
        """Read more of the file, until the number of unparsed bytes has doubled or the file ends.

        So the unparsed part doubles, and a long record is scanned only a few times.
        """
        parts, wanted = [self._rest], max(1, len(self._rest))
        while wanted > 0 and not self._over:
            block = next(self._blocks, None)
            self._over = block is None
            parts.append(block or b"")
            wanted -= len(parts[-1])
        self._rest = b"".join(parts)
        if len(self._rest) > LARGEST_RECORD:
            raise LearningError(
                f"{self._place}: the record in line {self._line} has more than 2 GiB: is a quote not closed?"
            )

    def _scanned(self) -> _Scan:
        data = self._rest
        values = np.frombuffer(data, dtype=np.uint8)
        ends = np.flatnonzero(values == LINE_FEED)
        if b"\r" in data:
            returns = np.flatnonzero(values == RETURN)
            # What follows the last byte may be still to come.
            known = returns[returns < len(data) - (0 if self._over else 1)]
            alone = known[values[np.minimum(known + 1, len(data) - 1)] != LINE_FEED]
            ends = np.union1d(ends, alone)
        toggles = _toggles(data, values, self._separator[0]) if b'"' in data else np.zeros(0, np.int64)
        inside = np.searchsorted(toggles, ends) % 2 == 1
        return _Scan(data, ends, toggles, inside)

    def _refuse_mark(self, data: bytes, cut: int, starts: Positions, lines: Positions) -> None:
        """Raise LearningError if a record begins with a byte order mark, which the first of a file loses."""
        if data.find(MARK, 0, cut) >= 0:
            for start, line in zip(starts.tolist(), lines.tolist(), strict=True):
                if data.startswith(MARK, start):
                    raise LearningError(
                        f"{self._place}: line {line} begins with a byte order mark (U+FEFF): take it out"
                    )

    def _refuse_open(self, scan: _Scan, cut: int) -> None:
        """Raise LearningError if a quote is not closed before the end of the file."""
        before = int(np.searchsorted(scan.toggles, cut))
        if before % 2 == 0:
            return
        opened = int(scan.toggles[before - 1])
        lines = len(scan.ends) - int(np.searchsorted(scan.ends, opened))
        lines -= int(scan.data.endswith((b"\n", b"\r")))
        place = self._place_of(scan, opened)
        raise LearningError(f"{place}, is not closed: {lines} lines are inside it; {REMEDY}")

    def _refuse_swallowed(self, scan: _Scan, cut: int) -> None:
        """Raise LearningError if a quoted text spans several lines that look like rows of the table.

        `cut`: where the records end that are whole.
        """
        if not scan.inside.any() or len(self.header) < 2:
            return
        opens = scan.toggles[: len(scan.toggles) // 2 * 2 : 2]
        closes = scan.toggles[1::2]
        first, last = np.searchsorted(scan.ends, opens), np.searchsorted(scan.ends, closes)
        separators = np.flatnonzero(np.frombuffer(scan.data, dtype=np.uint8) == self._separator[0])
        starts = np.concatenate([[0], scan.ends + 1, [len(scan.data)]])
        whole = np.diff(np.searchsorted(separators, starts)) >= len(self.header) - 1
        for cell in np.flatnonzero((last > first) & (closes < cut)).tolist():
            begin, end = int(first[cell]), int(last[cell])
            after = scan.data[int(closes[cell]) + 1 : int(closes[cell]) + 2]
            inner = [begin + 1 + int(at) for at in np.flatnonzero(whole[begin + 1 : end])]
            swallowed = any(self._reads_as_row(scan.data[starts[line] : starts[line + 1]]) for line in inner)
            if not swallowed and whole[end]:
                # A text in the middle of its row leaves too few values for the line in which it ends.
                in_middle = scan.data[int(opens[cell]) - 1 : int(opens[cell])] == self._separator
                borders = (end,) if in_middle else (begin, end)
                lines = (scan.data[starts[line] : starts[line + 1]] for line in borders)
                swallowed = bool(in_middle or whole[begin]) and all(map(self._reads_as_row, lines))
            if swallowed or after not in (b"", b"\n", b"\r", self._separator):
                where = self._place_of(scan, int(opens[cell]))
                raise LearningError(
                    f"{where}, is closed in line {self._line + end} only: {end - begin} lines are inside it, "
                    f"{'and read as rows' if swallowed else 'and a text follows it'}; {REMEDY}"
                )

    def _reads_as_row(self, line: bytes) -> bool:
        fields = split(line.decode(errors="replace"), self._separator.decode())
        return len(fields) == len(self.header) and self._is_row([field.strip() for field in fields])

    def _place_of(self, scan: _Scan, opened: int) -> str:
        """Describe where a quote is, by line and column."""
        before = scan.record_ends[scan.record_ends < opened]
        begin = int(before[-1]) + 1 if len(before) else 0
        values = np.frombuffer(scan.data, dtype=np.uint8)[begin:opened]
        separators = begin + np.flatnonzero(values == self._separator[0])
        column = int((np.searchsorted(scan.toggles, separators) % 2 == 0).sum())
        name = f"'{self.header[column]}'" if column < len(self.header) else str(column + 1)
        line = self._line + int(np.searchsorted(scan.ends, opened))
        return f"{self._place}: the quote in line {line}, column {name}"


def split(line: str, separator: str) -> list[str]:
    """Split a line of a CSV file into fields; an unclosed quote is treated as text."""
    try:
        return next(csv.reader([line.strip("\r\n")], delimiter=separator), [])
    except csv.Error:
        return line.split(separator)


def _toggles(data: bytes, values: npt.NDArray[np.uint8], separator: int) -> Positions:
    """Return the positions of the quotes that open or close a field, ascending: open, close, open, ..."""
    quotes = np.flatnonzero(values == QUOTE)
    borders = np.zeros(256, dtype=np.bool_)
    borders[[separator, LINE_FEED, RETURN]] = True
    doubled = np.diff(quotes) == 1
    opens, closes = quotes[::2], quotes[1::2]
    opening = (opens == 0) | borders[values[np.maximum(opens - 1, 0)]]
    opening[1:] |= doubled[1::2]
    closing = (closes == len(data) - 1) | borders[values[np.minimum(closes + 1, len(data) - 1)]]
    follows = doubled[1::2]
    closing[: len(follows)] |= follows
    if opening.all() and closing.all():
        # Where every quote stands where it may, they open and close in turn, but for those that are doubled.
        kept = np.ones(len(quotes), dtype=np.bool_)
        kept[1 : 2 * len(follows) + 1] &= ~np.repeat(follows, 2)
        return quotes[kept]

    # One by one, which is slow, but right for quotes within texts.
    places = quotes.tolist()
    toggles, is_open, passed_over = list[int](), False, -1
    for number, at in enumerate(places):
        if at == passed_over:
            continue
        if not is_open:
            if at == 0 or borders[data[at - 1]]:
                toggles.append(at)
                is_open = True
        elif number + 1 < len(places) and places[number + 1] == at + 1:
            passed_over = at + 1
        else:
            toggles.append(at)
            is_open = False
    return np.array(toggles, dtype=np.int64)
