"""A web server for metrics: /metrics for Prometheus, / for people, /health for supervisors.

It needs the extra ``metrics``. Figures are read from files at every request,
in a process of its own, so that neither a run nor a node waits for it.
"""

import socketserver
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from gdpfed.errors import ConfigError, ReportError
from gdpfed.installed import how_to_install
from gdpfed.report.exported import COUNTERS, EXPORTED, Figure, Source
from gdpfed.report.pages import page_of
from gdpfed.signed_apps import DAY_SECONDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
REFRESH_SECONDS = 5
# Of a budget, as in deploy/alerts.yml, which has the other limits, too.
WARNED = 0.8
CERTIFICATE_DAYS = 30
NO_REQUESTS = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass
class _Section:
    """One section of the HTML page: about a run, a node's privacy ledger, or a file of TLS certificates."""

    title: str
    whose: str = "group"
    progress: tuple[float, float] | None = None
    lines: list[str] = field(default_factory=list)
    budgets: list[tuple[str, float, float]] = field(default_factory=list)


class Figures:
    """Reads the monitoring metrics of runs, privacy ledgers and TLS certificates at every request."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def read(self) -> list[Figure]:
        """Return all sources' metrics; one metric of each source says whether the source could be read."""
        return [figure for source in self._sources for figure in source.figures()]

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics, grouped by name, as objects of the Prometheus library."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        named = defaultdict(list)
        for figure in self.read():
            named[figure.name].append(figure)
        for name, own in named.items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            metric = kind(name, EXPORTED[name], labels=list(own[0].labels))
            for figure in own:
                metric.add_metric(list(figure.labels.values()), figure.value)
            yield metric

    def page(self) -> str:
        """Return the HTML page for people: problems first, then runs, ledgers and certificates."""
        figures, now = self.read(), datetime.now(UTC)
        by_subject: dict[tuple[str, str], list[Figure]] = defaultdict(list)
        for figure in figures:
            subject = next(iter(figure.labels.items()))
            if subject[0] != "of":
                by_subject[subject].append(figure)
        return page_of(
            "figures_page.html",
            title=", ".join(source.name for source in self._sources),
            now=f"{now:%Y-%m-%d %H:%M:%S}",
            seconds=REFRESH_SECONDS,
            warned=WARNED,
            alarms=list(_alarms(figures, now.timestamp())),
            sections=[_MAKERS[kind](name, own) for (kind, name), own in by_subject.items()],
        )


def _alarms(figures: Sequence[Figure], now: float) -> Iterator[str]:
    present = {
        (figure.labels["run"], figure.labels["group"]): figure.value
        for figure in figures
        if figure.name == "gdpfed_run_clients_present"
    }
    for each in figures:
        of = next(iter(each.labels.values()))
        match each.name:
            case "gdpfed_readable" if not each.value:
                yield f"{of} cannot be read: the log of this command says why"
            case "gdpfed_node_ledger_sound" if not each.value:
                yield f"{of} is not sound: gdpfed audit --node-ledger says what is wrong"
            case "gdpfed_run_rounds_not_summed" if each.value:
                yield f"{of}: rounds without a sum: {each.value:g}; rounds.jsonl says why"
            case "gdpfed_run_clients" if present.get((of, each.labels["group"]), each.value) < each.value:
                group = each.labels["group"]
                yield f"{of}: {present[of, group]:g} of {each.value:g} clients of group {group} are in reach"
            case "gdpfed_certificate_expires_timestamp_seconds" if (
                each.value < now + CERTIFICATE_DAYS * DAY_SECONDS
            ):
                days = (each.value - now) / DAY_SECONDS
                yield f"{of}: ends in {days:.1f} days; renew it (docs/operations.md, Rotating keys)"


def _run_section(name: str, own: Sequence[Figure]) -> _Section:
    values = {each.name: each.value for each in own if set(each.labels) == {"run"}}
    goes_on = values["gdpfed_run_goes_on"] == 1
    made = _Section(
        f"run {name}",
        progress=(values["gdpfed_run_rounds"], values["gdpfed_run_rounds_planned"]),
        lines=["under way or interrupted" if goes_on else "complete or paused"],
        budgets=_budgets(own, "gdpfed_run", "group"),
    )
    if values["gdpfed_run_sums_failed"]:
        made.lines.append(f"failed sums: {values['gdpfed_run_sums_failed']:g}")
    if (ended := values.get("gdpfed_run_last_round_timestamp_seconds")) is not None:
        took = values.get("gdpfed_run_round_seconds")
        took_words = "" if took is None else f" and took {took:.1f} s"
        made.lines.append(f"the last round ended at {_minute(ended)} UTC{took_words}")
    return made


def _node_section(name: str, own: Sequence[Figure]) -> _Section:
    made = _Section(name, "protects", budgets=_budgets(own, "gdpfed_node", "protects"))
    made.lines += [
        f"refused, cause {each.labels['cause']}: {each.value:g}"
        for each in own
        if each.name == "gdpfed_node_refusals_total"
    ]
    made.lines += [
        f"the last message to every node came at {_minute(each.value)} UTC"
        for each in own
        if each.name == "gdpfed_node_last_message_timestamp_seconds"
    ]
    return made


def _certificate_section(name: str, own: Sequence[Figure]) -> _Section:
    return _Section(name, lines=[f"valid until {_minute(own[0].value)} UTC"])


def _budgets(own: Sequence[Figure], prefix: str, label: str) -> list[tuple[str, float, float]]:
    def named(name: str) -> dict[str, float]:
        return {
            f"{each.labels[label]} {each.labels.get('record_group', '')}".strip(): each.value
            for each in own
            if each.name == f"{prefix}_{name}"
        }

    spent = named("epsilon_spent")
    return [(name, spent[name], budget) for name, budget in named("epsilon_budget").items()]


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


_MAKERS = {"run": _run_section, "ledger": _node_section, "certificate": _certificate_section}


def address(text: str) -> tuple[str, int]:
    """Parse an address [HOST:]PORT; without HOST it is 127.0.0.1, which only this machine can reach.

    Raises ConfigError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= HIGHEST_PORT):
        raise ConfigError(f"--listen {text} is not [HOST:]PORT, as in 9470 or 0.0.0.0:9470")
    return host.strip("[]") or LOOPBACK, int(port)


def serve(
    sources: Iterable[Source],
    listen: str,
    stop: threading.Event | None = None,
    *,
    names: Collection[str] = (),
) -> None:
    """Serve metrics over HTTP until the process is interrupted or told to stop.

    `names`: of this server, beside its host's own and addresses; a request by another name is refused.

    Raises:
        ReportError: the library is not installed.
        ConfigError: the address is none, or cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise ReportError(f"prometheus-client is not installed: {how_to_install('metrics')}") from None
    host, port = address(listen)
    known = {each.lower() for each in ("localhost", host, gethostname(), *names)}
    registry, figures = CollectorRegistry(auto_describe=False), Figures(sources)
    registry.register(figures)
    kind = _IPv6Server if ":" in host else _Server
    try:
        server = make_server(host, port, _application(figures, make_wsgi_app(registry), known), kind, _Quiet)
    except OSError as error:
        raise ConfigError(f"--listen {listen} cannot be used: {error.strerror or error}") from None
    shown = f"[{host}]" if ":" in host else host
    print(f"metrics at http://{shown}:{server.server_port}/metrics, a page at /", flush=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        (stop or threading.Event()).wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def is_for(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is one of `names`, or an IP address; this check stops DNS rebinding.

    A page of somebody else's may have its own name lead to this machine, and its script may then read what a
    browser gets from here. An address is not a name that anybody could lead elsewhere.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in names or bool(ip_address(name))
    except ValueError:
        return False


def _application(figures: Figures, metrics: Application, names: Collection[str]) -> Application:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        kind, status = "text/plain", "200 OK"
        if "HTTP_HOST" in environ and not is_for(environ["HTTP_HOST"], names):
            start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"ask by an address, or by a name that --name gives this server\n"]
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)
            case "/":
                kind, body = "text/html", figures.page()
            case "/health":
                body = "ok\n"
            case _:
                status, body = "404 Not Found", "there are /, /metrics and /health\n"
        own = [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Security-Policy", NO_REQUESTS)]
        start_response(status, own)
        return [body.encode()]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = AF_INET


class _IPv6Server(_Server):
    address_family = AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Do nothing: single requests are not logged."""
