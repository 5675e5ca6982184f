"""Noised class counts, which every client releases once before the first round if sampling uses them."""

from gdpfed.clients.configured import require_classes
from gdpfed.errors import RunError
from gdpfed.learning.task import Task
from gdpfed.methods.base import Method
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.release import CountsRequest
from gdpfed.rounds.fleet import NO_COUNTS, Fleet
from gdpfed.runs.directory import RunDirectory


def refuse_without_counts(fleet: Fleet, method: Method, task: Task) -> None:
    """Refuse a run whose clients have no class counts to release, or no way to.

    Raises:
        ConfigError, RunError: before anything is written or charged.
    """
    if not method.plan.mechanism.counts_rho:
        return
    if not fleet.releases_counts:
        raise RunError(NO_COUNTS)
    require_classes(task.load().labels, task.source.name)


def with_released_counts(
    fleet: Fleet, method: Method, task: Task, ledger: Ledger, files: RunDirectory
) -> None:
    """Have every client release its class counts, unless it has; then give them to the method.

    They are charged, and that is on the disk, before any client adds its noise. So they are never released a
    second time: where they are charged and not there, the run is over.

    Raises:
        RunError: they are charged, and their file is missing or damaged.
    """
    plan = method.plan
    if not plan.mechanism.counts_rho:
        return
    if not ledger.counts_charged:
        charged = ledger.charge_counts(CountsRequest(noise_stddev=plan.mechanism.counts_noise))
        files.save_ledger(ledger)
        files.save_counts(fleet.release_counts(task, charged))
    method.take_counts(files.load_counts(plan.num_clients))
