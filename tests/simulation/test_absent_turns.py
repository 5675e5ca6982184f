"""Test of absent clients in a simulation: turns (scheduled rounds) are moved or lost, and not charged."""

import json
from itertools import pairwise

import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.simulation.in_process_fleet import InProcessFleet, simulate
from testing.small_runs import NUM_CLIENTS, only_a_card, small_config

TURNS = [
    *("method=dp_fedavg", "privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[1]"),
    *("privacy.sampling_rate=0.34", "run.num_rounds=6", "training.local_steps=1"),
]


@pytest.mark.parametrize("mode", ["off", "curious"])
def test_turns_of_clients_that_are_away_are_moved_or_lost(tmp_path, monkeypatch, mode):
    def present(self, round_index, suffices=None):
        """Return the present clients: in each round another quarter is absent; client 0 is always absent."""
        return frozenset(k for k in range(1, NUM_CLIENTS) if (k + round_index) % 4)

    monkeypatch.setattr(InProcessFleet, "present", present)
    config = small_config(tmp_path / "run", [*TURNS, f"secagg.mode={mode}"])
    simulate(config, make_observers=only_a_card)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    taken: dict[int, list[int]] = {}
    for line in lines:
        for group, clients in zip(plan["groups"], line["turns"], strict=True):
            assert len(clients) <= -(-group["clients"] * group["turns"]["most_turns"] // 6)
            for client in clients:
                assert client in present(None, line["round"] - 1)
                taken.setdefault(client, []).append(line["round"] - 1)
    assert 0 not in taken
    limits = [group["turns"] for group in plan["groups"] for _ in range(group["clients"])]
    for client, turns in taken.items():
        apart = [later - turn for turn, later in pairwise(turns)]
        assert min(apart, default=6) >= limits[client]["separation"]
    audit = audit_run(tmp_path / "run")
    assert audit.passed, audit.findings
