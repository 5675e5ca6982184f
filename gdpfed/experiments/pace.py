"""How long is left, from the rounds seen so far."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean


class Pace:
    """Seconds a round by data set, as far as rounds of it have been seen."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def see(self, dataset: str, seconds: Mapping[str, float]) -> None:
        """Take in one round's seconds by phase."""
        if "total" in seconds:
            self._seconds[dataset].append(seconds["total"])

    def left(self, rounds: Iterable[tuple[str, int]]) -> float | None:
        """Seconds for so many rounds of these data sets; None as long as nothing has been seen.

        A data set that has not been seen counts as the mean of the others.
        """
        if not self._seconds:
            return None
        mean = fmean(fmean(each) for each in self._seconds.values())
        return sum(
            count * (fmean(self._seconds[dataset]) if dataset in self._seconds else mean)
            for dataset, count in rounds
        )


def clock(seconds: float | None) -> str:
    """``h:mm:ss``, or a question mark."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
