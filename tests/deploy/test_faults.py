"""Tests of faults in a federation of real processes: runs continue or name the cause; ledgers are right."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from deploy.loopback import LoopbackFederation
from deploy.topology import DATABASE, STATE, SUPERLINK
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import LaunchError
from tests.deploy.faulty_federation import FEDERATION, FaultyFederation

pytestmark = pytest.mark.slow
VICTIM, WITNESS = FEDERATION.nodes[1], FEDERATION.nodes[0]
EVERYBODY = {str(node.client_id): 1 for node in FEDERATION.nodes}
INTERRUPTED = {"round": "interrupted before its end: charged, and not repeated"}


@pytest.fixture(scope="module")
def faulty():
    with LoopbackFederation(FEDERATION) as running:
        yield FaultyFederation(running)


def ledger_of(faulty, name):
    return json.loads((faulty.files(name) / "ledger.json").read_text())


def test_a_plan_beyond_the_nodes_own_budgets_is_refused_by_the_nodes(faulty):
    run = faulty.train("beyond", ["privacy.budgets=[20]"])
    with pytest.raises(
        LaunchError, match=r"client \d does not take part .* not fit this client's own budget"
    ):
        faulty.finish(run)
    assert not faulty.files("beyond").exists()


@pytest.mark.parametrize(("stage", "survivors"), [("advertise", 4), ("share", 4), ("unmask", 5)])
def test_a_node_killed_at_any_stage(faulty, stage, survivors):
    name = f"killed-{stage}"
    run = faulty.train_until(VICTIM, stage, name)
    faulty.kill_node(VICTIM)
    faulty.finish(run)
    (record,) = faulty.rounds(name)
    assert (record.survivors, record.failures) == ([survivors], {})
    assert ledger_of(faulty, name)["participations"] == [EVERYBODY]
    assert audit_run(faulty.files(name)).passed
    faulty.start_node(VICTIM)
    faulty.running.wait_for_nodes()


def test_a_node_that_is_cut_off_for_a_round_takes_part_in_the_next(faulty):
    run = faulty.train_until(VICTIM, "mask", "cut-off", ["run.num_rounds=2", "run.timeout_seconds=60"])
    faulty.pause_node(VICTIM)
    faulty.until(lambda: len(faulty.rounds("cut-off")) == 1, "the end of round 1")
    faulty.go_on_with(VICTIM)
    faulty.finish(run)
    first, second = faulty.rounds("cut-off")
    assert (first.survivors, first.failures, second.failures) == ([4], {}, {})
    assert second.survivors[0] >= 4
    assert ledger_of(faulty, "cut-off")["charged_rounds"] == 2


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_a_server_app_killed_in_any_stage_is_resumed(faulty, stage):
    name = f"resumed-{stage}"
    two_rounds = ["run.num_rounds=2"]
    run = faulty.train_until(WITNESS, stage, name, two_rounds)
    faulty.server_app().kill()
    with pytest.raises(LaunchError, match=r"run \d+ ended as finished:failed .*run\.resume="):
        faulty.finish(run)
    assert ledger_of(faulty, name)["charged_rounds"] == 1
    faulty.finish(faulty.train(name, two_rounds))
    first, second = faulty.rounds(name)
    assert (first.survivors, first.failures) == ([], INTERRUPTED)
    assert (second.survivors, second.failures) == ([5], {})
    assert ledger_of(faulty, name)["charged_rounds"] == 2
    assert faulty.sent(WITNESS) <= 2
    assert audit_run(faulty.files(name)).passed
    assert faulty.leaked_secrets() == []


def test_a_full_disk_ends_the_run_in_one_line_and_the_run_goes_on_later(faulty):
    name = "full-disk"
    two_rounds = ["run.num_rounds=2"]
    run = faulty.train(name, two_rounds)
    checkpoint = faulty.files(name) / "checkpoint.safetensors"
    faulty.until(checkpoint.exists, "the first checkpoint")
    faulty.until(lambda: ledger_of(faulty, name)["charged_rounds"] == 1, "round 1")
    # A folder in its place stands for a disk without room: the system refuses to write the file.
    draft = checkpoint.with_name(f".{checkpoint.name}.tmp")
    draft.mkdir()
    with pytest.raises(LaunchError, match=r"checkpoint\.safetensors cannot be written: Is a directory"):
        faulty.finish(run)
    draft.rmdir()
    faulty.finish(faulty.train(name, two_rounds))
    first, second = faulty.rounds(name)
    assert first.failures == INTERRUPTED
    assert (second.survivors, second.failures) == ([5], {})
    assert ledger_of(faulty, name)["charged_rounds"] == 2


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("faults", [("garbage", "short", "nan"), ("", "replay", "late")])
def test_a_client_that_breaks_the_rules_is_left_out_of_the_sum(faulty, faults):
    """A client that sends a faulty masked update is left out of a sum, which the honest clients finish.

    A client at fault in three sums is not asked again by the same process, so there are two runs.
    """
    by_client = {number: {VICTIM.client_id: fault} for number, fault in enumerate(faults, start=1) if fault}
    name = f"rules-{faults[-1]}"
    run = faulty.train_with(by_client, name, f"run.num_rounds={len(faults)}", "run.timeout_seconds=90")
    log, records = faulty.finish(run), faulty.rounds(name)
    survivors = [4 if fault else 5 for fault in faults]
    assert [(each.survivors, each.failures) for each in records] == [([each], {}) for each in survivors]
    late = f"stage mask goes on without an answer of client {VICTIM.client_id}"
    assert (late in log) == ("late" in faults)
    refused = len(by_client) - ("late" in faults)
    assert log.count(f"client {VICTIM.client_id} left in stage mask:") == refused
    # A sum with a foreign summand would be off by up to half the modulus, thousands of clipping norms.
    assert all(each.loss < 100 for each in records)
    assert audit_run(faulty.files(name)).passed
    assert faulty.sent(VICTIM) == faulty.sent(WITNESS) == len(faults)
    # It may still sleep over its late answer.
    faulty.kill_node(VICTIM)
    faulty.start_node(VICTIM)
    faulty.running.wait_for_nodes()


def test_a_restarted_superlink_knows_its_nodes(faulty):
    faulty.restart_superlink()
    faulty.finish(faulty.train("restarted"))
    (record,) = faulty.rounds("restarted")
    assert (record.survivors, record.failures) == ([5], {})


def test_a_superlink_restarted_in_the_middle_of_a_run(faulty):
    """A run finishes with all updates although the SuperLink is killed and restarted in its middle."""
    name = "restarted-meanwhile"
    run = faulty.train_until(WITNESS, "mask", name, ["run.num_rounds=2"])
    faulty.restart_superlink()
    assert "has broken off the log of run" in faulty.finish(run)
    assert [(each.survivors, each.failures) for each in faulty.rounds(name)] == [([5], {})] * 2
    assert ledger_of(faulty, name)["charged_rounds"] == 2
    assert audit_run(faulty.files(name)).passed


def test_a_superlink_whose_database_is_locked_for_a_while(faulty):
    """A run finishes with all updates although the SuperLink's database is locked for eight seconds."""
    name = "locked"
    run = faulty.train_until(WITNESS, "mask", name, ["run.num_rounds=2"])
    database = Path(faulty.running.place.folder(SUPERLINK, STATE)) / DATABASE
    with closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(8)
    faulty.finish(run)
    assert [(each.survivors, each.failures) for each in faulty.rounds(name)] == [([5], {})] * 2
    assert ledger_of(faulty, name)["charged_rounds"] == 2


def test_a_node_killed_while_it_trains_costs_its_own_update_only(faulty):
    """A round goes on without a node that is killed during training, and the run's audit passes."""
    run = faulty.train_until(VICTIM, "mask", "killed")
    faulty.kill_node(VICTIM)
    faulty.finish(run)
    (record,) = faulty.rounds("killed")
    assert (record.cohort_sizes, record.survivors, record.failures) == ([5], [4], {})
    assert ledger_of(faulty, "killed")["participations"] == [EVERYBODY]
    assert audit_run(faulty.files("killed")).passed
    assert faulty.sent(WITNESS) == 1
    assert faulty.sent(VICTIM) in (0, 1)
    assert faulty.leaked_secrets() == []


def test_a_restarted_node_goes_on_under_its_identity_in_a_run_that_is_resumed(faulty):
    """A node that is killed after round 1 takes part in round 2 of the resumed run as the same client."""
    name, words = "identities", ["secagg.mode=active", "run.num_rounds=2"]
    faulty.finish(faulty.train(name, [*words, "run.stop_after_round=1"]))
    faulty.kill_node(VICTIM)
    faulty.start_node(VICTIM)
    faulty.running.wait_for_nodes()
    faulty.finish(faulty.train(name, words))
    assert [(each.survivors, each.failures) for each in faulty.rounds(name)] == [([5], {})] * 2
    assert [faulty.sent(each) for each in (VICTIM, WITNESS)] == [2, 2]
    assert audit_run(faulty.files(name)).passed


@pytest.mark.timeout(1200)
def test_a_node_killed_between_its_turn_and_taking_its_noise_back(faulty):
    """A run passes its audit if a node is killed, whether or not it restarts and removes its earlier noise.

    It has turns in rounds 1, 3 and 4, and in rounds 2 and 5 it takes noise back and does nothing else.
    """
    name, victim = "turns", VICTIM.client_id
    words = [
        "privacy.against=everyone",
        "secagg.mode=active",
        "run.num_rounds=5",
        "privacy.sampling_rate=0.6",
    ]
    faulty.finish(faulty.train(name, [*words, "run.stop_after_round=1"]))
    faulty.kill_node(VICTIM)
    faulty.start_node(VICTIM)
    faulty.running.wait_for_nodes()
    faulty.finish(faulty.train(name, [*words, "run.stop_after_round=4"]))
    run = faulty.train_until(VICTIM, "mask", name, words)
    faulty.kill_node(VICTIM)
    faulty.finish(run)
    records = faulty.rounds(name)
    assert [each.failures for each in records] == [{}] * 5
    assert [victim in each.turns[0] for each in records] == [True, False, True, True, False]
    assert sorted(records[1].taken_back[0]) == [[client, 1] for client in records[0].turns[0]]
    assert {client for client, _ in records[4].taken_back[0]} == set(records[3].turns[0]) - {victim}
    assert audit_run(faulty.files(name)).passed
    assert faulty.sent(WITNESS) == sum(WITNESS.client_id in each.turns[0] for each in records)
    faulty.start_node(VICTIM)
    faulty.running.wait_for_nodes()
