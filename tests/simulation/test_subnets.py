"""Tests of simulated subnets, which are groups of clients with a sum of their own: sums, audits, resuming."""

import json
from dataclasses import replace

import numpy as np
import pytest

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import ClientPart
from gdpfed.learning.models import flatten
from gdpfed.learning.task import choose_device
from gdpfed.record_steps import RecordSteps
from gdpfed.rounds.run import PreparedRun
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort, SequentialEngine, SumJob, split_jobs
from gdpfed.simulation.in_process_fleet import InProcessFleet
from gdpfed.simulation.parallel_engines import WorkerProcesses
from secagg import Contributors, Encoding, keystream
from testing.forged import edit_json
from testing.small_runs import only_a_card

NUM_CLIENTS = 14
SETTINGS = (
    "dataset=digits",
    f"dataset.num_clients={NUM_CLIENTS}",
    "dataset.model=softmax",
    "privacy=record_level",
    "privacy.budgets=[1]",
    "privacy.batch_rate=0.2",
    "training.local_steps=4",
    "method.num_subnets=3",
    "method.local_aggregations=2",
    "run.num_rounds=3",
    "simulation.workers=1",
)
WORKS = {
    "update": None,
    "gradient_sum": RecordSteps(num_steps=1, batch_rates=(0.2,), clipping_norm=1.0, noise_multiplier=0.0),
    "convex_steps": RecordSteps(num_steps=2, batch_rates=(0.2,), clipping_norm=1.5, noise_multiplier=0.0),
    "window_steps": RecordSteps(num_steps=2, batch_rates=(0.2,), clipping_norm=1.0, noise_multiplier=0.0),
}


def engine_of(task, **options):
    return BatchedEngine(task, choose_device("cpu"), bits=bits, **options)


def bits(client_id):
    return keystream(bytes([client_id]) * 32)


def jobs_of(work):
    """Return a task and one sum for each of three subnets, of 4, 4 and 6 clients, with different models."""
    config = load([*SETTINGS, "method=h2fdp"])
    task = task_of(config)
    theta, order = flatten(task.build_model()), order_of(config, task)
    order = replace(order, work=work, training=replace(order.training, local_steps=2, learning_rate=0.3))
    parts = {} if WORKS[work] is None else {c: ClientPart(records=WORKS[work]) for c in range(NUM_CLIENTS)}
    jobs = []
    for number, clients in enumerate((range(4), range(4, 8), range(8, 14))):
        encoding = Encoding.for_sum(
            Contributors(len(clients)),
            dimension=len(theta),
            clipping_norm=60.0,
            noise_multiplier=0.5,
        )
        start = (theta + 0.1 * number).astype(np.float32)
        jobs.append(SumJob(order, start, Cohort(list(clients), encoding, parts)))
    return task, jobs


@pytest.mark.parametrize("work", WORKS)
def test_subnets_in_one_call_are_subnets_one_by_one(work):
    task, jobs = jobs_of(work)

    together = engine_of(task).sums_of(jobs)
    alone = [engine_of(task).sum_updates(job.order, job.start, job.cohort) for job in jobs]
    by_node = [SequentialEngine(bits).sum_updates(job.order, job.start, job.cohort) for job in jobs]
    few = engine_of(task, chunk_clients=3).sums_of(jobs)
    for one, other, small, node in zip(together, alone, few, by_node, strict=True):
        assert one.num_updates == other.num_updates == small.num_updates == node.num_updates
        # Products of other shapes round otherwise, which only updates are kept from.
        most_off = 0 if work == "update" else one.num_updates
        assert np.abs(one.total - small.total).max() <= most_off
        assert np.abs(one.total - other.total).max() <= most_off
        grid_steps = np.abs(one.total - node.total).max()
        assert grid_steps <= 1e-4 * np.abs(one.total).max() + one.num_updates
    assert not np.array_equal(together[0].total, together[1].total)


def test_masked_subnets_are_trained_in_one_call_of_the_engine(monkeypatch):
    task, jobs = jobs_of("convex_steps")
    alone = [engine_of(task).sum_updates(job.order, job.start, job.cohort) for job in jobs]
    found = [np.zeros_like(each.total) for each in alone]
    seen = [list[int]() for _ in jobs]
    for number, clients, steps in engine_of(task, chunk_clients=5).updates_of(jobs):
        found[number] += steps.sum(axis=0)
        seen[number] += clients
    assert seen == [list(job.cohort.clients) for job in jobs]
    for total, one in zip(found, alone, strict=True):
        assert np.abs(total - one.total).max() <= one.num_updates
    calls = []
    original = BatchedEngine.updates_of

    def counted(self, jobs):
        calls.append(len(jobs))
        return original(self, jobs)

    monkeypatch.setattr(BatchedEngine, "updates_of", counted)
    monkeypatch.setattr(BatchedEngine, "updates", None)
    config = load([*SETTINGS, "method=h2fdp", "method.mechanism=step_local", "method.trust=untrusted"])
    run = PreparedRun.of(config)
    with InProcessFleet(config.secagg, "test", engine_of(task)) as fleet:
        method = run.method
        ledger = new_ledger(method)
        cohorts = [np.asarray(group.clients, dtype=np.int64) for group in method.plan.groups]
        ledger.open_round(0, cohorts)
        requests = method.requests(flatten(run.task.build_model()), 0, cohorts)
        answers = fleet.sum_updates(run.order, ledger.charge(0, requests))
    assert [each.survivors for each in answers] == [5, 5, 4]
    assert calls == [3]


def test_parts_of_jobs_are_even_and_complete():
    _, jobs = jobs_of("update")
    parts = split_jobs(jobs, [1] * 4)
    assert [sum(len(job.cohort.clients) for _, job in part) for part in parts] == [4, 4, 4, 2]
    assert [number for part in parts for number, _ in part] == [0, 1, 2, 2]
    clients = [client for job in jobs for client in job.cohort.clients]
    assert [client for part in parts for _, job in part for client in job.cohort.clients] == clients
    assert len(split_jobs(jobs, [1] * 40)) == len(clients)
    assert split_jobs([], [1] * 4) == []


def test_worker_processes_share_out_the_subnets_of_a_wave():
    task, jobs = jobs_of("update")
    make = lambda: BatchedEngine(task, choose_device("cpu"))  # noqa: E731 - forked, not pickled
    expected = make().sums_of(jobs)
    workers = WorkerProcesses(make, 2)
    updates = [np.zeros_like(each.total) for each in expected]
    try:
        found = workers.sums_of(jobs)
        for number, _, steps in workers.updates_of(jobs):
            updates[number] += steps.sum(axis=0)
    finally:
        workers.close()
    for one, other in zip(found, expected, strict=True):
        assert one.num_updates == other.num_updates
        assert np.array_equal(one.total, other.total)
    assert all(np.array_equal(one, other.total) for one, other in zip(updates, expected, strict=True))


def simulated(directory, *overrides):
    simulate(load([*SETTINGS, *overrides, f"run.directory={directory}"]), make_observers=only_a_card)
    return read_rounds(directory)


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=h2fdp", "method.trust=[trusted,secagg,untrusted]"),
        ("method=h2fdp", "method.mechanism=window", "secagg=off"),
        ("method=h2fdp", "method.mechanism=step_sum", "method.local_aggregations=null", "secagg=off"),
        ("method=h2fdp", "method.mechanism=step_local", "method.trust=untrusted", "secagg=off"),
        ("method=h2fdp", "privacy=client_level", "privacy.delta=1e-4", "secagg=off"),
        ("method=hier_fedavg", "method.participants=3", "secagg=off"),
        ("method=hfl_dp", "method.participants=4", "secagg=off"),
    ],
)
def test_runs_leave_files_that_an_audit_passes(tmp_path, overrides):
    records = simulated(tmp_path / "run", *overrides)
    windows = 4 if "method.mechanism=step_sum" in overrides else 2
    for record in records:
        assert len(record.survivors) == 3 * windows
        assert record.groups_in_sums == [[0], [1], [2]] * windows
        assert record.failures == {}
    audit = audit_run(tmp_path / "run")
    assert audit.findings == ()
    assert audit.passed or "method=hier_fedavg" in overrides


def test_the_model_card_says_where_trust_was_simulated(tmp_path):
    directory = tmp_path / "run"
    trust = "method.trust=[trusted,trusted,secagg]"
    simulate(load([*SETTINGS, "method=h2fdp", trust, "run.num_rounds=1", f"run.directory={directory}"]))
    card = (directory / "model_card.md").read_text()
    assert "subnets 0 to 1 (trusted): **simulated trust**" in card
    assert "subnets 2 (secagg): the noise was added by the devices together" in card


def test_what_was_changed_in_the_files_is_named(tmp_path):
    simulated(tmp_path / "run", "method=h2fdp", "method.trusted_share=1", "run.num_rounds=1", "secagg=off")
    config = (tmp_path / "run" / "config.yaml").read_text()
    changed = [
        ("momentum: 0.0", "momentum: 0.5", ["trains with momentum 0.5"]),
        ("trusted_share: 1.0", "trusted_share: 0.0", ["subnet 0 as trusted, the configuration as secagg"]),
        (
            "local_steps: 4",
            "local_steps: 6",
            [
                "2 windows of 2 steps a round, the configuration 6",
                "charged for 4 steps a round, and its devices take 6",
            ],
        ),
        ("local_aggregations: 2", "local_aggregations: null", ["sums_per_round 2, the configuration 1"]),
        ("model: softmax", "model: linear", ["charged for a convex loss, and the model is linear"]),
    ]
    for before, after, lines in changed:
        assert before in config
        (tmp_path / "run" / "config.yaml").write_text(config.replace(before, after))
        assert_found(tmp_path / "run", lines)
    (tmp_path / "run" / "config.yaml").write_text(config)
    plan = (tmp_path / "run" / "plan.json").read_text()
    for change, lines in (
        (
            said_to_add_their_own_noise,
            [
                "plan.json has works ['dp_sgd'], the configuration ['convex_steps']",
                "plan.json has subnet 0 as untrusted, the configuration as trusted",
            ],
        ),
        (by_the_cheaper_bound, ["subnet 0 is charged by the bound window, and convex_steps has convex"]),
        (
            at_half_of_the_norm_in_more_rounds,
            [
                "moves what a device of subnet 0 sends by 1.42127, and plan.json has 0.710",
                "participations_p99 3 of group 0, where 1 follows",
            ],
        ),
    ):
        (tmp_path / "run" / "plan.json").write_text(plan)
        edit_json(tmp_path / "run" / "plan.json", change)
        assert_found(tmp_path / "run", lines)


def assert_found(directory, lines):
    findings = audit_run(directory).findings
    for line in lines:
        assert any(line in finding for finding in findings), (line, findings)


def by_the_cheaper_bound(plan):
    for group in plan["groups"]:
        for own in (group, *group["records"]["groups"]):
            for charge in own["charges"]:
                charge["event"]["bound"] = "window"
        group["records"]["bound"] = "window"


def at_half_of_the_norm_in_more_rounds(plan):
    for group in plan["groups"]:
        group["records"]["clipping_norm"] /= 2
        group["participations_p99"] = 3


def said_to_add_their_own_noise(plan):
    plan["works"] = ["dp_sgd"]
    for group in plan["groups"]:
        group["trust"] = "untrusted"


def test_a_run_that_was_stopped_goes_on_with_its_ledger(tmp_path):
    whole = simulated(tmp_path / "whole", "method=h2fdp", "secagg=off")
    simulated(tmp_path / "parts", "method=h2fdp", "secagg=off", "run.stop_after_round=1")
    simulate(
        load_run([f"run.resume={tmp_path / 'parts'}", "run.stop_after_round=null"]),
        make_observers=only_a_card,
    )
    ledgers = [json.loads((tmp_path / name / "ledger.json").read_text()) for name in ("whole", "parts")]
    assert ledgers[0] == ledgers[1]
    assert len(read_rounds(tmp_path / "parts")) == len(whole) == 3
    assert audit_run(tmp_path / "parts").findings == ()
