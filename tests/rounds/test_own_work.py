"""Tests of local work that a package provides as one function: training with it, and its charge."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import OrderError
from gdpfed.errors import LearningError, PrivacyError
from gdpfed.methods import make_method
from gdpfed.methods.fedavg import FedAvg
from gdpfed.privacy.ledgers.charged import OpenRound
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.record_steps import KINDS, WORKS, kind_of, require_record_work
from testing.package_of_others import write_package
from testing.small_runs import final_model, run

SETTINGS = ["run.num_rounds=1", "privacy.sampling_rate=1"]


def halve(monkeypatch, method):
    """Let the clients of a method send half of their updates, by the local work `halved`."""
    requests = method.requests

    def halved(plan):
        return replace(plan, mechanism=replace(plan.mechanism, works=("halved",)))

    def asked(self, *about):
        return [replace(each, work="halved") for each in requests(self, *about)]

    for name in ("make_plan", "make_turn_plan"):
        made = getattr(method, name)
        monkeypatch.setattr(method, name, staticmethod(lambda config, made=made: halved(made(config))))
    monkeypatch.setattr(method, "requests", asked)


@pytest.fixture
def site(tmp_path):
    """Write a package that provides a kind of local work, and return the folder where it is installed."""
    return write_package(tmp_path / "site")


@pytest.fixture
def work(site, monkeypatch):
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("work")
def test_nodes_and_engines_do_a_work_that_is_one_function(tmp_path, monkeypatch):
    run(tmp_path / "whole", ["method=fedavg", *SETTINGS])
    start = ["method=fedavg", *SETTINGS, "training.learning_rate=1e-9"]
    run(tmp_path / "start", start)
    halve(monkeypatch, FedAvg)
    run(tmp_path / "half", ["method=fedavg", *SETTINGS])
    begun = final_model(tmp_path / "start")
    whole, half = (final_model(tmp_path / name) - begun for name in ("whole", "half"))
    assert np.abs(whole).max() > 0.01
    np.testing.assert_allclose(half, whole / 2, atol=1e-4)


@pytest.mark.parametrize("against", ["outsiders", "everyone"])
def test_an_audit_names_the_work_of_a_package_and_knows_no_other(tmp_path, site, work, monkeypatch, against):
    settings = [f"privacy.against={against}", "privacy.accountant=pld", "privacy.budgets=[2]", *SETTINGS]
    run(tmp_path / "run", ["method=halving", *settings])
    audit = audit_run(tmp_path / "run")
    assert audit.passed, audit.findings
    said = "what clients computed as halved: the method halving is"
    assert any(said in each for each in audit.not_computed)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(site)])
    found = audit_run(tmp_path / "run").findings
    assert any("the local work halved, which no plan that protects a client has" in each for each in found)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("against", ["outsiders", "everyone"])
def test_terms_charge_what_stands_in_the_table_alone(against):
    words = ["method=dp_fedavg", "dataset.num_clients=4", "privacy.accountant=pld", *SETTINGS]
    config = load([*words, f"privacy.against={against}"])
    terms = terms_of(make_method(config).plan, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    order = replace(order_of(config, task_of(config)), clipping_norm=1e-3, work="halved")
    assert terms.broken_by(0, order, 1e-3) == ""
    assert "the server asks for dp_sgd" in terms.broken_by(0, replace(order, work="dp_sgd"), 1e-3)
    with pytest.raises(PrivacyError, match="work=thirds is not known: use"):
        terms.broken_by(0, replace(order, work="thirds"), 1e-3)


RECORDS = ["method=dp_sum", "privacy=record_level", "privacy.batch_rate=0.1", "dataset.num_clients=4"]


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RECORDS, "halved"),
        (RECORDS, "vote"),
        (["method=dp_fedavg", "dataset.num_clients=4"], "dp_sgd"),
        (["method=dp_fedavg", "dataset.num_clients=4"], "held_out_counts"),
    ],
)
def test_a_plan_charges_no_work_that_costs_something_else(settings, name):
    """A round refuses local work that protects another unit (client or record) than the plan protects."""
    method = make_method(load([*settings, "privacy.accountant=pld", *SETTINGS]))
    plan = replace(method.plan, mechanism=replace(method.plan.mechanism, works=(name,)))
    cohorts = [np.array(group.clients) for group in plan.groups]
    group_of = {client: m for m, cohort in enumerate(cohorts) for client in cohort.tolist()}
    asked = method.requests(np.zeros(3, np.float32), 0, cohorts)
    OpenRound(method.plan, 0, group_of).check("test", asked)
    requests = [replace(each, work=name) for each in asked]
    with pytest.raises(PrivacyError, match=f"{name} is not a work of rounds that protect a {plan.unit}"):
        OpenRound(plan, 0, group_of).check("test", requests)


def test_a_work_that_nobody_has_is_refused_by_name():
    config = load(["dataset.num_clients=4"])
    order = replace(order_of(config, task_of(config)), work="halved")
    with pytest.raises(OrderError, match="asks for 'halved'; clients compute .*convex_steps, dp_sgd"):
        _ = order.kind
    with pytest.raises(PrivacyError, match="work=halved is not known"):
        kind_of("halved")


def test_a_package_has_no_work_under_a_name_that_is_taken(site, monkeypatch):
    (site / "halves-1.0.dist-info/entry_points.txt").write_text(
        "[gdpfed.works]\nupdate = halves_of_updates\n"
    )
    monkeypatch.syspath_prepend(site)
    with pytest.raises(LearningError, match="work 'update' is there more than once"):
        WORKS.get("update")


@pytest.mark.parametrize("said", ["WorkKind(on_records=True)", "'record'"])
def test_a_package_says_what_its_work_is_and_nothing_else_is_believed(site, monkeypatch, said):
    """A package states the privacy cost of its local work as a `WorkKind`, or the local work is refused."""
    with (site / "halves-1.0.dist-info/entry_points.txt").open("a") as file:
        file.write("[gdpfed.work_kinds]\nhalved = kind_of_halves:KIND\n")
    (site / "kind_of_halves.py").write_text(f"from gdpfed.record_steps import WorkKind\nKIND = {said}\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "kind_of_halves", raising=False)
    if said == "'record'":
        with pytest.raises(
            PrivacyError, match="the kind of work 'halved' is a str, so its privacy cost is not known"
        ):
            kind_of("halved")
        return
    assert kind_of("halved").on_records
    require_record_work("work", "halved")
    with pytest.raises(
        PrivacyError, match="work=update does not take noisy steps on records: use convex_steps, dp_sgd"
    ):
        require_record_work("work", "update")
    with pytest.raises(
        PrivacyError,
        match="work=window_steps does not release each of its noisy steps on records: use dp_sgd",
    ):
        require_record_work("work", "window_steps", by_steps=True)


def test_every_work_of_the_project_is_in_the_table_and_its_cost_is_known():
    # Whoever is protected as a whole may compute anything: such works of extras need no entry.
    assert WORKS.names() == sorted({*KINDS, "client_statistics", "record_statistics"})
