"""Tests of nodes whose persons have several rows, at several parties: sampling, clipping, charges."""

import re

import numpy as np
import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.errors import RunError
from gdpfed.learning.training import record_training
from gdpfed.privacy.mechanisms.records.terms import StepTerms
from testing.local_grid import FIRST_NODE_ID, LocalGrid, refusals
from testing.small_runs import ledger_of, run

PARTIES, PERSONS = 4, 10
DECLARATION = """\
label: {column: ill, classes: [no, yes]}
numeric: {age: [0, 100], pressure: [80, 200]}
person: {column: patient, parties: 2}
"""
HEADER = "ill,age,pressure,patient"
RUN = (
    *("privacy=record_level", "privacy.sampling_rate=1", "privacy.batch_rate=1", "privacy.delta=null"),
    *("method=dp_sum", "privacy.budgets=[4]", "run.num_rounds=2", "dataset.partition=iid"),
    *("secagg.dropout_tolerance=0", "privacy.clipping_norm=0.5"),
)


def write(folder, rows, declaration=DECLARATION):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.csv").write_text("\n".join([HEADER, *rows, ""]))
    (folder / "columns.yaml").write_text(declaration)


def rows(client):
    """Return the rows of ten patients, who have one to three rows each."""
    rng = np.random.default_rng(client)
    return [
        f"{('no', 'yes')[person % 2]},{rng.integers(20, 90)},{rng.integers(90, 190)},p{person}"
        for person in range(PERSONS)
        for _ in range(1 + person % 3)
    ]


@pytest.fixture
def hospitals(tmp_path):
    """Return a grid whose nodes have tables and budgets, and the settings for the server."""
    grid = LocalGrid(PARTIES)
    for client in range(PARTIES):
        write(tmp_path / str(client), rows(client))
        own = {"data": str(tmp_path / str(client) / "own.csv"), "ledger": str(tmp_path / f"{client}.json")}
        grid.contexts[FIRST_NODE_ID + client].node_config |= {**own, "epsilon-record": 4.0}
    write(tmp_path / "public", rows(PARTIES))
    told = ["dataset=csv", f"dataset.path={tmp_path / 'public' / 'own.csv'}"]
    return grid, [*told, f"dataset.num_clients={PARTIES}", *RUN]


def test_nodes_draw_and_clip_persons_and_charge_all_their_parties(hospitals, tmp_path, monkeypatch, capsys):
    grid, told = hospitals
    exact, seen = record_training.exact_sums, []

    def watched(gradients, theta, holders, take, *, bounds, unit):
        sums = exact(gradients, theta, holders, take, bounds=bounds, unit=unit)
        x, _ = take(holders[0].records[None])
        seen.append((tuple(x.shape), bounds[0], float(np.linalg.norm(sums[0] * unit))))
        return sums

    monkeypatch.setattr("gdpfed.clients.works.gradient_sum.exact_sums", watched)
    run(tmp_path / "run", told, grid=grid)
    assert refusals(grid) == []
    assert len(seen) == 2 * PARTIES
    # What it sends in place of data that it cannot use has the noise of so many.
    assert grid.contexts[FIRST_NODE_ID].state["number-of-records"]["count"] == PERSONS
    for shape, bound, norm in seen:
        # Everybody is drawn, with up to three rows each, kept in four, and held to C / S as a whole.
        assert shape == (1, PERSONS, 4, 2)
        assert 0.2 < bound <= 0.25
        assert norm <= PERSONS * bound
    audit = audit_run(tmp_path / "run")
    assert (audit.passed, audit.record_is) == (True, "person")
    (entry,) = ledger_of(tmp_path, 0).runs
    assert isinstance(entry.terms, StepTerms)
    assert (entry.terms.record_is, entry.terms.parties) == ("person at up to 2 parties", 2)
    assert entry.steps == [1, 1]
    assert main(["audit", "--node-ledger", str(tmp_path / "0.json")]) == 0
    shown = re.sub(r"[^a-z0-9/ ]+", " ", capsys.readouterr().out)
    assert "persons" in shown
    assert "records" not in shown
    assert "2/2" in shown


def test_a_node_refuses_terms_that_pay_for_fewer_parties_than_it_declares(hospitals, tmp_path):
    grid, told = hospitals

    def meddle(kind, client, content):
        for record in content.values():
            if "charges" in record:
                record["charges"] = record["charges"].replace('"parties": 2', '"parties": 1')
        return content

    grid.meddle = meddle
    with pytest.raises(RunError, match="may be at 2 parties, and the run is charged for 1"):
        run(tmp_path / "run", told, grid=grid)
    assert ledger_of(tmp_path, 0).runs == ()


def test_runs_for_persons_at_more_parties_are_not_added_to_those_for_fewer(hospitals, tmp_path, caplog):
    grid, told = hospitals
    run(tmp_path / "one", [*told, "privacy.budgets=[1]"], grid=grid)
    three = DECLARATION.replace("parties: 2", "parties: 3")
    write(tmp_path / "other", rows(PARTIES), three)
    for client in range(PARTIES):
        write(tmp_path / str(client), rows(client), three)
    told.append(f"dataset.path={tmp_path / 'other' / 'own.csv'}")
    with pytest.raises(RunError, match="does not fit this client's own budget"):
        run(tmp_path / "two", [*told, "privacy.budgets=[1]"], grid=grid)
    words = "runs about a person at up to 2 parties, and this one is about a person at up to 3 parties"
    assert words in caplog.text
