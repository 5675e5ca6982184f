"""The result of the clients' vote on training settings, and its file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from conf.schema import VOTABLE, Config
from gdpfed.methods.base import ClientSum
from gdpfed.methods.vote import Setting, settings_of
from gdpfed.runs.file_formats import VOTE_FILE, read_result, save_result


@dataclass(frozen=True)
class VoteResult:
    """The result of a vote: the settings, their noised votes, and the noise.

    Attributes:
        clients: how many are in the sum.
        noise_stddev: of the noise in every number of votes.
        settings: what was voted on, each with the values of `VOTABLE`.
        votes: of every setting, as they were released.
    """

    clients: int
    noise_stddev: float
    settings: Sequence[Sequence[float]]
    votes: Sequence[float]

    @classmethod
    def of(cls, config: Config, summed: ClientSum) -> Self | None:
        """Make the result from a noised sum of votes; return None if the sum was not computed."""
        if summed.total is None:
            return None
        return cls(summed.survivors, summed.noise_stddev, settings_of(config), summed.total.tolist())

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the result of the vote from a run's directory; None if there is none.

        Raises:
            RunError: its file is damaged, or of another format.
        """
        return read_result(directory / VOTE_FILE, "a vote", lambda values: cls(**values))

    def save(self, directory: Path) -> None:
        """Write the result of the vote into a run's directory."""
        save_result(directory / VOTE_FILE, asdict(self))

    @property
    def chosen(self) -> Setting:
        """The setting with the most votes."""
        return tuple(map(float, self.settings[int(np.argmax(self.votes))]))

    @property
    def lines(self) -> list[str]:
        """The result as text: one line for each setting, most votes first."""
        asked = [len(set(values)) > 1 for values in zip(*self.settings, strict=True)]
        order = np.argsort(self.votes)[::-1]
        return [
            f"{in_words(self.settings[number], asked)}: {self.votes[number]:.1f} votes" for number in order
        ]


def in_words(setting: Sequence[float], asked: Sequence[bool] = (True,) * len(VOTABLE)) -> str:
    """Write a candidate's settings as text, training.key=value, ...; `asked` says which of them to name."""
    named = zip(VOTABLE, setting, asked, strict=True)
    return ", ".join(f"training.{key}={value:g}" for key, value, is_asked in named if is_asked)
