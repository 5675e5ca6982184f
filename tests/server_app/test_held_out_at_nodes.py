"""Tests of evaluation at nodes by one noised sum of counts on the records that the nodes hold out."""

import json
from dataclasses import replace

import pytest

from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.once_checks import check_once
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import ConfigError, LearningError, PrivacyError, RunError
from gdpfed.methods import make_method
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.rounds.extensions.held_out import record_request
from gdpfed.simulation.in_process_fleet import simulate
from testing.local_grid import FIRST_NODE_ID, LocalGrid, refusals
from testing.small_runs import run

DECLARATION = """\
label: {column: ill, classes: [no, yes]}
numeric: {age: [0, 100]}
test: {column: part, values: [test]}
"""
ROWS = 40


def rows():
    """Return forty records in which old persons are ill; every second record is for testing."""
    ages = range(10, 10 + 2 * ROWS, 2)
    return [f"{'yes' if age > 50 else 'no'},{age},{('train', 'test')[age // 2 % 2]}" for age in ages]


@pytest.fixture
def hospitals(tmp_path):
    """Return a folder with the server's declaration, and a grid of four nodes with tables and ledgers."""
    grid = LocalGrid(4)
    for client in range(4):
        own = tmp_path / str(client)
        own.mkdir()
        (own / "own.csv").write_text("\n".join(["ill,age,part", *rows(), ""]))
        (own / "columns.yaml").write_text(DECLARATION)
        grid.contexts[FIRST_NODE_ID + client].node_config |= {
            "data": str(own / "own.csv"),
            "epsilon-record": 6.0,
            "delta-record": 1e-5,
            "ledger": str(own / "ledger.json"),
        }
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "columns.yaml").write_text(DECLARATION)
    return tmp_path, grid


def settings(folder):
    return [
        *("dataset=csv", f"dataset.path={folder / 'server'}", "dataset.partition=iid"),
        *("dataset.num_clients=4", "privacy=record_level", "privacy.budgets=[6]", "privacy.batch_rate=0.5"),
        *("method=dp_sum", "run.num_rounds=2", "run.evaluation=nodes", "privacy.delta=1e-5"),
        *("privacy.sampling_rate=1", "training.learning_rate=5"),
    ]


def assert_audit_names_what_was_changed(directory):
    """Check that the audit finds each change of files: less noise, no charge, or a lower epsilon."""
    for name, change, words in (
        ("held_out.json", lambda found: found.update(noise_stddev=0.1), "below the plan's"),
        ("ledger.json", lambda ledger: ledger.update(held_out_charged=False), "has not charged"),
        ("plan.json", lambda plan: plan.pop("held_out"), "no plan pays for"),
        ("plan.json", lambda plan: plan["held_out"].update(epsilon=0.1), "follows"),
        ("plan.json", lambda plan: cheaper(plan["held_out"]), "above the budget"),
    ):
        text = (directory / name).read_text()
        data = json.loads(text)
        change(data)
        (directory / name).write_text(json.dumps(data))
        assert words in " ".join(check_once(RunFiles.read(directory)))
        (directory / name).write_text(text)
    assert audit_run(directory).passed


def cheaper(held_out):
    held_out["charge"]["event"]["noise_stddev"] /= 2


def test_counts_of_all_nodes_are_one_sum_that_every_ledger_pays_for(hospitals):
    folder, grid = hospitals
    run(folder / "run", settings(folder), grid=grid)
    found = json.loads((folder / "run" / "held_out.json").read_text())
    assert found["clients"] == 4
    # 80 records are held out, of which each is in one of the four cells.
    noise = found["noise_stddev"]
    assert abs(sum(found["counts"][:4]) - 4 * ROWS / 2) < 6 * 2 * noise
    assert audit_run(folder / "run").passed
    ledger = json.loads((folder / "2" / "ledger.json").read_text())["ledger"]
    (entry,) = ledger["runs"]
    assert entry["counted"] is True
    assert entry["rounds"] == [0, 1]
    (audit,) = audit_node_ledger(folder / "2" / "ledger.json").runs
    assert audit.within_budget
    card = (folder / "run" / "model_card.md").read_text()
    assert "* on the server's test set: not evaluated; run.evaluation=nodes has clients count" in card
    assert_audit_names_what_was_changed(folder / "run")
    # Steps and counts are paid for by different records: what all cost is the larger.
    assert 5.9 < audit.epsilon <= 6


def allowed(grid, clients):
    for client in clients:
        grid.contexts[FIRST_NODE_ID + client].node_config["counts-by-party"] = True


def test_each_node_has_figures_of_its_own_for_what_the_sum_costs(hospitals):
    folder, grid = hospitals
    allowed(grid, range(4))
    run(folder / "run", [*settings(folder), "run.evaluation_by_party=true"], grid=grid)
    found = json.loads((folder / "run" / "held_out.json").read_text())
    assert [each["client"] for each in found["parties"]] == [0, 1, 2, 3]
    plan = json.loads((folder / "run" / "plan.json").read_text())
    noise = plan["held_out"]["noise_stddev"]
    assert found["noise_stddev"] >= 2 * noise * (1 - 1e-9)
    for each in found["parties"]:
        assert abs(sum(each["counts"][:4]) - ROWS / 2) < 6 * 2 * noise * 1.5
    assert audit_run(folder / "run").passed
    assert "| client 3 |" in (folder / "run" / "model_card.md").read_text()
    (entry,) = audit_node_ledger(folder / "2" / "ledger.json").runs
    assert 5.9 < entry.epsilon <= 6
    path = folder / "run" / "held_out.json"
    found["parties"][0]["counts"][0] += 1
    path.write_text(json.dumps(found))
    assert "are not those of its parties" in " ".join(check_once(RunFiles.read(folder / "run")))


def test_a_node_shows_no_counts_of_its_own_unless_its_operator_says_so(hospitals):
    folder, grid = hospitals
    asked = [*settings(folder), "run.evaluation_by_party=true"]
    with pytest.raises(RunError, match="was not started with counts-by-party=true"):
        run(folder / "run", asked, grid=grid)
    assert not (folder / "run").exists()

    def silent(kind, client, content):
        for record in content.values():
            record.pop("counts-by-party", None)
        return content

    # A server that says nothing of it when nodes join asks in vain afterwards.
    grid.meddle = silent
    run(folder / "run", asked, grid=grid)
    assert not (folder / "run" / "held_out.json").exists()
    assert any("counts-by-party" in each for each in refusals(grid))


def test_class_weights_that_do_not_fit_are_refused_where_no_server_tests(tmp_path):
    told = ["dataset=digits", "run.evaluation=nodes", "dataset.class_weights=[1,1,1]", "secagg=off"]
    with pytest.raises(LearningError, match="class_weights has 3 numbers: give 10, one for each class"):
        simulate(load([*told, f"run.directory={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()


def test_figures_by_party_of_clients_that_are_protected_are_refused(tmp_path):
    told = ["dataset=digits", "method=dp_fedavg", "run.evaluation=nodes", "run.evaluation_by_party=true"]
    with pytest.raises(PrivacyError, match="is for runs that protect records"):
        make_method(load(told))
    with pytest.raises(ConfigError, match="set run.evaluation=nodes or both"):
        load([told[0], told[1], told[3]])


def test_a_server_that_has_no_rows_cannot_test_itself(hospitals):
    folder, grid = hospitals
    with pytest.raises(LearningError, match="set run.evaluation=nodes"):
        run(folder / "run", [*settings(folder), "run.evaluation=server"], grid=grid)
    assert not (folder / "run").exists()


def test_counts_under_less_noise_than_the_terms_are_refused_and_not_asked_again(hospitals, monkeypatch):
    folder, grid = hospitals

    def quieter(*asked):
        request = record_request(*asked)
        return replace(request, noise_multiplier=request.noise_multiplier / 2)

    monkeypatch.setattr("gdpfed.rounds.extensions.held_out.record_request", quieter)
    monkeypatch.setattr(SumOnce, "broken_by", lambda *asked: "")
    run(folder / "run", settings(folder), grid=grid)
    assert not (folder / "run" / "held_out.json").exists()
    entry = json.loads((folder / "0" / "ledger.json").read_text())["ledger"]["runs"][0]
    assert "counted" not in entry
    assert json.loads((folder / "run" / "ledger.json").read_text())["held_out_charged"] is True
