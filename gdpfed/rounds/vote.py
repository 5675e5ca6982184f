"""The vote of a run: one charged sum before its first round, and the setting that it chooses."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from conf.schema import VOTABLE, Config
from gdpfed.errors import RunError
from gdpfed.files import save_whole
from gdpfed.methods.base import ClientSum
from gdpfed.methods.vote import Setting, settings_of
from gdpfed.runs.file_formats import VERSION_KEY, VOTE_FILE, check_version, versioned

NO_VOTE = "no vote: {}; what was charged stays charged, and the run goes on with {}"


@dataclass(frozen=True)
class VoteResult:
    """What clients have voted.

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
        """Return what the sum of votes says; None where there is none."""
        if summed.total is None:
            return None
        return cls(summed.survivors, summed.noise_stddev, settings_of(config), summed.total.tolist())

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the result of a run; None where it has none.

        Raises:
            RunError: its file is damaged, or of another format.
        """
        path = directory / VOTE_FILE
        if not path.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            check_version(path, values.pop(VERSION_KEY, None))
            return cls(**values)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{path} cannot be read as a vote: {error}") from None

    def save(self, directory: Path) -> None:
        """Write the file of a run."""
        text = json.dumps(versioned(asdict(self)), allow_nan=False, indent=1)
        save_whole(directory / VOTE_FILE, text.encode() + b"\n")

    @property
    def chosen(self) -> Setting:
        """The setting with the most votes."""
        return tuple(map(float, self.settings[int(np.argmax(self.votes))]))

    @property
    def lines(self) -> list[str]:
        """One line a setting, that with the most votes first."""
        asked = [len(set(values)) > 1 for values in zip(*self.settings, strict=True)]
        order = np.argsort(self.votes)[::-1]
        return [
            f"{in_words(self.settings[number], asked)}: {self.votes[number]:.1f} votes" for number in order
        ]


def in_words(setting: Sequence[float], asked: Sequence[bool] = (True,) * len(VOTABLE)) -> str:
    """Return a setting as it is configured, as far as clients were asked."""
    named = zip(VOTABLE, setting, asked, strict=True)
    return ", ".join(f"training.{key}={value:g}" for key, value, is_asked in named if is_asked)
