"""Tests of servers that ask in unscheduled rounds or for less noise: nodes refuse, and audits notice."""

import re

import numpy as np
import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.privacy.ledgers.charged import OpenRound
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from testing.local_grid import refusals
from testing.small_runs import grid_of_owners, ledger_of, run
from tests.rounds import rogue_methods as rogue

NUM_CLIENTS = 8
# Two turns of five rounds, two rounds apart.
TURNS = [
    *("method=dp_fedavg", f"dataset.num_clients={NUM_CLIENTS}", "run.num_rounds=5", "training.local_steps=1"),
    *("privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[3]"),
    *("privacy.sampling_rate=0.4", "secagg.dropout_tolerance=0"),
]


@pytest.fixture
def owners(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", lambda *each: [])
    return grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)


@pytest.mark.parametrize(
    ("asked", "told", "taken"),
    [
        (
            (0, 1),
            "is not a turn of this client: it has had a turn 1 rounds away, and they must be 2 apart",
            [0],
        ),
        ((0, 2, 4), "is not a turn of this client: it has had 2 turns, and may have 2", [0, 2]),
    ],
    ids=["too close", "too often"],
)
def test_turns_that_are_too_close_or_too_many(tmp_path, monkeypatch, owners, asked, told, taken):
    """Every node refuses turns (scheduled rounds) that are too close or too many; audits find them."""

    def draw(self, m, group, round_index, generator):
        return np.arange(NUM_CLIENTS if round_index in asked else 0)

    monkeypatch.setattr(ScheduledSums, "draw", draw)
    monkeypatch.setattr(ScheduledSums, "broken_turn", lambda *each: "")
    monkeypatch.setattr(ScheduledSums, "most_rounds", lambda *each: None)
    records = run(tmp_path / "run", [*TURNS, "secagg.keys_ahead=false"], grid=owners)
    assert [each.round - 1 for each in records if each.summed] == taken
    reasons = refusals(owners)
    assert len(reasons) == NUM_CLIENTS
    assert all(told in reason for reason in reasons), reasons
    assert all(ledger_of(tmp_path / "ledgers", k).runs[0].rounds == taken for k in range(NUM_CLIENTS))
    audit = audit_run(tmp_path / "run")
    had = f"has had the turns {list(asked)}, and may have 2, 2 rounds apart"
    assert any(had in each for each in audit.findings), audit.findings
    assert not audit.groups[0].within_budget


def test_new_noise_that_is_missing(tmp_path, monkeypatch, owners):
    monkeypatch.setattr(OpenRound, "check", lambda *each: None)
    monkeypatch.setattr("gdpfed.rounds.run.make_method", rogue.Silent.from_config)
    records = run(tmp_path / "run", [*TURNS, "run.num_rounds=2", "privacy.sampling_rate=1"], grid=owners)
    assert [each.survivors for each in records] == [[NUM_CLIENTS], [0]]
    told = "noise of standard deviation 0 is below .* against the terms"
    assert len(refusals(owners)) == NUM_CLIENTS
    assert all(re.search(told, reason) for reason in refusals(owners)), refusals(owners)
    assert all(ledger_of(tmp_path / "ledgers", k).runs[0].rounds == [0] for k in range(NUM_CLIENTS))
