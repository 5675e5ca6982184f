"""Lets clients vote on training settings in one noised sum before the first round."""

from functools import partial
from typing import TYPE_CHECKING, Self, cast

from conf.schema import VOTABLE
from gdpfed.clients.configured import training_of
from gdpfed.learning.models import flatten
from gdpfed.methods.base import SumRequest
from gdpfed.methods.vote import RecordRun, vote_request, with_setting
from gdpfed.privacy.sums_once import Vote
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.extensions.vote_result import VoteResult, in_words

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun

NO_VOTE = "no vote: {}; what was charged stays charged, and the run goes on with {}"


class ClientVote(Extension):
    """Clients vote once on settings, and the run continues with the settings that won.

    Where there is no sum, or a process ended before it was written down, the run has its own settings.
    """

    key = "vote"

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if its privacy plan includes no vote."""
        return None if run.method.plan.vote is None else cls()

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the request for the sum of votes, as if all clients could be reached."""
        everybody = run.method.plan.clients
        return [vote_request(run.method, flatten(run.task.build_model()), everybody, run.config)]

    def before_rounds(self, run: "OpenRun") -> None:
        """Have all reachable clients vote, if not done before, and use the setting that wins."""
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
