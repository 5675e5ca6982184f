"""A value over several seeds: its mean and its sample standard deviation."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Self


@dataclass(frozen=True)
class Spread:
    """Mean over ``count`` values; ``stddev`` divides by count - 1 and is None for a single value."""

    mean: float
    stddev: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Compute the spread of one value or more."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, form: str = ".1f") -> str:
        """``mean ± stddev``, or the value alone."""
        spread = "" if self.stddev is None else f" ± {self.stddev:{form}}"
        return f"{self.mean:{form}}{spread}"
