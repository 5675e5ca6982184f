"""Collects a noised histogram of update norms before the first round: does the clipping norm fit?"""

from typing import TYPE_CHECKING, Self

from gdpfed.learning.models import flatten
from gdpfed.methods.base import SumRequest
from gdpfed.methods.norm_histogram import norm_request
from gdpfed.privacy.sums_once import NormHistogram
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.extensions.norms_result import UpdateNorms

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun

NOT_COUNTED = "norms of updates were not counted: {}; what was charged stays charged"


class NormsBeforeRounds(Extension):
    """Collects one noised histogram of clients' update norms by a secure sum before the first round."""

    key = "norm_histogram"

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if its privacy plan includes no histogram of norms."""
        return cls() if isinstance(run.method.plan.first, NormHistogram) else None

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the request for the histogram of update norms, as if all clients could be reached."""
        everybody = run.method.plan.clients
        return [norm_request(run.method, flatten(run.task.build_model()), everybody)]

    def before_rounds(self, run: "OpenRun") -> None:
        """Collect the histogram of norms from all reachable clients, once; log what it shows."""
        loop, method = run.loop, run.prepared.method
        if "norm_histogram" in loop.state.ledger.charged_once:
            return
        request = norm_request(method, run.theta, run.there(0))
        summed = run.sum_once(request, NormHistogram.index(method.plan.num_rounds))
        found = UpdateNorms.of(method.plan.clipping_norm, summed)
        if found is None:
            loop.announce(NOT_COUNTED.format(summed.failure))
        else:
            found.save(loop.files.path)
            loop.announce(found.summary)
