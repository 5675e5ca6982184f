"""Metrics for monitoring systems such as Prometheus: their names, and how to read them from files."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cryptography import x509

from gdpfed.errors import GDPFedError, ReportError, line_of
from gdpfed.report.run_status import GOES_ON, RunStatus

READABLE = "gdpfed_readable"
COUNTERS = frozenset({"gdpfed_node_refusals_total"})
EXPORTED: Mapping[str, str] = {
    READABLE: "1 where the files could be read, 0 where not",
    "gdpfed_certificate_expires_timestamp_seconds": "when the first certificate of a file is no longer valid",
    "gdpfed_run_goes_on": "1 of a run that is under way or interrupted, 0 of one that is complete or paused",
    "gdpfed_run_rounds": "rounds that are done",
    "gdpfed_run_rounds_planned": "rounds of the plan",
    "gdpfed_run_sums_failed": "sums that there are not, of all rounds",
    "gdpfed_run_rounds_not_summed": "rounds that have no sum at all",
    "gdpfed_run_clients": "clients of a group",
    "gdpfed_run_epsilon_budget": "epsilon that a group may spend",
    "gdpfed_run_epsilon_spent": "epsilon that a group has spent, as of the last round",
    "gdpfed_run_round_seconds": "wall time of the last round; where cohorts may be shown",
    "gdpfed_run_last_round_timestamp_seconds": "when the last round ended; where cohorts may be shown",
    "gdpfed_run_clients_present": "clients of a group that could be reached; where cohorts may be shown",
    "gdpfed_run_survivors": "clients in a sum of the last round; where cohorts may be shown",
    "gdpfed_node_ledger_sound": "1 where the ledger is sound and within its budgets",
    "gdpfed_node_epsilon_budget": "epsilon that a node may spend, or its records",
    "gdpfed_node_epsilon_spent": "epsilon of all runs of a node",
    "gdpfed_node_epsilon_left": "how far that is below the budget",
    "gdpfed_node_refusals_total": "refusals in the journal that neither data nor a secret sample decide",
    "gdpfed_node_last_message_timestamp_seconds": "when a message last came that no secret sample decides",
}
"""Every figure and what it means; nothing that a secret sample or a node's data decides is among them."""


@dataclass(frozen=True)
class Figure:
    """One value of a metric for monitoring, with its name and labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[], Iterable[Figure]]


def run_figures(path: Path) -> Iterator[Figure]:
    """Read the monitoring metrics of a run, or of the newest run in a folder.

    That a sum failed is among them, as it is in status lines: the released model tells it, too.

    Raises ReportError, RunError: as `RunStatus.read`.
    """
    status = RunStatus.read(path)
    run = {"run": status.path.name}
    yield Figure("gdpfed_run_goes_on", float(status.state == GOES_ON), run)
    yield Figure("gdpfed_run_rounds", status.rounds, run)
    yield Figure("gdpfed_run_rounds_planned", status.num_rounds, run)
    yield Figure("gdpfed_run_sums_failed", status.failed, run)
    yield Figure("gdpfed_run_rounds_not_summed", status.without_a_sum, run)
    for each in status.groups:
        group = run | {"group": str(each.group)}
        yield Figure("gdpfed_run_clients", each.clients, group)
        if each.budget is not None and each.spent is not None:
            yield Figure("gdpfed_run_epsilon_budget", each.budget, group)
            yield Figure("gdpfed_run_epsilon_spent", each.spent, group)
    shown = status.cohorts
    if shown is None:
        return
    yield Figure("gdpfed_run_last_round_timestamp_seconds", status.changed, run)
    if shown.seconds is not None:
        yield Figure("gdpfed_run_round_seconds", shown.seconds, run)
    for index, present in enumerate(shown.present):
        yield Figure("gdpfed_run_clients_present", present, run | {"group": str(index)})
    for index, survivors in enumerate(shown.survivors):
        yield Figure("gdpfed_run_survivors", survivors, run | {"sum": str(index)})


def certificate_figures(path: Path) -> Iterator[Figure]:
    """Yield a metric for monitoring: when the first of the TLS certificates in a file expires.

    Raises ReportError: the file cannot be read, or has none.
    """
    try:
        ends = [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(path.read_bytes())]
    except (OSError, ValueError) as error:
        raise ReportError(
            f"--certificate {path} is not a file of certificates (PEM): {error}; name another file"
        ) from None
    yield Figure(
        "gdpfed_certificate_expires_timestamp_seconds", min(ends).timestamp(), {"certificate": str(path)}
    )


@dataclass(frozen=True)
class Source:
    """A source of monitoring metrics: its name, and the function that reads them from files."""

    name: str
    read: Read

    def figures(self) -> list[Figure]:
        """Return the source's metrics, and one more that says whether the source could be read."""
        readable = {"of": self.name}
        try:
            return [*self.read(), Figure(READABLE, 1.0, readable)]
        except GDPFedError as error:
            print(f"gdpfed: {line_of(error)}", file=sys.stderr)
            return [Figure(READABLE, 0.0, readable)]


def certificate_sources(paths: Iterable[Path]) -> list[Source]:
    """Return a source of monitoring metrics for each file of TLS certificates."""
    return [Source(str(path), partial(certificate_figures, path)) for path in paths]
