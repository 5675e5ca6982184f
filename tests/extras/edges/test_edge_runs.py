"""Tests of a cloud with edges: sums and charges as in a federation without edges, and faults of both."""

import hashlib
import json
import os
from dataclasses import asdict, replace
from math import inf
from threading import Timer

import numpy as np
import pytest

from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.errors import ConfigError, RunError
from gdpfed.extras.edges.edge import TOO_LATE, Edge
from gdpfed.extras.edges.edge_client import EdgeClient
from gdpfed.extras.edges.mailbox import JOB, EdgeError, Job, Mailbox
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.in_process_fleet import simulate
from testing.layered_runs import CLOUD, EdgeRun, cloud_grid, run_layers
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, crashing_grid, refusals
from testing.small_runs import final_model, ledger_of, nothing_drawn, run

SIZE, EDGES = 3, 2
TRAINING = [
    "training.local_steps=4",
    "training.batch_size=512",
    "training.learning_rate=0.5",
    "training.learning_rate_decay=1",
    "dataset.model=softmax",
    "run.num_rounds=2",
]
ASKED = asdict(LocalTraining(local_steps=4, batch_size=512, learning_rate=0.5, momentum=0.0))
START = np.zeros(650, np.float32)
PLAIN = [*TRAINING, "method=hier_fedavg", "method.local_aggregations=2"]
PRIVATE = [
    *TRAINING,
    "method=h2fdp",
    "method.mechanism=step_sum",
    "privacy=record_level",
    "privacy.accountant=rdp",
    "privacy.delta=1e-5",
    "privacy.batch_rate=0.2",
    "privacy.budgets=[8]",
]
ONE, TWO = "method.num_subnets=1", "method.num_subnets=2"
LAST = np.zeros(3, np.float32)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.1)
    for side in ("edge", "edge_client"):
        monkeypatch.setattr(f"gdpfed.extras.edges.{side}.POLL_SECONDS", 0.02)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Write a file of examples for each of six devices; return the paths of the files."""
    folder = tmp_path_factory.mktemp("examples")
    task = task_of(load(["dataset=digits", f"dataset.num_clients={SIZE * EDGES}"]))
    files = [folder / f"{client}.npz" for client in range(SIZE * EDGES)]
    for client, file in enumerate(files):
        own = task.client_data(client)
        np.savez(file, x_train=own.x, y_train=own.y)
    return files


def devices(files, ledgers=None, told=None):
    """Return a grid with one device for each file, and with ledgers in the folder ``ledgers`` if given."""
    grid = LocalGrid(len(files))
    for client, file in enumerate(files):
        own = {"data": str(file)} | (told or {})
        if ledgers is not None:
            ledgers.mkdir(exist_ok=True)
            own |= {"epsilon-record": 8.0, "ledger": str(ledgers / f"{client}.json")}
        grid.contexts[FIRST_NODE_ID + client].node_config |= own
    return grid


def test_layers_and_a_flat_federation_have_the_same_sums(tmp_path, examples):
    run(
        tmp_path / "flat",
        [*PLAIN, TWO, f"dataset.num_clients={SIZE * EDGES}"],
        grid=devices(examples),
    )
    edges = [devices(examples[:SIZE]), devices(examples[SIZE:])]
    edge_clients = cloud_grid([tmp_path / f"mailbox-{edge}" for edge in range(EDGES)])
    run_layers(tmp_path, edges, [*PLAIN, ONE], TRAINING, edge_clients)
    flat, layered = final_model(tmp_path / "flat"), final_model(tmp_path / "cloud")
    assert np.abs(flat).max() > 0.1
    np.testing.assert_allclose(layered, flat, atol=2e-5)
    assert [record.survivors for record in read_rounds(tmp_path / "cloud")] == [[EDGES]] * 2
    # What the cloud sends is one message an edge and round, beside those that begin the run.
    assert [kind for kind, _ in edge_clients.sent if kind == "plain"] == ["plain"] * 2 * EDGES


def test_layers_and_a_flat_federation_have_the_same_charges(tmp_path, examples):
    flat = [*PRIVATE, TWO, f"dataset.num_clients={SIZE * EDGES}", "dataset.partition=iid"]
    run(tmp_path / "flat", flat, grid=devices(examples, tmp_path / "flat-ledgers"))
    edges = [
        devices(examples[SIZE * k : SIZE * (k + 1)], tmp_path / f"ledgers-{k}", told={}) for k in range(EDGES)
    ]
    run_layers(tmp_path, edges, [*PRIVATE, ONE], TRAINING)
    for client in range(SIZE * EDGES):
        (one,) = ledger_of(tmp_path / "flat-ledgers", client).runs
        (other,) = ledger_of(tmp_path / f"ledgers-{client // SIZE}", client % SIZE).runs
        assert (one.rounds, one.steps) == (other.rounds, other.steps) == ([0] * 4 + [1] * 4, [1] * 8)
        assert one.terms.charges == other.terms.charges
    for name in ("flat", "edge-0/run", "edge-1/run", "cloud"):
        assert audit_run(tmp_path / name).findings == ()


def test_devices_that_trust_their_edge_send_it_single_updates(tmp_path, examples):
    edges = [
        devices(examples[:SIZE], tmp_path / f"ledgers-{k}", {"edge-trusted": True}) for k in range(EDGES)
    ]
    words = [*PRIVATE, ONE, "method.trust=trusted", "secagg=off"]
    one_round = "run.num_rounds=1"
    run_layers(tmp_path, edges, [*words, one_round], [*TRAINING, one_round])
    (record,) = read_rounds(tmp_path / "edge-0" / "run")
    assert record.survivors == [SIZE] * 4
    assert min(record.noise_stddevs) > 0
    (entry,) = ledger_of(tmp_path / "ledgers-0", 0).runs
    assert entry.rounds == [0] * 4
    assert entry.edge_trusted
    assert audit_run(tmp_path / "edge-0" / "run").findings == ()
    audit = audit_node_ledger(tmp_path / "ledgers-0" / "0.json")
    assert audit.passed
    assert audit.runs[0].against_server == inf
    card = (tmp_path / "edge-0" / "run" / "model_card.md").read_text()
    assert "each device said that it trusts it" in card
    assert "simulated" not in card
    ledger = json.loads((tmp_path / "ledgers-0" / "0.json").read_text())["ledger"]
    assert ledger["version"] == 4
    ledger["runs"][0]["edge_trusted"] = False
    checksum = hashlib.sha256(json.dumps(ledger, sort_keys=True).encode()).hexdigest()
    (tmp_path / "silent.json").write_text(json.dumps({"ledger": ledger, "sha256": checksum}))
    (finding,) = audit_node_ledger(tmp_path / "silent.json").findings
    assert finding.endswith("showed single updates to the server")


def test_a_trusted_edge_goes_on_without_a_device_within_the_tolerance(tmp_path, examples):
    """A trusted edge goes on with four of five devices if its dropout tolerance allows one dropout."""
    folder, ledgers = tmp_path / "mailbox", tmp_path / "ledgers"
    grid = devices(examples[:5], ledgers, {"edge-trusted": True})
    grid.vanishes = lambda kind, client: (kind, client) == ("plain", 4)
    words = [*PRIVATE, ONE, "method.trust=trusted", "secagg=off", "secagg.dropout_tolerance=0.2"]
    with nothing_drawn():
        edge = EdgeRun(tmp_path / "edge", folder, grid, [*words, "run.num_rounds=1"])
        edge.start()
        moved = EdgeClient(folder, 60).interval(Job("cloud", 0, ASKED, START))
        edge.join(60)
    assert edge.error is None
    assert np.abs(moved).max() > 0
    (record,) = read_rounds(tmp_path / "edge")
    assert (record.survivors, record.failures) == ([4] * 4, {})
    (entry,) = ledger_of(ledgers, 0).runs
    assert entry.rounds == [0] * 4
    assert audit_run(tmp_path / "edge").findings == ()


@pytest.mark.parametrize(
    ("told", "words", "reason"),
    [
        ({}, ["secagg=off"], "not started with secagg-mode=off"),
        ({"secagg-mode": "off"}, ["secagg=off"], "edge-trusted=true if the server is an edge"),
        ({"edge-trusted": False}, ["secagg=off"], "not started with secagg-mode=off"),
        (
            {"edge-trusted": True, "secagg-mode": "curious"},
            ["secagg=off"],
            "edge-trusted=true lets an edge see single updates, and secagg-mode=curious does not",
        ),
        (
            {"edge-trusted": True, "max-epsilon-against-server": 9.0},
            ["secagg=off"],
            "edge-trusted=true trusts it: leave one out",
        ),
        ({"edge-trusted": True}, [], "the run of an edge .run.mailbox with secagg=off."),
    ],
)
def test_a_device_without_the_word_sends_no_single_update(tmp_path, examples, told, words, reason):
    ledgers = tmp_path / "ledgers"
    grid = devices(examples[:SIZE], ledgers, told)
    overrides = [*PRIVATE, ONE, "method.trust=trusted", *words, f"run.mailbox={tmp_path}"]
    with pytest.raises(RunError, match=reason):
        run(tmp_path / "edge", [*overrides, f"dataset.num_clients={SIZE}"], grid=grid)
    for client in range(SIZE):
        assert ledger_of(ledgers, client).runs == ()


def test_an_edge_that_dies_in_a_window_repeats_none(tmp_path, examples):
    """An edge that is killed in round 1 and restarted repeats no sum of round 1, and goes on with round 2."""
    folder, ledgers = tmp_path / "mailbox", tmp_path / "ledgers"
    grid = devices(examples[:SIZE], ledgers)
    dying = crashing_grid(SIZE, "mask", SIZE + 1)
    dying.contexts = grid.contexts
    words = [*PRIVATE, ONE]
    mailbox = Mailbox(folder)
    with nothing_drawn():
        killed = EdgeRun(tmp_path / "edge", folder, dying, words)
        killed.start()
        jobs = [Job("cloud", index, ASKED, START) for index in range(2)]
        mailbox.offer(jobs[0])
        killed.join(60)
        assert killed.error is not None
        assert mailbox.answered(jobs[0]) is None
        again = EdgeRun(tmp_path / "edge", folder, grid, words)
        again.start()
        with pytest.raises(EdgeError, match="without a model: interrupted before its end: charged"):
            EdgeClient(folder, 60).interval(jobs[0])
        moved = EdgeClient(folder, 60).interval(jobs[1])
        again.join(60)
    assert again.error is None
    assert np.abs(moved).max() > 0
    for client in range(SIZE):
        (entry,) = ledger_of(ledgers, client).runs
        assert entry.rounds in ([0, 0, *[1] * 4], [0, *[1] * 4])
    assert audit_run(tmp_path / "edge").findings == ()
    # The same job again, as after a cloud that was killed: the stored answer, and nothing is charged.
    np.testing.assert_array_equal(EdgeClient(folder, 1).interval(jobs[1]), moved)


def test_a_cloud_that_is_killed_asks_for_no_interval_twice(tmp_path, examples):
    """A cloud that is killed in round 1 and then resumed asks no edge for the same round twice."""
    folders = [tmp_path / f"mailbox-{edge}" for edge in range(EDGES)]
    edge_clients, dying = cloud_grid(folders), crashing_grid(EDGES, "plain", 2)
    dying.contexts = edge_clients.contexts
    edges = [
        EdgeRun(
            tmp_path / f"edge-{k}" / "run",
            folders[k],
            devices(examples[SIZE * k : SIZE * (k + 1)], tmp_path / f"ledgers-{k}"),
            [*PRIVATE, ONE],
        )
        for k in range(EDGES)
    ]
    words = [*TRAINING, *CLOUD, f"dataset.num_clients={EDGES}", "secagg.minimum_cohort=2"]
    with nothing_drawn():
        for edge in edges:
            edge.start()
        with pytest.raises(Crash):
            run(tmp_path / "cloud", words, grid=dying)
        first, second = run(tmp_path / "cloud", grid=edge_clients, resume=True)
        for edge in edges:
            edge.join(60)
    assert [edge.error for edge in edges] == [None, None]
    assert (first.survivors, list(first.failures)) == ([], ["round"])
    assert (second.survivors, second.failures) == ([EDGES], {})
    for k, rounds in enumerate(([0, 1], [1])):
        (entry,) = ledger_of(tmp_path / f"ledgers-{k}", 0).runs
        assert entry.rounds == [index for index in rounds for _ in range(4)]
        assert audit_run(tmp_path / f"edge-{k}" / "run").findings == ()
    assert audit_run(tmp_path / "cloud").findings == ()


def test_an_edge_leaves_out_the_rounds_that_the_cloud_did_without_it(tmp_path, examples):
    folder, ledgers = tmp_path / "mailbox", tmp_path / "ledgers"
    with nothing_drawn():
        words = [*PRIVATE, ONE]
        edge = EdgeRun(tmp_path / "edge", folder, devices(examples[:SIZE], ledgers), words)
        edge.start()
        EdgeClient(folder, 60).interval(Job("cloud", 1, ASKED, START))
        edge.join(60)
    assert edge.error is None
    first, second = read_rounds(tmp_path / "edge")
    assert (first.survivors, first.failures) == ([], {"round": "the cloud did this round without this edge"})
    assert second.survivors == [SIZE] * 4
    (entry,) = ledger_of(ledgers, 0).runs
    assert entry.rounds == [1] * 4
    assert audit_run(tmp_path / "edge").findings == ()


def test_the_cloud_goes_on_without_an_edge_that_does_not_answer(tmp_path, examples):
    """The cloud goes on if no edge answers in time: no mean is made, and the edge clients say why."""
    edge_clients = cloud_grid([tmp_path / "mailbox-0", tmp_path / "mailbox-1"], seconds=0.3)
    words = [*TRAINING, "method=edge_average", "secagg=off", "secagg.minimum_cohort=2"]
    records = run(
        tmp_path / "cloud", [*words, "dataset.num_clients=2"], grid=edge_clients, without_a_sum=True
    )
    assert [record.survivors for record in records] == [[0], [0]]
    assert any("has not answered round 1 within 0.3 s: see" in each for each in refusals(edge_clients))
    assert not list(tmp_path.glob("mailbox-*/job-*"))


def test_an_edge_ends_with_the_clouds_run_and_does_not_wait_for_ever(tmp_path, examples):
    """An edge that plans three rounds ends after two, together with the cloud's run."""
    grids = [devices(examples[:SIZE], tmp_path / "ledgers"), devices(examples[SIZE:])]
    words = [*PRIVATE, ONE, "run.num_rounds=3"]
    run_layers(tmp_path, grids, words, [*TRAINING])
    for number in range(EDGES):
        assert len(read_rounds(tmp_path / f"edge-{number}" / "run")) == 2
        assert audit_run(tmp_path / f"edge-{number}" / "run").findings == ()
        with pytest.raises(EdgeError, match="serves another run of the cloud"):
            Mailbox(tmp_path / f"mailbox-{number}").end("another")


def test_the_cloud_waits_for_an_edge_that_left_before_it_begins_a_round(tmp_path, examples, monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.attendance.POLL_SECONDS", 0.01)
    folders = [tmp_path / f"mailbox-{number}" for number in range(EDGES)]
    edge_clients = cloud_grid(folders)
    everybody, asked = edge_clients.get_node_ids, []

    def node_ids():
        """Return all nodes; in the first twenty calls after a round's updates, leave out one edge client."""
        asked.append(len(edge_clients.exchanges))
        away = edge_clients.exchanges[-1:] == [{"plain"}] and asked.count(asked[-1]) <= 20
        return list(everybody())[: EDGES - away]

    monkeypatch.setattr(edge_clients, "get_node_ids", node_ids)
    run_layers(
        tmp_path, [devices(examples[:SIZE]), devices(examples[SIZE:])], [*PLAIN, ONE], TRAINING, edge_clients
    )
    assert [record.survivors for record in read_rounds(tmp_path / "cloud")] == [[EDGES], [EDGES]]
    assert asked.count(asked[-1]) > 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"training": {"local_steps": 8}}, "it orders training.local_steps=8, and this edge has 4"),
        ({"start": np.zeros(7, np.float32)}, "its model has 7 parameters, and this edge's 650"),
        ({"start": np.full(650, np.nan, np.float32)}, "its model is not finite"),
    ],
)
def test_a_job_that_is_none_of_the_edge_is_refused_before_anything_is_charged(
    tmp_path, examples, change, reason
):
    folder, ledgers = tmp_path / "mailbox", tmp_path / "ledgers"
    words = [*PRIVATE, ONE]
    training, start = ASKED | change.get("training", {}), change.get("start", START)
    with nothing_drawn():
        edge = EdgeRun(tmp_path / "edge", folder, devices(examples[:SIZE], ledgers), words)
        edge.start()
        with pytest.raises(EdgeError, match=reason):
            EdgeClient(folder, 60).interval(Job("cloud", 0, training, start))
        EdgeClient(folder, 60).interval(Job("cloud", 1, ASKED, START))
        edge.join(60)
    (entry,) = ledger_of(ledgers, 0).runs
    assert entry.rounds == [1] * 4


@pytest.mark.parametrize("damage", ["text", "flipped", "pipe", "late"])
def test_a_damaged_job_neither_ends_nor_hangs_nor_skips_a_round(tmp_path, damage):
    order = order_of(load(["dataset=digits", *TRAINING]), task_of(load(["dataset=digits", *TRAINING])))
    mailbox, said = Mailbox(tmp_path), list[str]()
    job, path = Job.of("cloud", order, START), tmp_path / "job-0"
    mailbox.offer(job)
    good = path.read_bytes()
    if damage == "late":
        path = tmp_path / "job-4000000000"
        late = replace(job, round_index=4_000_000_000)
        mailbox.offer(late)
    else:
        path.unlink()
        if damage == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(b'{"run": 1}' if damage == "text" else good[:-1] + b"?")
    mend = Timer(0.5, (tmp_path / "job-0").write_bytes, [good])
    mend.start()
    np.testing.assert_array_equal(Edge(mailbox, said.append, num_rounds=2).start(order, START), START)
    mend.join()
    assert len(said) == 1
    assert ("this edge's run has 2" if damage == "late" else "a damaged job of round 1") in said[0]


def test_a_folder_serves_one_run_and_one_job_a_round(tmp_path):
    mailbox = Mailbox(tmp_path)
    job = Job("cloud", 3, {"local_steps": 4}, LAST)
    mailbox.offer(job)
    mailbox.offer(job)
    with pytest.raises(EdgeError, match="another job for round 4"):
        mailbox.offer(Job("cloud", 3, {"local_steps": 4}, LAST + 1))
    with pytest.raises(EdgeError, match="at round 4, and round 3 is past"):
        mailbox.offer(Job("cloud", 2, {"local_steps": 4}, LAST))
    mailbox.withdraw(job)
    with pytest.raises(EdgeError, match="serves another run of the cloud"):
        mailbox.offer(Job("another", 4, {"local_steps": 4}, LAST))
    mailbox.answer(job, LAST)
    with pytest.raises(EdgeError, match="has answered another job of round 4"):
        mailbox.answered(Job("cloud", 3, {"local_steps": 4}, LAST + 1))
    mailbox.answer(job, None, TOO_LATE)
    with pytest.raises(EdgeError, match="not done again"):
        mailbox.answered(job)
    for unfit in (LAST[:2], np.append(LAST, LAST[:1]), LAST + np.float32("nan"), LAST - np.float32("inf")):
        mailbox.answer(job, unfit)
        with pytest.raises(EdgeError, match="does not fit the model"):
            mailbox.answered(job)
    mailbox.answer(job, LAST + 1)
    np.testing.assert_array_equal(mailbox.answered(job), LAST + 1)


def test_an_edge_client_whose_cloud_was_killed_does_not_wait_on(tmp_path):
    """An edge client stops waiting for a round's answer once the resumed cloud has ordered the next round."""
    job, later = (Job("cloud", index, ASKED, LAST) for index in range(2))
    offered = Timer(0.1, Mailbox(tmp_path).offer, [later])
    offered.start()
    with pytest.raises(EdgeError, match="the cloud has gone on, and round 1 is past"):
        EdgeClient(tmp_path, 60).interval(job)
    offered.join()
    assert Mailbox(tmp_path).rounds(JOB) == [1]


@pytest.mark.parametrize("other", [{"data": "a.npz"}, {"epsilon": 1.0}, {"edge-trusted": True}])
def test_an_edge_client_has_neither_data_nor_a_budget(tmp_path, other):
    edge_clients = cloud_grid([tmp_path / "mailbox-0", tmp_path / "mailbox-1"], node_config=other)
    words = [*TRAINING, "method=edge_average", "secagg=off", "dataset.num_clients=2"]
    with pytest.raises(RunError, match="makes this node the client of an edge"):
        run(tmp_path / "cloud", [*words, "secagg.minimum_cohort=2"], grid=edge_clients)


def test_a_simulation_is_no_edge(tmp_path):
    words = [*PRIVATE, ONE, "dataset.num_clients=3", f"run.mailbox={tmp_path}"]
    with pytest.raises(ConfigError, match="is for the run of an edge"):
        simulate(load([*words, f"run.directory={tmp_path / 'run'}"]))


def test_a_folder_that_cannot_be_used_is_named_by_its_settings_without_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeError, match=r"run\.mailbox.*\(edge\) cannot be used .*read and write") as refused:
        Mailbox(tmp_path / "file").end("run")
    assert str(tmp_path) not in str(refused.value)
