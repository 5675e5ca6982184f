"""Tests of the benchmark of methods: entries are made from real runs, and rankings from made-up entries."""

import csv
import io
import json
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from conf.errors import ConfigError
from gdpfed.extras.experiments.benchmark import Ranking, _cost_table
from gdpfed.extras.experiments.benchmark_entries import (
    FORMAT_VERSION,
    HELD,
    NOT_PRIVATE,
    SCHEMA,
    Entry,
    _digest,
    adversary_of,
    entries_of,
)
from gdpfed.extras.experiments.cells import Setting, cells_of
from gdpfed.extras.experiments.definitions import load_experiment
from gdpfed.extras.experiments.reproduction import Reproduction, reproduce
from gdpfed.extras.experiments.run_training import Processes
from gdpfed.extras.experiments.runs import NOT_YET
from gdpfed.methods import make_method
from testing.forged import edit_json
from testing.project import PROJECT
from testing.stays import write_stays

ENTRY = Entry(
    dataset="digits",
    setting="strict",
    method="good",
    seed=0,
    unit="client",
    against="everyone",
    budgets=(0.5, 3.0),
    metric="accuracy",
    result=80.0,
    auc=None,
    of_groups=(70.0, 75.5),
    examples_of_groups="training",
    messages=100.0,
    megabytes=0.5,
    seconds=1.0,
    audit=HELD,
)


def run_it(output):
    """Run the benchmark with three methods in two settings of the digits; return what is printed."""
    experiment = load_experiment("bench").with_methods(["sampled_fedavg"])
    experiment = experiment.with_rows(["fedavg", "gdpfed_star", "dp_fedavg"])
    experiment.columns = {
        name: experiment.columns[name] for name in ("strict_everyone", "generous_outsiders")
    }
    shown = io.StringIO()
    setting = Setting(("digits",), num_rounds=2, client_factor=0.1)
    request = Reproduction(experiment, setting, 1, output, "gdpfed reproduce bench", Processes(1))
    assert reproduce(request, Console(file=shown, width=200))
    return shown.getvalue()


def rows_of(output):
    with (output / "bench" / "figures.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    assert "mean rank" in run_it(directory)
    return directory


def test_an_entry_has_the_results_costs_and_audit_of_its_run(output):
    rows = rows_of(output)
    assert len(rows) == 6
    assert set(rows[0]) == set(SCHEMA)
    for row in rows:
        groups = [float(each) for each in row["of_groups"].split(";")]
        assert len(groups) == len(row["budgets"].split(";")) == 3
        assert float(row["worst_group"]) == min(groups)
        assert row["examples_of_groups"] == "training"
        assert row["audit"] == (NOT_PRIVATE if row["method"] == "fedavg" else HELD)
        assert float(row["seconds"]) > 0
    by_place = {(row["method"], row["setting"]): row for row in rows}
    assert by_place["gdpfed_star", "strict_everyone"]["against"] == "everyone"
    assert by_place["gdpfed_star", "generous_outsiders"]["against"] == "outsiders"
    # 27 of 36 clients are in the sum of each of two rounds, 7.2 of them drawn and the others with zeros;
    # against everyone noise is taken back under masks.
    assert float(by_place["dp_fedavg", "generous_outsiders"]["messages"]) == pytest.approx(54)
    assert float(by_place["dp_fedavg", "strict_everyone"]["messages"]) > 14.4
    # Each of the 27 receives and sends a model of 650 numbers, of four bytes where nothing is masked.
    megabytes = float(by_place["dp_fedavg", "generous_outsiders"]["megabytes"])
    assert megabytes == pytest.approx(54 / 36 * 2 * 650 * 4e-6, rel=0.3)
    assert megabytes > 2 * float(by_place["dp_fedavg", "strict_everyone"]["megabytes"])


@pytest.mark.parametrize(("name", "unit"), [("eicu", "person"), ("eicu-stays", "record")])
def test_an_entry_of_records_names_everyone(name, unit, stays):
    """dp_sum and dp_sgd protect persons or records against everyone; FedAvg's plan names no adversary."""
    for cell in eicu_cells("bench-records", ["dp_sum", "dp_sgd"], name, stays):
        plan = make_method(cell.config).plan
        if cell.row == "fedavg":
            assert (plan.protected, adversary_of(plan)) == ("client", None)
        else:
            assert (plan.protected, adversary_of(plan)) == (unit, "everyone")


def test_hospitals_are_clients_of_the_benchmark(stays):
    columns = load_experiment("bench").columns
    assert {name.rpartition("_")[2] for name in columns} == {"everyone", "outsiders"}
    for cell in eicu_cells("bench", ["dp_fedavg"], "eicu-hospitals", stays):
        assert cell.config.dataset.num_clients == 174
        found = adversary_of(make_method(cell.config).plan)
        assert found == (None if cell.row == "fedavg" else cell.column.rpartition("_")[2])


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    return write_stays(tmp_path_factory.mktemp("stays") / "patient.csv")


def eicu_cells(experiment, rows, dataset, stays):
    """Return an experiment's cells (method and column) with medium budgets, for a made-up eICU table."""
    chosen = load_experiment(experiment).with_rows(["fedavg", *rows])
    chosen.columns = {name: each for name, each in chosen.columns.items() if name.startswith("medium")}
    return cells_of(chosen, Setting((dataset,), (f"dataset.path={stays}",), num_rounds=3))


def test_each_group_has_a_result_of_its_own(output):
    """The accuracies of the groups differ, and their mean is within 25 points of the overall accuracy."""
    results = [float(each) for each in rows_of(output)[0]["of_groups"].split(";")]
    assert len(set(results)) > 1
    assert sum(results) / 3 == pytest.approx(float(rows_of(output)[0]["result"]), abs=25)


def test_an_edited_run_is_audited_again_and_comes_last(output):
    entry = next(path for path in (output / "bench" / "entries").iterdir() if "gdpfed_star" in path.name)
    ledger = output / "runs" / entry.stem / "ledger.json"
    text = ledger.read_text()
    values = json.loads(text)
    values["charged_rounds"] = 1
    try:
        ledger.write_text(json.dumps(values))
        shown = run_it(output)
    finally:
        ledger.write_text(text)
    audits = {row["audit"] for row in rows_of(output) if row["method"] == "gdpfed_star"}
    assert HELD in audits
    assert len(audits) == 2
    assert "1 audits failed" in shown
    assert "1 audits failed" not in run_it(output)


def test_a_kept_entry_is_not_believed_about_the_audit(output, tmp_path):
    """A run with an edited ledger fails its audit even if a stored entry says that the audit passed."""
    name = next(path.stem for path in (output / "bench" / "entries").iterdir() if "gdpfed_star" in path.name)
    run, kept = shutil.copytree(output / "runs" / name, tmp_path / name), tmp_path / "entries"
    edit_json(run / "ledger.json", lambda ledger: ledger.update(charged_rounds=1))
    kept.mkdir()
    said = {"version": FORMAT_VERSION, "files": _digest(run), "entry": asdict(ENTRY)}
    (kept / f"{name}.json").write_text(json.dumps(said))
    cell = SimpleNamespace(dataset="digits", row="mine", column="strict")
    sent: Any = SimpleNamespace(path=run, cell=cell, seed=0)
    (found,) = entries_of([sent], kept)
    assert (found.result, found.valid) == (ENTRY.result, False)
    assert "the ledger" in found.audit


def test_the_page_has_every_column():
    page = (PROJECT / "docs" / "benchmark.md").read_text()
    assert [line for name, words in SCHEMA.items() if (line := f"| `{name}` | {words} |") not in page] == []


def test_methods_that_are_not_there_or_have_a_row_cannot_be_added():
    bench = load_experiment("bench")
    with pytest.raises(
        ConfigError, match="--add no_such is not known: use .* or install the package that has it"
    ):
        bench.with_methods(["no_such"])
    with pytest.raises(ConfigError, match="has this row already"):
        bench.with_methods(["gdpfed_star"])


def outcome(method, *, seeds=1, reason=None, overrides=()):
    """Return a stand-in for a method's result in one setting: finished runs, or a reason why none exist."""
    cell = SimpleNamespace(
        place=("digits", method, "strict"), row=method, column="strict", overrides=overrides
    )
    return SimpleNamespace(
        cell=cell, runs=[SimpleNamespace(seed=seed) for seed in range(seeds)], reason=reason
    )


def test_methods_rank_by_their_results_and_the_one_without_privacy_does_not():
    entries = [
        replace(ENTRY, method=method, seed=seed, result=result)
        for method, results in {"good": (80, 81), "same": (80, 70), "bad": (60, 75)}.items()
        for seed, result in enumerate(results)
    ]
    entries.append(replace(ENTRY, method="open", against=None, audit=NOT_PRIVATE, result=90.0))
    outcomes = [outcome(name, seeds=2) for name in ("open", "good", "same", "bad")]
    ranking = Ranking.of(outcomes, entries)
    assert ranking.by_place["digits", "strict", 0] == {"good": 1.5, "same": 1.5, "bad": 3}
    assert ranking.by_place["digits", "strict", 1] == {"good": 1, "same": 3, "bad": 2}
    assert ranking.methods == ["good", "same", "bad"]
    assert ranking.mean("good").mean == 1.25
    assert ranking.mean("good", "everyone") == ranking.mean("good")


def test_who_refuses_or_fails_the_audit_comes_last_and_an_open_place_has_no_ranks():
    entries = [
        ENTRY,
        replace(ENTRY, method="same", result=70.0),
        replace(ENTRY, method="edited", result=99.0, audit="x"),
    ]
    names = ("good", "same", "edited")
    refusing = [*map(outcome, names), outcome("refusing", reason="no accounting")]
    ranks = Ranking.of(refusing, entries).by_place["digits", "strict", 0]
    assert ranks == {"good": 1, "same": 2, "edited": 3.5, "refusing": 3.5}
    waiting = [*map(outcome, names), outcome("waiting", reason=NOT_YET)]
    assert not Ranking.of(waiting, entries).by_place


def test_a_setting_that_one_private_method_alone_accepts_is_ranked():
    outcomes = [outcome("good"), *(outcome(name, reason="no accounting") for name in ("other", "third"))]
    assert Ranking.of(outcomes, [ENTRY]).by_place["digits", "strict", 0] == {
        "good": 1,
        "other": 2.5,
        "third": 2.5,
    }
    assert not Ranking.of(outcomes[1:], []).by_place
    assert not Ranking.of(outcomes[:1], [ENTRY]).by_place


def test_the_adversary_of_a_setting_is_that_of_the_column():
    """A column's adversary is the one in its settings or, if they name none, the one of all its entries."""
    entries = [ENTRY, replace(ENTRY, method="other", against="outsiders")]
    named = [outcome(name, overrides=("privacy.against=everyone",)) for name in ("good", "other")]
    assert Ranking.of(named, entries).adversaries == ["everyone"]
    unnamed = [outcome(name) for name in ("good", "other")]
    alike = [ENTRY, replace(ENTRY, method="other")]
    assert Ranking.of(unnamed, alike).adversaries == ["everyone"]


def test_a_mean_over_some_settings_alone_says_so():
    experiment = load_experiment("bench").with_rows(["gdpfed_star", "dp_fedavg"])
    everywhere = [replace(ENTRY, method="gdpfed_star", setting=each) for each in experiment.columns]
    table = _cost_table(experiment, "digits", everywhere)
    assert [row[0] for row in table.rows] == ["GDPFed*"]
    assert "says over how many" not in table.note
    some = [replace(ENTRY, method="dp_fedavg", setting=each) for each in list(experiment.columns)[:2]]
    table = _cost_table(experiment, "digits", [*everywhere, *some])
    assert [row[0] for row in table.rows] == ["GDPFed*", "DP-FedAvg, over 2 of 6 settings"]
    assert "says over how many" in table.note
