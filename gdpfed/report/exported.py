"""Figures for Prometheus: what each means, those of a run, and a server for them, an optional extra.

``pip install 'gdpfed[metrics]'``. They are read from files at every scrape, in a process of its own, so that
neither a run nor a node waits for it.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.errors import ConfigError, GDPFedError, ReportError, line_of
from gdpfed.report.run_status import GOES_ON, RunStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
READABLE = "gdpfed_readable"
COUNTERS = frozenset({"gdpfed_node_refusals_total"})
EXPORTED: Mapping[str, str] = {
    READABLE: "1 where the files could be read, 0 where not",
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
    """One value of a name in `EXPORTED`, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[], Iterable[Figure]]


def run_figures(path: Path) -> Iterator[Figure]:
    """Read the figures of a run, or of the newest run in a folder.

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


@dataclass(frozen=True)
class Source:
    """Files that figures are read from: what they are called, and how."""

    name: str
    read: Read

    def figures(self) -> list[Figure]:
        """Return the figures, and whether there are any: files may come later, or be written right now."""
        readable = {"of": self.name}
        try:
            return [*self.read(), Figure(READABLE, 1.0, readable)]
        except GDPFedError as error:
            print(f"gdpfed: {line_of(error)}", file=sys.stderr)
            return [Figure(READABLE, 0.0, readable)]


class Scraped:
    """The figures of some sources, read at every scrape."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def collect(self) -> Iterator["Metric"]:
        """Yield one metric a name, as the library takes them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = [figure for source in self._sources for figure in source.figures()]
        for name in dict.fromkeys(figure.name for figure in found):
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            own = [figure for figure in found if figure.name == name]
            metric = kind(name, EXPORTED[name], labels=list(own[0].labels))
            for figure in own:
                metric.add_metric(list(figure.labels.values()), figure.value)
            yield metric


def address(text: str) -> tuple[str, int]:
    """Read [HOST:]PORT; the host is this machine's loopback unless it is said.

    Raises ConfigError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= HIGHEST_PORT):
        raise ConfigError(f"--listen {text} is no [HOST:]PORT, as in 9470 or 0.0.0.0:9470")
    return host.strip("[]") or LOOPBACK, int(port)


def serve(sources: Iterable[Source], listen: str, stop: threading.Event | None = None) -> None:
    """Answer ``/metrics`` until the process is interrupted, or told to stop.

    Raises:
        ReportError: the library is not installed.
        ConfigError: the address is none, or cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ReportError("prometheus-client is not installed: pip install 'gdpfed[metrics]'") from None
    host, port = address(listen)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scraped(sources))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--listen {listen} cannot be used: {error.strerror or error}") from None
    print(f"metrics at http://{host}:{server.server_port}/metrics", flush=True)
    try:
        (stop or threading.Event()).wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
