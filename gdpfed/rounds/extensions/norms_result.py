"""The histogram of update norms, its file, and advice on whether the clipping norm fits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Self

import numpy as np

from gdpfed.learning.labels.intervals import NORMAL_QUANTILE
from gdpfed.methods.base import ClientSum
from gdpfed.record_steps import NORM_MULTIPLES
from gdpfed.runs.file_formats import NORMS_FILE, read_result, save_result

IN_WORDS = {1 / 8: "an eighth of", 1 / 4: "a quarter of", 1 / 2: "half of", 1.0: ""}
MOST = 0.9
"""Of first updates: where more are within a multiple of C, few are clipped, and later ones, which are longer,
still fit in part."""


@dataclass(frozen=True)
class UpdateNorms:
    """How large clients' updates are before the first round, compared with the clipping norm.

    Attributes:
        clients: how many are in the sum.
        noise_stddev: of the noise in every count.
        clipping_norm: C.
        multiples: of a client's clipping norm, at which bins end; one more bin is for longer updates.
        counts: of updates in every bin, as they were released.
        within: for every multiple the share of updates that are no longer, with the ends of its interval.
    """

    clients: int
    noise_stddev: float
    clipping_norm: float
    multiples: Sequence[float]
    counts: Sequence[float]
    within: Sequence[Sequence[float]]

    @classmethod
    def of(cls, clipping_norm: float, summed: ClientSum) -> Self | None:
        """Make the result from the noised histogram of update norms; None if its sum was not computed."""
        if summed.total is None:
            return None
        counts, noise, clients = summed.total.tolist(), summed.noise_stddev, summed.survivors
        within = shares_within(counts, noise, clients)
        return cls(clients, noise, clipping_norm, NORM_MULTIPLES, counts, within)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the histogram of norms from a run's directory; None if there is none.

        Raises:
            RunError: its file is damaged, or of another format.
        """
        return read_result(directory / NORMS_FILE, "a histogram of norms", lambda values: cls(**values))

    def save(self, directory: Path) -> None:
        """Write the histogram of norms into a run's directory."""
        save_result(directory / NORMS_FILE, asdict(self))

    @property
    def fitting(self) -> float | None:
        """The smallest tested fraction of the clipping norm that very likely bounds most updates, if any."""
        known = zip(self.multiples, self.within, strict=True)
        return next((multiple for multiple, (_, low, _) in known if multiple < 1 and low > MOST), None)

    @property
    def advice(self) -> str:
        """Advise a smaller clipping norm that fits the updates; "" if none is known to fit."""
        if (multiple := self.fitting) is None:
            return ""
        return (
            "the noise is sized for steps that few make: privacy.clipping_norm="
            f"{multiple * self.clipping_norm:g} has {IN_WORDS[multiple].removesuffix(' of')} of it under the "
            "same promise, and clips longer updates"
        )

    @property
    def lines(self) -> list[str]:
        """The result as text: what percentage of updates is within each multiple of the clipping norm."""
        return [
            f"within {IN_WORDS[multiple]} the clipping norm: ".replace("  ", " ")
            + f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
            for multiple, (share, low, high) in zip(self.multiples, self.within, strict=True)
        ]

    @property
    def summary(self) -> str:
        """Say in one line whether the clipping norm fits the updates, and what to change."""
        fitting = self.fitting or 1 / 2
        share, low, high = (100 * each for each in self.within[self.multiples.index(fitting)])
        found = (
            f"about {share:.0f} % ({low:.0f} to {high:.0f}) of {self.clients} clients' first updates are "
            f"within {IN_WORDS[fitting]} privacy.clipping_norm={self.clipping_norm:g}"
        )
        if self.fitting is not None:
            return f"{found}: {self.advice}"
        if high > 100 * MOST:
            return (
                f"{found}, so under this noise nobody knows whether it is too large: more clients, or a "
                "larger privacy.norm_histogram_share, would tell"
            )
        return f"{found}: it is not too large for them"


def shares_within(counts: Sequence[float], noise_stddev: float, clients: int) -> list[list[float]]:
    """Estimate the share of updates within each multiple of the clipping norm, with a 95 % interval.

    That all k bins hold n clients is known. So the estimate of the first j is S_j - (j / k) (S_k - n), S_j
    being the sum of their counts, whose variance s^2 j (k - j) / k is the least of all that are linear and
    unbiased. Shares and ends are cut to [0, 1].
    """
    summed, bins = np.cumsum(counts), len(counts)
    upto = np.arange(1, bins)
    shares = (summed[:-1] - upto / bins * (summed[-1] - clients)) / clients
    half = [_half_width(noise_stddev, clients, last, bins) for last in upto.tolist()]
    return [
        np.clip([share, share - each, share + each], 0, 1).tolist()
        for share, each in zip(shares.tolist(), half, strict=True)
    ]


def points_open(noise_stddev: float, clients: int) -> float:
    """Return the 95 % error, in percentage points, of the share of updates within half the clipping norm."""
    last, bins = NORM_MULTIPLES.index(1 / 2) + 1, len(NORM_MULTIPLES) + 1
    return 100 * _half_width(noise_stddev, clients, last, bins)


def _half_width(noise_stddev: float, clients: int, last: int, bins: int) -> float:
    return NORMAL_QUANTILE * noise_stddev * sqrt(last * (bins - last) / bins) / clients
