"""The vote of a run: one charged sum before its first round, and the setting that it chooses."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from conf.schema import VOTABLE, Config
from gdpfed.clients.configured import training_of
from gdpfed.learning.models import flatten
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.methods.vote import RecordRun, Setting, settings_of, vote_request, with_setting
from gdpfed.privacy.sums_once import Vote
from gdpfed.rounds.extensions.base import Extension
from gdpfed.runs.file_formats import VOTE_FILE, read_result, save_result

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun

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
        return read_result(directory / VOTE_FILE, "a vote", lambda values: cls(**values))

    def save(self, directory: Path) -> None:
        """Write the file of a run."""
        save_result(directory / VOTE_FILE, asdict(self))

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


class ClientVote(Extension):
    """Clients vote on settings, once, and the run goes on with what they chose.

    Where there is no sum, or a process ended before it was written down, the run has its own settings.
    """

    key = "vote"

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return that of a run; None where its plan pays for no vote."""
        return None if run.method.plan.vote is None else cls()

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the request for everybody's vote."""
        everybody = [client for group in run.method.plan.groups for client in group.clients]
        return [vote_request(run.method, flatten(run.task.build_model()), everybody, run.config)]

    def before_rounds(self, run: "OpenRun") -> None:
        """Have whoever is there vote, unless that is charged already; then train by the setting that won."""
        loop, config, method = run.loop, run.prepared.config, run.prepared.method
        path = loop.files.path
        if "vote" not in loop.state.ledger.charged_once:
            request = vote_request(method, run.theta, run.there(0), config)
            summed = run.sum_once(request, Vote.index(method.plan.num_rounds))
            result = VoteResult.of(config, summed)
            if result is None:
                configured = in_words([getattr(config.training, key) for key in VOTABLE])
                loop.announce(NO_VOTE.format(summed.failure, configured))
            else:
                result.save(path)
                loop.announce("; ".join([f"{result.clients} clients voted", *result.lines]))
        chosen = VoteResult.read(path)
        if chosen is not None:
            voted = with_setting(config, chosen.chosen)
            if method.plan.about_records:
                cast("RecordRun", method).config = voted
            loop.training_of = partial(training_of, voted)
