"""Tests of Prometheus metrics of runs and nodes: no metric depends on a secret sample or on data."""

import json
import re
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from gdpfed.cli import main
from gdpfed.cli.node_status import NodeFigures
from gdpfed.errors import ConfigError, ReportError
from gdpfed.federation.node.budget import begin
from gdpfed.federation.node.journal import CAUSES, OTHER, JournalEntry, hear, note
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.report.exported import (
    COUNTERS,
    EXPORTED,
    READABLE,
    Figure,
    Source,
    certificate_sources,
    run_figures,
)
from gdpfed.report.figures_server import CERTIFICATE_DAYS, WARNED, Figures, address, serve
from gdpfed.runs.round_log import read_rounds
from gdpfed.signed_apps import DAY_SECONDS
from testing.project import PROJECT
from tests.report.test_run_status import EVERYBODY, begun, rewrite

DEPLOY = PROJECT / "deploy"
ALERTS, DASHBOARD = DEPLOY / "alerts.yml", DEPLOY / "dashboard.json"
HIDDEN_OF_RUNS = {
    "gdpfed_run_round_seconds",
    "gdpfed_run_last_round_timestamp_seconds",
    "gdpfed_run_clients_present",
    "gdpfed_run_survivors",
}


def values(figures) -> dict[tuple[str, str], float]:
    """Return the values of metrics, keyed by a metric's name and by the value of its last label."""
    return {(each.name, list(each.labels.values())[-1]): each.value for each in figures}


def drawn(folder, size):
    """Return the exported metrics of a run whose cohort sizes, times and failures follow from `size`."""
    begun(folder)
    changed = [
        replace(
            record,
            cohort_sizes=[size, size],
            survivors=[size, 0 if record.failures else size],
            reachable=[size, size],
            failures=dict.fromkeys(record.failures, f"a cohort of {size}"),
            epsilon_against_server=[size / 100, None],
            seconds={"total": float(size)},
        )
        for record in read_rounds(folder)
    ]
    rewrite(folder / "rounds.jsonl", changed)
    return values(run_figures(folder))


def test_no_figure_of_a_run_depends_on_a_secret_draw(tmp_path):
    few, many = drawn(tmp_path / "few" / "run", 3), drawn(tmp_path / "many" / "run", 90)
    assert few == many
    assert HIDDEN_OF_RUNS.isdisjoint(name for name, _ in few)
    assert few["gdpfed_run_epsilon_spent", "1"] == 1.0


def test_a_run_that_draws_nobody_in_secret_has_them_all(tmp_path):
    begun(tmp_path / "run", EVERYBODY)
    found = values(run_figures(tmp_path))
    assert {name for name, _ in found} == {name for name in EXPORTED if name.startswith("gdpfed_run_")}
    assert (found["gdpfed_run_rounds", "run"], found["gdpfed_run_sums_failed", "run"]) == (2, 1)
    assert (found["gdpfed_run_epsilon_budget", "1"], found["gdpfed_run_clients_present", "0"]) == (3.0, 9)
    assert found["gdpfed_run_survivors", "1"] == 0


def node_of(folder, rate: float, rounds: Sequence[int], refused: Sequence[tuple[str, str, str]]):
    """Return a node's metrics after `rounds` and refusals, and separately the time of its last message."""
    folder.mkdir()
    plan = make_plan(
        groups=groups_from_shares(40, (1.0,)), num_rounds=5, sampling_rate=rate, clipping_norm=1.0, delta=1e-3
    )
    words = {"epsilon": 2.0, "delta": 1e-3, "ledger": str(folder / "ledger.json")}
    settings = NodeSettings(words)
    begin(settings.budgets, terms_of(plan, 0, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0))
    with locked_ledger(folder / "ledger.json") as file:
        for index in rounds:
            file.ledger.charge("one", index)
        file.save()
    for asked, cause, run in refused:
        note(settings, JournalEntry(60.0, asked, run, "1", cause, "said"))
    found = values(NodeFigures(folder / "ledger.json", words).read())
    heard = found.pop(("gdpfed_node_last_message_timestamp_seconds", str(folder / "ledger.json")), None)
    return {(name, label.replace(str(folder), "")): value for (name, label), value in found.items()}, heard


def test_no_figure_of_a_node_depends_on_a_secret_draw_or_on_data(tmp_path):
    """A node exports the same metrics whether or not it was drawn, refused a message or has faulty data."""
    idle, nothing = node_of(tmp_path / "idle", 0.4, (), [("offer", "budget", "x")])
    told = [("offer", "budget", "x"), ("mask", "budget", "one"), ("advertise", "protocol", "one")]
    odd = [("join", cause, "") for cause in ("data", OTHER)]
    busy, heard = node_of(tmp_path / "busy", 0.4, (0, 2, 4), [*told, *odd])
    assert idle == busy
    assert nothing is heard is None  # The ledger's own time is that of its last turn.
    assert busy["gdpfed_node_refusals_total", "budget"] == 1


def test_a_node_that_everybody_knows_to_be_asked_has_them_all(tmp_path):
    told = [("mask", "budget", "one"), ("mask", "budget", "another"), ("mask", "data", "one")]
    found, heard = node_of(tmp_path / "node", 1.0, (0,), told)
    assert {name for name, _ in found} | {"gdpfed_node_last_message_timestamp_seconds"} == {
        name for name in EXPORTED if name.startswith("gdpfed_node_")
    }
    assert found["gdpfed_node_refusals_total", "budget"] == 1
    assert heard == (tmp_path / "node" / "ledger.json").stat().st_mtime
    spent, left = found["gdpfed_node_epsilon_spent", ""], found["gdpfed_node_epsilon_left", ""]
    assert 0.9 < spent <= 1.0
    assert left == 2.0 - spent


def test_a_query_is_heard_and_the_audit_is_not_repeated(tmp_path, monkeypatch):
    node_of(tmp_path / "node", 0.4, (), [])
    ledger = tmp_path / "node" / "ledger.json"
    words = {"epsilon": 2.0, "delta": 1e-3, "ledger": str(ledger)}
    figures = NodeFigures(ledger, words)
    before = values(figures.read())
    hear(NodeSettings(words))
    monkeypatch.setattr("gdpfed.cli.node_status.audit_node_ledger", None)
    more = values(figures.read())
    assert {name for name, _ in more.keys() - before.keys()} == {"gdpfed_node_last_message_timestamp_seconds"}


def test_they_are_served_on_the_loopback_alone(tmp_path, capsys):
    begun(tmp_path / "run")
    stop = threading.Event()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sources = [
        Source("run", partial(run_figures, tmp_path / "run")),
        Source("none", partial(run_figures, tmp_path / "none")),
        Source(
            "node", lambda: [Figure("gdpfed_node_refusals_total", 2.0, {"ledger": "a", "cause": "budget"})]
        ),
    ]
    server = threading.Thread(
        target=serve, args=(sources, str(port), stop), kwargs={"names": ("figures.example",)}
    )
    server.start()
    try:
        for _ in range(200):
            if "metrics at" in capsys.readouterr().out:
                break
            stop.wait(0.05)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        with urlopen(f"http://127.0.0.1:{port}/", timeout=10) as reply:
            policy, page = reply.headers["Content-Security-Policy"], reply.read().decode()
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
            assert reply.read() == b"ok\n"
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
        assert refused.value.code == 404
        refused.value.close()
        named = ("attacker.example", "x:1]", "Figures.example:9")
        assert [host_answer(port, name) for name in named] == [421, 421, 200]
        assert {host_answer(port, name) for name in (f"localhost:{port}", "[::1]", "10.1.2.3:80")} == {200}
        with pytest.raises(ConfigError, match=f"--listen {port} cannot be used"):
            serve([], str(port), stop)
    finally:
        stop.set()
        server.join()
    assert 'gdpfed_run_epsilon_spent{group="0",run="run"} 0.5' in text
    assert 'gdpfed_node_refusals_total{cause="budget",ledger="a"} 2.0' in text
    assert policy.startswith("default-src 'none'")
    assert "round 2 of 4" in " ".join(page.split())
    assert page.count('class="bad"') == 1, "the file that cannot be read"
    assert "failed sums: 1" in page
    assert (f'{READABLE}{{of="run"}} 1.0' in text, f'{READABLE}{{of="none"}} 0.0' in text) == (True, True)


def host_answer(port, name):
    """Return the HTTP status of a request whose Host header is `name`, as after DNS rebinding."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/", headers={"Host": name})
        return connection.getresponse().status


def test_the_page_warns_of_a_certificate_that_ends_and_of_what_is_no_certificate(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")]), datetime.now(UTC)
    for days in (29, 31):
        made = x509.CertificateBuilder(name, name, key.public_key(), days, now, now + timedelta(days))
        (tmp_path / f"{days}.crt").write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    (tmp_path / "none.crt").write_text("<b>", encoding="utf-8")
    page = Figures(certificate_sources(sorted(tmp_path.iterdir()))).page()
    alarms = re.findall(r'class="bad"><strong>(.*)</strong>', page)
    assert [re.sub(r".*/(\w+)\.crt.*", r"\1", each) for each in alarms] == ["29", "none"]
    assert page.count("valid until") == 2


def test_an_address_is_this_machines_unless_it_is_said():
    assert (address("9470"), address(":1"), address("0.0.0.0:2")) == (
        ("127.0.0.1", 9470),
        ("127.0.0.1", 1),
        ("0.0.0.0", 2),  # noqa: S104
    )
    assert address("[::1]:9") == ("::1", 9)
    for text in ("", "host", "host:", "99999", "a:b"):
        with pytest.raises(ConfigError, match="is not \\[HOST:\\]PORT"):
            address(text)


def test_without_the_extra_the_remedy_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ReportError, match=r"pip install 'prometheus-client>="):
        serve([], "9470")
    assert main(["metrics", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_alert_rules_are_of_figures_that_there_are():
    """The alert rules use only metrics and labels that are exported."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 6
    labels = {
        "gdpfed_run": {"run", "group"},
        "gdpfed_nod": {"ledger", "protects", "cause"},
        "gdpfed_rea": {"of"},
        "gdpfed_cer": {"certificate"},
    }
    named = set()
    for rule in rules:
        own = set(re.findall(r"gdpfed_\w+", rule["expr"]))
        named |= own
        assert own
        assert own <= EXPORTED.keys()
        assert rule["expr"].count("(") == rule["expr"].count(")")
        kind = min(own)[: len("gdpfed_run")]
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels[kind]
    assert {"gdpfed_run_epsilon_budget", "gdpfed_run_rounds_not_summed"} <= named
    assert {"gdpfed_node_epsilon_budget", "gdpfed_node_last_message_timestamp_seconds"} <= named
    assert named >= COUNTERS
    assert {"data", "budget"} <= {cause for _, cause in CAUSES}
    # The page warns where an alert would.
    limits = " ".join(rule["expr"] for rule in rules)
    assert limits.count(f">= {WARNED} * ") == 2
    assert f"< {CERTIFICATE_DAYS} * {DAY_SECONDS}" in limits


def test_the_dashboard_is_of_figures_and_labels_that_there_are():
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    assert {name for expr, _ in asked for name in re.findall(r"gdpfed_\w+", expr)} <= EXPORTED.keys()
    labels = {"run": {"run", "group"}, "node": {"ledger", "protects", "record_group", "cause"}}
    for expr, legend in asked:
        (kind,) = set(re.findall(r"gdpfed_(run|node)_", expr))
        assert set(re.findall(r"{{(\w+)}}", legend)) <= labels[kind]
    assert len({panel["id"] for panel in panels}) == len(panels)
