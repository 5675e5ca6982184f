"""Labels of survival data: the declared columns, and each label as two numbers (time and event).

Time is cut into intervals with declared ends 0 < e_1 < ... < e_J, the last of which is the horizon. Interval
j is (e_(j-1), e_j], and the first one holds time 0 as well. A label is

* a position p in [0, J]: j - 1 + (t - e_(j-1)) / (e_j - e_(j-1)) of a time t in interval j, and J beyond the
  horizon. It rises with the time, so it keeps the order of times; whole numbers are the ends of intervals;
* 1 where the event happened at that time, up to the horizon, and 0 where nothing had happened until then:
  the record is *censored*.

**Who is at risk.** One with an event in interval j survived the j - 1 before. One that is censored survived
as many intervals as the position rounds to: those that it saw at least half of (Gensheimer and Narasimhan,
PeerJ 7, 2019, e6257). One that is censored at the very end of an interval survived it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.yaml_parts import Part

MOST_INTERVALS, MOST_NAMED = 1000, 6
ZERO_ONE: tuple[tuple[str, ...], tuple[str, ...]] = (("0",), ("1",))
"""The values of censored records and of events, where no others are declared."""
Positions = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TimesToEvent:
    """The declared columns of survival data: the time, and whether the event happened or was censored.

    Attributes:
        time: the column of numbers from 0, in any unit.
        event: the column that says which of both a time is.
        censored, happened: its values where nothing had happened until then, and where the event did.
        edges: the ends of the intervals, in the unit of the time, rising from above 0.
    """

    time: str
    event: str
    censored: tuple[str, ...]
    happened: tuple[str, ...]
    edges: tuple[float, ...]

    @property
    def horizon(self) -> float:
        """The end of the last time interval; later times are replaced by it and count as censored."""
        return self.edges[-1]

    @property
    def interval_names(self) -> tuple[str, ...]:
        """The names of the time intervals: the times at which they end."""
        return tuple(f"{edge:.10g}" for edge in self.edges)

    @property
    def numbers(self) -> Mapping[str, int]:
        """The meaning of each declared value of the event column: 0 for censored, 1 for an event."""
        return dict.fromkeys(self.censored, 0) | dict.fromkeys(self.happened, 1)

    def labels(self, times: npt.NDArray[np.float64], happened: npt.NDArray[np.int64]) -> Positions:
        """Convert times and events to labels float32[N,2]: time, counted in intervals, and event (0 or 1).

        NaN where a time is below 0 or none, or `happened` is below 0.
        """
        ends = np.array([0.0, *self.edges])
        known = (times >= 0) & (happened >= 0)
        within = np.clip(np.where(known, times, 0.0), 0.0, self.horizon)
        at = np.searchsorted(ends[1:], within, side="left")
        low = ends[at]
        found = (at + (within - low) / (ends[at + 1] - low)).astype(np.float32)
        # Rounding to 32 bits moves no time over the end of its interval.
        least = np.where(within > low, np.nextafter(at.astype(np.float32), np.float32(np.inf)), 0)
        found = np.clip(found, least, (at + 1).astype(np.float32))
        event = (happened > 0) & (times <= self.horizon)
        return np.where(known[:, None], np.stack([found, event], axis=1), np.nan).astype(np.float32)

    def to_values(self) -> dict[str, Any]:
        """Return the declaration as mappings and lists, in the form that `read_times` reads from YAML."""
        event = {"column": self.event, "censored": list(self.censored), "happened": list(self.happened)}
        return {"time": self.time, "event": event, "edges": list(self.edges)}


def interval_of(positions: Positions) -> npt.NDArray[np.int64]:
    """Return, for each position in time, the index of the interval that it is in: float32[N] -> int64[N]."""
    found: npt.NDArray[np.int64] = np.maximum(np.ceil(positions) - 1, 0).astype(np.int64)
    return found


def survived(positions: Positions) -> npt.NDArray[np.int64]:
    """Return how many whole time intervals censored records survived, rounded: float32[N] -> int64[N]."""
    found: npt.NDArray[np.int64] = np.floor(positions + np.float32(0.5)).astype(np.int64)
    return found


@dataclass
class Followed:
    """Counts events and censored records while a table is read.

    Attributes:
        times: the declaration.
        events: how many events each interval has, int64[J].
        censored: how many records end before the horizon without one.
        beyond: how many reach the horizon without one.
    """

    times: TimesToEvent
    censored: int = 0
    beyond: int = 0

    def __post_init__(self) -> None:
        self.events = np.zeros(len(self.times.edges), np.int64)

    def note(self, labels: npt.NDArray[Any]) -> None:
        """Count events and censored records among labels, float32[N,2]; invalid labels are skipped."""
        known = labels[~np.isnan(labels).any(axis=1)]
        event = known[:, 1] > 0
        self.events += np.bincount(interval_of(known[event, 0]), minlength=len(self.events))
        reach = int((known[~event, 0] == len(self.events)).sum())
        self.beyond += reach
        self.censored += int((~event).sum()) - reach

    def words(self) -> Iterator[str]:
        """Yield notes on events, censored records and likely mistakes, one line each."""
        events, horizon = int(self.events.sum()), f"{self.times.horizon:.10g}"
        yield (
            f"columns '{self.times.time}' and '{self.times.event}': {events} events up to {horizon}, "
            f"{self.censored} records censored before it, {self.beyond} without an event until then"
        )
        without = np.flatnonzero(self.events == 0)
        if not events:
            yield f"there is no event up to {horizon}: of such labels nothing is learnt"
        elif len(without):
            names = [self.times.interval_names[at] for at in without.tolist()]
            shown = ", ".join(names[:MOST_NAMED]) + " ..." * (len(names) > MOST_NAMED)
            yield f"{len(names)} of {len(self.events)} intervals hold no event, those that end at {shown}"


def read_times(label: Part) -> TimesToEvent:
    """Read the declaration of survival labels: columns of time and event, and the ends of time intervals.

    Raises LearningError: it is none; one line that names what is wrong.
    """
    found = label.mapping(required=("time", "event"), allowed=("edges", "intervals", "horizon"))
    event, censored, happened = found["event"], *ZERO_ONE
    if isinstance(event.values, str):
        name = event.text()
    else:
        said = event.mapping(required=("column", "censored", "happened"), allowed=())
        name = said["column"].text()
        censored, happened = (
            (part.text(),) if isinstance(part.values, str) else part.values_once()
            for part in (said["censored"], said["happened"])
        )
    if shared := {*censored} & {*happened}:
        raise event.wrong(f"values for censored and for happened that differ, and '{min(shared)}' is both")
    time = found["time"].text()

    if ("edges" in found) == ("intervals" in found) or ("intervals" in found) != ("horizon" in found):
        raise LearningError(
            f"{label.place}: label has a time, so it must have edges, the ends of its intervals as in "
            "[30, 90, 365], or intervals and a horizon, as in intervals: 12, horizon: 365"
        )
    if "edges" in found:
        edges = tuple(each.number() for each in found["edges"].list())
        if list(edges) != sorted({*edges}) or edges[0] <= 0 or len(edges) > MOST_INTERVALS:
            raise found["edges"].wrong(
                f"rising numbers above 0, {MOST_INTERVALS} at most, as in [30, 90, 365]"
            )
        return TimesToEvent(time, name, censored, happened, edges)
    count, horizon = found["intervals"].number(), found["horizon"].number()
    if count % 1 or not 1 <= count <= MOST_INTERVALS:
        raise found["intervals"].wrong(f"a whole number from 1 to {MOST_INTERVALS}")
    if horizon <= 0:
        raise found["horizon"].wrong("a number above 0, in the unit of the time")
    edges = tuple(horizon * number / int(count) for number in range(1, int(count) + 1))
    return TimesToEvent(time, name, censored, happened, edges)
