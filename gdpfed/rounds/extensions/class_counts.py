"""Noised class counts, which every client releases once before the first round if sampling uses them."""

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from gdpfed.clients.configured import require_classes
from gdpfed.errors import RunError
from gdpfed.learning.task import Task
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.ledgers.charged import ChargedCounts
from gdpfed.privacy.mechanism_options import OwnTotals, counts_rho
from gdpfed.privacy.release import CountsRequest
from gdpfed.rounds.extensions.base import Extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdpfed.rounds.fleet import Fleet
    from gdpfed.rounds.run import OpenRun, PreparedRun

NO_COUNTS = (
    "method.client_sampling=fed_cbs has every client release its class counts, for which there is no message "
    "to nodes: use gdpfed simulate, or another method.client_sampling"
)


@runtime_checkable
class ReleasesCounts(Protocol):
    """Interface of fleets (objects that run a run's clients) that can ask clients for their class counts."""

    def release_counts(self, task: Task, charged: ChargedCounts) -> npt.NDArray[np.float64]:
        """Return one row of class counts for each client, with noise that the client has added."""


class ClassCounts(Extension):
    """Collects every client's noised class counts, with which the training method samples its cohorts."""

    key = "class_counts"

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if the sampling of cohorts needs no class counts."""
        return cls() if counts_rho(run.method.plan.mechanism) else None

    def check(self, run: "PreparedRun", fleet: "Fleet", requests: "Sequence[SumRequest]") -> None:
        """Raise an error if labels are not classes, or if the fleet cannot ask clients for class counts.

        Raises ConfigError, RunError: before anything is written or charged.
        """
        if not isinstance(fleet, ReleasesCounts):
            raise RunError(NO_COUNTS)
        require_classes(run.task.load(), run.task.source.name)

    def opened_run(self, run: "OpenRun") -> None:
        """Collect class counts from every client, if not done before, and give them to the method.

        They are charged, and that is on the disk, before any client adds its noise. So they are never
        released a second time: where they are charged and not there, the run is over.

        Raises RunError: they are charged, and their file is missing or damaged.
        """
        loop, method = run.loop, run.prepared.method
        ledger, files, fleet = loop.state.ledger, loop.files, loop.fleet
        mechanism = method.plan.mechanism
        if (
            not ledger.counts_charged
            and isinstance(fleet, ReleasesCounts)
            and isinstance(mechanism, OwnTotals)
        ):
            noise = CountsRequest(noise_stddev=mechanism.counts_noise)
            charged = ledger.charge_counts(noise)
            files.save_ledger(ledger)
            files.save_counts(fleet.release_counts(run.prepared.task, charged))
        method.take_counts(files.load_counts(method.plan.num_clients))
