"""Test of killed processes of cloud, edges and devices: each sum is charged once, and means are right."""

import json
from collections import Counter

import numpy as np
import pytest

from deploy.edges import CLOUD, Layers
from deploy.layers import LoopbackLayers
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import LaunchError
from gdpfed.extras.edges.edge_client import EdgeClient
from gdpfed.extras.edges.mailbox import ANSWER, JOB, Mailbox
from gdpfed.runs.round_log import read_rounds
from testing.small_runs import final_model
from tests.deploy.faulty_federation import FaultyFederation
from tests.deploy.test_faults import INTERRUPTED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
# Of four devices one may vanish. Both edges sum twice a round.
LAYERS = Layers.of(2, 8, trusted_edges=1)
TRUSTED, SUMMED = LAYERS.edges
WINDOWS, ROUNDS = 2, 4
# Two windows of every edge, on two busy cores, and the time until a killed node is missed.
INTERVAL = 900.0
WORDS = (f"run.num_rounds={ROUNDS}",)
OF_EDGES = (*WORDS, "run.timeout_seconds=120", "secagg.threshold=0.5", "secagg.dropout_tolerance=0.25")


def job_in(mailbox, round_index):
    job = mailbox.job(round_index)
    assert job is not None
    return job


def test_kills_of_a_device_an_edge_an_edge_client_and_the_cloud():
    """A run ends with the right mean after kills of a device, an edge's app, an edge client and the cloud."""
    with LoopbackLayers(LAYERS) as running:
        cloud, trusted, summed = (FaultyFederation(each) for each in running.federations.values())
        mailboxes = [Mailbox(running.mailbox(edge)) for edge in LAYERS.edges]
        starts = []

        def reached(edge, stage, round_index):
            """Record the model that a round starts from, and wait until a device gets a stage's message."""
            node, mailbox = edge.running.federation.nodes[0], mailboxes[[trusted, summed].index(edge)]
            edge.until(
                lambda: round_index in mailbox.rounds(JOB), f"round {round_index + 1} has a job", INTERVAL
            )
            starts.append(job_in(mailbox, round_index).start)
            before = edge.received(node, stage)
            edge.until(
                lambda: edge.received(node, stage) > before,
                f"round {round_index + 1} is in {stage}",
                INTERVAL,
            )

        for edge in LAYERS.edges:
            running.train(edge, OF_EDGES)
        run = running.train(CLOUD, WORDS)

        reached(trusted, "train.plain", 0)
        device = trusted.running.federation.nodes[1]
        trusted.kill_node(device)
        reached(summed, "train.advertise", 0)
        summed.server_app().kill()
        with pytest.raises(LaunchError, match=r"run\.resume="):
            summed.finish(running.training[SUMMED])
        running.train(SUMMED, OF_EDGES)
        trusted.start_node(device)
        cloud.until(lambda: len(read_rounds(running.files(CLOUD))) == 1, "the end of round 1", INTERVAL)

        reached(trusted, "train.plain", 1)
        edge_client = LAYERS.edge_client(TRUSTED)
        cloud.kill_node(edge_client)
        cloud.start_node(edge_client)
        cloud.until(lambda: len(read_rounds(running.files(CLOUD))) == 2, "the end of round 2", INTERVAL)

        reached(summed, "train.advertise", 2)
        cloud.server_app().kill()
        with pytest.raises(LaunchError, match=r"run\.resume="):
            cloud.finish(run)
        cloud.running.wait_for_nodes()
        running.train(CLOUD, WORDS)
        running.follow()

        of_cloud, of_trusted, of_summed = (read_rounds(running.files(name)) for name in LAYERS.hosts)
        assert [each.survivors for each in of_cloud] == [[0], [0], [], [2]]
        assert of_cloud[2].failures == INTERRUPTED
        assert of_cloud[3].failures == {}
        # Without its edges' sums the cloud keeps its model, to the last bit.
        jobs = [job_in(mailbox, ROUNDS - 1) for mailbox in mailboxes]
        for start in (*starts, *(job.start for job in jobs)):
            np.testing.assert_array_equal(start, jobs[0].start)
        assert [mailbox.rounds(ANSWER) for mailbox in mailboxes] == [[ROUNDS - 1]] * 2
        changes = [
            EdgeClient(mailbox.folder, 1).interval(job) for mailbox, job in zip(mailboxes, jobs, strict=True)
        ]
        mean = jobs[0].start + np.mean(changes, axis=0)
        np.testing.assert_allclose(final_model(running.files(CLOUD)), mean, atol=2e-5)
        assert min(np.abs(change).max() for change in changes) > 1e-3

        whole = [4] * WINDOWS
        assert of_trusted[0].failures == {}
        assert sorted(of_trusted[0].survivors)[0] == 3
        assert (of_summed[0].survivors, of_summed[0].failures) == ([], INTERRUPTED)
        for records in (of_trusted, of_summed):
            assert [(each.survivors, each.failures) for each in (records[1], records[3])] == [(whole, {})] * 2
        for name in LAYERS.hosts:
            assert audit_run(running.files(name)).findings == ()
            ledger = json.loads((running.files(name) / "ledger.json").read_text())
            assert ledger["charged_rounds"] == ROUNDS
        for federation in (trusted.running, summed.running):
            for node in federation.federation.nodes:
                assert audit_node_ledger(federation.ledger_of(node)).passed
                (entry,) = json.loads(federation.ledger_of(node).read_text())["ledger"]["runs"]
                assert max(Counter(entry["rounds"]).values()) <= WINDOWS
        assert [each.leaked_secrets() for each in (cloud, trusted, summed)] == [[]] * 3
