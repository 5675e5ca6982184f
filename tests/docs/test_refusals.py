"""Tests of docs/refusals.md: each kind of error has a heading and an example line, which is provoked here."""

import importlib
import pkgutil
import re
import secrets
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from flwr.app import Context, Message

import conf
import deploy
import deploy.operate
import gdpfed
from client_app.relay import relayed
from conf.load import load
from deploy.certificates import Authority
from deploy.federation import Federation
from gdpfed.cli import main
from gdpfed.errors import ConfigError, FailedError, GDPFedError, line_of
from gdpfed.extras.edges.edge import Edge
from gdpfed.extras.edges.mailbox import Job, Mailbox
from gdpfed.federation.node.budget import of_unit
from gdpfed.federation.node.contribution import Contributor, checked_order
from gdpfed.federation.node.join_checks import own_records
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_config import check_settings
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.federation.node.session_file import SessionFile
from gdpfed.federation.server.attendance import _refuse
from gdpfed.launch import flower_run
from gdpfed.report.trackers import MlflowRun
from gdpfed.signed_apps import AppStatement
from testing.project import DOCS
from testing.written_runs import begin_run

PAGE = (DOCS / "refusals.md").read_text(encoding="utf-8")
EXAMPLES = {
    kind: " ".join(line.split())
    for kind, line in re.findall(r"^### ([\w-]+)\n\n((?:    .*\n)+)", PAGE, re.MULTILINE)
}
OWN: Budgets = {"client": Budget((2.0,), 1e-5, Path("ledger.json"))}
COMMANDS = {
    "config": "plan privacy.clipping_norm=-1",
    "learning": "partition dataset=npz dataset.path=mine.npz",
    "privacy": "plan method=idp_fedavg_sample privacy.against=outsiders privacy.sampling=fixed_size",
    "game": "plan method=fedpcs privacy=record_level method.reward=[1,2]",
    "report": "report nowhere",
    "unfinished": "report runs/mine",
    "experiment": "reproduce table5 --rounds 0",
    "identity": "identity show identity.key",
    "input": "plan --compare --choose",
    "run": "simulate run.resume=runs/mine",
    "audit": "audit runs/mine",
}


def signed_app():
    said = AppStatement("@gdpfed/gdpfed", "1.0", "0" * 64, 1, 0, 86400)
    said.check(b"", now=0.0)


def damaged_ledger():
    Path("ledger.json").write_text("{}")
    with locked_ledger(Path("ledger.json")):
        pass


def session_file():
    SessionFile(Path("sessions"), 60.0).seal(b"", "shared", b"", None)


def edge_that_is_further():
    mailbox, model = Mailbox(Path("mail")), np.zeros(2, np.float32)
    for index in (4, 2):
        mailbox.offer(Job("run", index, {}, model))


def cloud_that_has_ended():
    mailbox = Mailbox(Path("mail"))
    mailbox.offer(Job("run", 0, {}, np.zeros(2, np.float32)))
    mailbox.discard(0)
    mailbox.end("run")
    Edge(mailbox, print, 1).start(SimpleNamespace(round_index=0), np.zeros(2, np.float32))  # type: ignore[arg-type]


def other_settings_beside_the_guard():
    config = {"guard": "/run/guard.sock", "epsilon": 3.0}
    relayed(cast("Message", None), cast("Context", SimpleNamespace(node_config=config)))


def count_asked_of_an_edge():
    asked = SimpleNamespace(work="held_out_counts")
    edge = Contributor(0, "run", stand_in=SimpleNamespace())
    edge.check(asked, np.zeros(2), None)  # type: ignore[arg-type]


def data_that_cannot_be_read():
    Path("a.npz").write_bytes(b"")
    own_records(NodeSettings({"data": "a.npz"}), {})


def beyond_the_last_round():
    plan = gdpfed.make_plan(
        groups=[gdpfed.Group(2.0, range(10))],
        num_rounds=1,
        sampling_rate=1.0,
        clipping_norm=1.0,
        accountant="rdp",
    )
    ledger = gdpfed.Ledger(plan)
    cohorts = gdpfed.draw_cohorts(plan, 0, secrets.token_bytes(32))
    ledger.open_round(0, cohorts)
    ledger.open_round(1, cohorts)


def mlflow_that_is_not_there():
    MlflowRun("http://mlflow", "name", {}, print, cohorts=False)


CALLS = {
    "order": lambda: checked_order(None, None, None),  # type: ignore[arg-type]
    "app-signature": signed_app,
    "topology": lambda: Federation.of(7),
    "credentials": lambda: Authority.create("name").issue([]),
    "node-config": lambda: check_settings({"epsilom": 3.0}),
    "budget-refused": lambda: of_unit(OWN, "record"),
    "data-refused": data_that_cannot_be_read,
    "ledger": damaged_ledger,
    "session-file": session_file,
    "stand-in": count_asked_of_an_edge,
    "edge": edge_that_is_further,
    "guard": other_settings_beside_the_guard,
    "node-refused": lambda: _refuse({3: "this run does not fit this client's own budget"}),
    "training-over": cloud_that_has_ended,
    "budget-exhausted": beyond_the_last_round,
    "launch": lambda: flower_run.training_config([], directory=Path("run"), resuming=False),
    "super-link": deploy.operate._flower_home,
    "tracking": mlflow_that_is_not_there,
}


def every_error():
    for package in (conf, deploy, gdpfed):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    waiting = [GDPFedError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        yield error


def test_every_kind_of_error_has_a_heading_and_an_example_and_no_other_has():
    kinds = {
        line_of(error.__new__(error))[2:-1]
        for error in every_error()
        if error not in (GDPFedError, FailedError) and error.__module__.split(".")[0] != "tests"
    }
    assert len(kinds) > 20
    assert EXAMPLES.keys() == kinds == {*COMMANDS, *CALLS}


@pytest.mark.parametrize("kind", [*COMMANDS, *CALLS])
def test_the_example_of_a_kind_is_what_it_says(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLWR_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr(flower_run, "SOURCES", Path("/home/you"))
    if kind in COMMANDS:
        begin_run(load(["run.directory=runs/mine", "method=fedavg"]))
        assert main(COMMANDS[kind].split()) in (1, 2)
        line = capsys.readouterr().err.strip().removeprefix("gdpfed: ")
    else:
        Path("mail").mkdir()
        Path("sessions").mkdir()
        with pytest.raises(GDPFedError) as raised:
            CALLS[kind]()
        line = line_of(raised.value)
    assert line.replace(f"{tmp_path}/", "") == EXAMPLES.get(kind)


def test_line_ends_with_its_kind():
    assert line_of(ConfigError("x=1 must be 2")) == "x=1 must be 2 [config]"
