"""Tests of six parties with budgets for their records: charges, lost parties, and parties that come late."""

import json
from collections import Counter

import numpy as np
import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import RunError
from gdpfed.privacy.mechanisms.records.terms import StepTerms
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, refusals
from testing.small_runs import ledger_of, run, small_config

PARTIES = 6
EPSILONS = [1.0, 1.2, 2.0, 2.5, 4.0, 4.5]
RECORDS = [f"dataset.num_clients={PARTIES}", "privacy=record_level", "privacy.sampling_rate=1"]
THEIRS = [*RECORDS, "privacy.budgets=clients", "secagg.dropout_tolerance=0.2"]
# The accountant is rdp in small runs, which plans in a second.
DP_SUM = [*THEIRS, "method=dp_sum", "privacy.delta=null", "run.num_rounds=4", "privacy.num_groups=2"]


def parties(folder, settings=None, epsilons=EPSILONS, **options):
    """Return a grid on which node k has a file of digits, and budget ``epsilons[k]`` for its records."""
    grid = LocalGrid(len(epsilons), **options)
    folder.mkdir(exist_ok=True)
    task = task_of(small_config(folder, RECORDS))
    for client, epsilon in enumerate(epsilons):
        part, data = task.client_data(client), folder / f"{client}.npz"
        # One party has fewer records than the partition has for it.
        keep = 40 if client == 5 else len(part.x)
        if not data.exists():
            np.savez(data, x_train=part.x[:keep], y_train=part.y[:keep])
        own = {"epsilon-record": epsilon, "ledger": str(folder / f"{client}.json"), "data": str(data)}
        grid.contexts[FIRST_NODE_ID + client].node_config |= own | (settings or {})
    return grid


def asked_in(directory):
    """Return the number of rounds in which the server's ledger has each client."""
    saved = json.loads((directory / "ledger.json").read_text())
    return {int(client): count for group in saved["participations"] for client, count in group.items()}


def test_budgets_ledgers_and_audits_agree_after_a_dropout_and_a_restart(tmp_path):
    """Ledgers and audits agree after a party is lost in round 2 and the server stops in round 3."""
    masked = Counter[int]()

    def vanishes(kind, client):
        masked[client] += kind == "mask"
        if kind == "unmask" and masked[0] == 3:
            raise Crash
        return (kind, client, masked[client]) == ("mask", 2, 2)

    grid = parties(tmp_path / "nodes", vanishes=vanishes)
    with pytest.raises(Crash):
        run(tmp_path / "run", DP_SUM, grid=grid)
    again = parties(tmp_path / "nodes")
    records = run(tmp_path / "run", grid=again, resume=True)
    assert [record.round for record in records] == [1, 2, 3, 4]
    assert [record.survivors for record in records] == [[6], [5], [], [6]]
    assert records[2].failures == {"round": "interrupted before its end: charged, and not repeated"}
    assert [sum(record.cohort_sizes) for record in records] == [6, 6, 6, 6]
    assert refusals(again) == []
    asked = asked_in(tmp_path / "run")
    assert asked == dict.fromkeys(range(PARTIES), 4)
    rounds = {client: ledger_of(tmp_path / "nodes", client).runs[0].rounds for client in range(PARTIES)}
    # With its second vector the party was to send its keys for the third round.
    assert rounds == {client: [0, 3] if client == 2 else [0, 1, 2, 3] for client in range(PARTIES)}
    for client in range(PARTIES):
        (entry,) = ledger_of(tmp_path / "nodes", client).runs
        assert entry.steps == [1] * len(entry.rounds)
        assert isinstance(entry.terms, StepTerms)
        assert entry.terms.steps_left(0) == 4
        node = audit_node_ledger(tmp_path / "nodes" / f"{client}.json")
        assert node.passed
        (row,) = node.runs
        assert (row.unit, row.steps) == ("record", len(entry.rounds))
        assert row.epsilon <= row.budget == EPSILONS[client]
    audit = audit_run(tmp_path / "run")
    assert audit.findings == ()
    assert audit.passed
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (plan["unit"], plan["delta"]) == ("record", 1e-5)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "client_records" in config
    assert "- 40\n" in config


def test_who_has_run_out_stops_and_has_taken_exactly_what_its_budget_admits(tmp_path):
    overrides = [
        *THEIRS,
        "privacy.delta=null",
        "method=dp_sgd",
        "method.heterogeneous=steps",
        "method.noise_multiplier=1.2",
        "training.local_steps=2",
        "run.num_rounds=3",
        "privacy.num_groups=2",
        "privacy.accountant=pld",
    ]
    grid = parties(tmp_path / "nodes", epsilons=[0.82] * 3 + [1.2] * 3)
    records = run(tmp_path / "run", overrides, grid=grid)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    allowed = plan["groups"][0]["records"]["steps_allowed"]
    assert allowed == 3
    assert [record.cohort_sizes for record in records] == [[3, 3], [3, 3], [0, 3]]
    for client in range(PARTIES):
        steps = ledger_of(tmp_path / "nodes", client).runs[0].steps
        assert sum(steps) == (allowed if client < 3 else 6)
    assert audit_run(tmp_path / "run").findings == ()
    assert refusals(grid) == []


def test_private_steps_may_leave_in_clear_and_are_charged_all_the_same(tmp_path):
    overrides = [
        *THEIRS,
        "privacy.delta=null",
        "method=dp_sgd",
        "method.noise_multiplier=2.0",
        "privacy.batch_rate=0.02",
        "run.num_rounds=1",
        "privacy.num_groups=1",
        "secagg=off",
    ]
    grid = parties(tmp_path / "nodes", {"secagg-mode": "off"})
    (record,) = run(tmp_path / "run", overrides, grid=grid)
    assert (record.survivors, refusals(grid)) == ([6], [])
    steps = {client: ledger_of(tmp_path / "nodes", client).runs[0].steps for client in range(PARTIES)}
    assert len({tuple(each) for each in steps.values()}) == 1
    assert audit_run(tmp_path / "run").findings == ()
    assert all(audit_node_ledger(tmp_path / "nodes" / f"{client}.json").passed for client in steps)
    # Nodes that were not started for it agree to no such run; nothing is charged.
    with pytest.raises(RunError, match="was not started with secagg-mode=off"):
        run(tmp_path / "other", overrides, grid=parties(tmp_path / "others"))
    assert not (tmp_path / "other").exists()
    assert ledger_of(tmp_path / "others", 0).runs == ()


def test_groups_of_records_within_one_party(tmp_path):
    overrides = [
        *RECORDS,
        "privacy.delta=null",
        "method=dp_sum",
        "privacy.budgets_of=records",
        "privacy.budgets=[1,2,4]",
        "privacy.group_shares=[0.7,0.2,0.1]",
        "method.noise_multiplier=1.0",
        "run.num_rounds=2",
    ]
    grid = parties(tmp_path / "nodes", epsilons=["1,2,4"] * 5 + [4.0])
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.survivors for record in records] == [[6], [6]]
    assert refusals(grid) == []
    rows = audit_node_ledger(tmp_path / "nodes" / "0.json").runs
    assert [(row.record_group, row.budget, row.steps) for row in rows] == [(0, 1, 2), (1, 2, 2), (2, 4, 2)]
    audit = audit_run(tmp_path / "run")
    assert audit.findings == ()
    assert [group.budget for group in audit.groups] == [1, 2, 4]
    strict = parties(tmp_path / "strict", epsilons=["1,2,4"] * 5 + ["0.1,2,4"])
    with pytest.raises(RunError, match="client 5 does not take part in this run: this run does not fit"):
        run(tmp_path / "another server" / "two", overrides, grid=strict)


def test_a_second_run_is_refused_by_the_ledger_of_the_first_and_one_about_clients_is_not_added(tmp_path):
    once = [*RECORDS, "privacy.delta=null", "method=dp_sum", "privacy.budgets=[0.9]", "run.num_rounds=1"]
    once.append("privacy.accountant=pld")
    run(tmp_path / "one", once, grid=parties(tmp_path / "nodes"))
    both = parties(tmp_path / "nodes", {"epsilon": 5.0, "delta": 1e-5})
    of_clients = [
        f"dataset.num_clients={PARTIES}",
        "privacy.delta=1e-5",
        "privacy.sampling_rate=1",
        "method=dp_fedavg",
        "privacy.budgets=[5]",
        "run.num_rounds=1",
    ]
    run(tmp_path / "two", of_clients, grid=both)
    units = [row.unit for row in audit_node_ledger(tmp_path / "nodes" / "0.json").runs]
    assert units == ["record", "client"]
    with pytest.raises(RunError, match="client 0 does not take part in this run: this run does not fit"):
        run(tmp_path / "three", once, grid=parties(tmp_path / "nodes"))


def test_a_rate_above_one_is_one_line_before_anybody_is_asked(tmp_path):
    from gdpfed.errors import ConfigError

    grid = parties(tmp_path / "nodes")
    with pytest.raises(ConfigError, match=r"privacy.batch_rate=1.5 must be in \(0, 1\]"):
        run(tmp_path / "run", [*DP_SUM, "privacy.batch_rate=1.5"], grid=grid)
    assert grid.sent == []


DEALT = ("privacy.budgets_of=records", "privacy.budgets=[1,2,4]", "privacy.group_shares=[0.7,0.2,0.1]")
# Whose groups have one budget, or are none: a new number of records changes no epsilon.
ALIKE = ("privacy.budgets=[1]",)


def fewer(folder, client, count):
    """Leave only the first ``count`` records in the file of a party."""
    path = folder / f"{client}.npz"
    with np.load(path) as saved:
        own = dict(saved)
    np.savez(path, **{name: values[:count] for name, values in own.items()})


@pytest.mark.parametrize("budgets", [DEALT, ALIKE])
def test_records_are_not_dealt_out_anew_in_the_middle_of_a_run(tmp_path, budgets):
    """A run is not resumed if a party then brings another number of records than before."""
    overrides = [*RECORDS, "method=dp_sum", *budgets, "method.noise_multiplier=1.0", "run.num_rounds=2"]
    overrides += ["privacy.delta=null", "secagg.dropout_tolerance=0.2"]
    said = ["1,2,4"] * PARTIES if budgets is DEALT else [1.0] * PARTIES
    run(
        tmp_path / "run",
        [*overrides, "run.stop_after_round=1"],
        grid=parties(tmp_path / "nodes", epsilons=said),
    )
    before = (tmp_path / "nodes" / "5.json").read_bytes()
    fewer(tmp_path / "nodes", 5, 30)
    grid = parties(tmp_path / "nodes", epsilons=said)
    # Where all records have one budget none would pass to another, but the node's own data are others now.
    told = "data cannot be used" if budgets is ALIKE else "brings 30 records, and the plan assigned 40 to"
    with pytest.raises(RunError, match=f"client 5 .*{told}"):
        run(tmp_path / "run", grid=grid, resume=True)
    assert (tmp_path / "nodes" / "5.json").read_bytes() == before


def test_a_party_that_comes_late_with_other_records_stays_away(tmp_path, caplog):
    overrides = [*RECORDS, "method=dp_sum", *DEALT, "method.noise_multiplier=1.0", "run.num_rounds=2"]
    overrides += ["privacy.delta=null", "secagg.dropout_tolerance=0.2", "run.minimum_nodes=5"]
    grid = parties(tmp_path / "nodes", epsilons=["1,2,4"] * PARTIES)
    everybody = grid.get_node_ids

    def node_ids():
        late = any("mask" in exchange for exchange in grid.exchanges)
        return [node_id for node_id in everybody() if late or node_id != FIRST_NODE_ID + 5]

    grid.get_node_ids = node_ids
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.survivors for record in records] == [[5], [5]]
    assert "client 5 does not take part in this run: it brings 40 records, and the plan" in caplog.text
    assert ledger_of(tmp_path / "nodes", 5).runs == ()
