"""Tests of a cloud and its edges, each with its own federation: settings, refusals, and one real training."""

import json
import re

import pytest

from deploy import layers as layers_module
from deploy.edges import Layers
from deploy.federation import TopologyError
from deploy.layers import LoopbackLayers, main
from deploy.loopback import OPERATOR
from deploy.run_words import secagg_words
from deploy.services import services
from gdpfed.launch.flower_run import FlowerRun, run_command
from gdpfed.runs.round_log import read_rounds
from tests.deploy.compose_promises import told
from tests.deploy.faulty_federation import FaultyFederation
from tests.deploy.thieving_app import thieving_app


def test_only_devices_of_the_first_edge_trust_it():
    layers = Layers.of(2, 6, trusted_edges=1)
    first, second = layers.edges.values()
    assert [len(edge.nodes) for edge in (first, second)] == [3, 3]
    assert "edge-trusted=true" in told(first)
    assert "secagg-mode" not in told(first)
    assert "edge-trusted" not in told(second)
    assert 'secagg-mode="curious"' in told(second)
    assert all("epsilon-record=" in told(edge) and "ledger=" in told(edge) for edge in (first, second))
    trusted, summed = (layers.words(name, ["run.num_rounds=1"]) for name in layers.edges)
    assert {"method.trust=trusted", "secagg=off", "run.num_rounds=1"} <= set(trusted)
    assert not {"method.trust=trusted", "secagg=off"} & set(summed)


def test_an_edge_client_has_the_folder_of_its_edge_and_neither_data_nor_a_budget():
    layers = Layers.of(2, 6)
    settings = told(layers.cloud, 1)
    assert settings.startswith('partition-id=1 edge="/mailbox" edge-seconds=3600 secagg-mode="off" identity')
    assert not any(word in settings for word in ("epsilon", "ledger=", "data="))
    seen = {service.name: [folder.name for folder in service.folders] for service in services(layers.cloud)}
    assert seen["edge-client-1-superexec"] == ["guard"]
    assert seen["edge-client-1-guard"] == ["mailbox", "guard"]
    words = layers.words("cloud", ["training.local_steps=8", "method.local_aggregations=1"])
    assert {"method=edge_average", "secagg=off", "training.local_steps=8"} <= set(words)
    assert "dataset.num_clients=2" in words
    assert not any(word.startswith("method.local") for word in words)
    # What the masks need follows these words, and may not ask again for masks.
    assert not any(word.startswith("secagg.mode") for word in secagg_words(layers.cloud))


@pytest.mark.parametrize(
    ("edges", "nodes", "reason"),
    [
        (1, 6, "--edges 1 is below 2"),
        (2, 7, "--nodes 7 do not divide among 2 edges: take 8"),
        (3, 6, "2 nodes are fewer than the 3 of the smallest sum"),
    ],
)
def test_layers_that_cannot_be_are_refused(edges, nodes, reason):
    with pytest.raises(TopologyError, match=reason):
        Layers.of(edges, nodes)


def test_a_plan_that_cannot_be_is_refused_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(layers_module, "LoopbackLayers", pytest.fail)
    assert main(["method.mechanism=convex", "method.local_aggregations=3"]) == 2
    assert "training.local_steps=2 are not method.local_aggregations=3" in capsys.readouterr().err


@pytest.mark.slow
def test_neither_edge_clients_nor_devices_run_an_app_of_plain_flwr_run(tmp_path):
    with LoopbackLayers(Layers.of(2, 6)) as running:
        for name, federation in running.federations.items():
            report = federation.runs / "unsigned.json"
            app = thieving_app(tmp_path / name, {}, report)
            command = run_command(federation.home.path / OPERATOR, app, {})
            FaultyFederation(federation).finish(FlowerRun(federation.home, command, folder=OPERATOR))
            of_server, *of_nodes = json.loads(report.read_text())
            assert of_server == []
            assert len(of_nodes) == len(federation.federation.nodes)
            assert {said[:23] for (said,) in of_nodes} == {"the app is not signed, "}
            logs = [federation.log(node.supernode) for node in federation.federation.nodes]
            assert not any("Received successfully" in log for log in logs)


@pytest.mark.slow
def test_two_edges_train_and_the_cloud_knows_no_device(tmp_path, capsys):
    directory = tmp_path / "run"
    assert main(["--edges", "2", "--nodes", "6", "--directory", str(directory), "run.num_rounds=1"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"node-\d: its own ledger holds epsilon", out)) == 6
    (record,) = read_rounds(directory / "cloud")
    assert (record.survivors, record.failures) == ([2], {})
    for edge in ("edge-0", "edge-1"):
        (record,) = read_rounds(directory / edge)
        assert (record.survivors, record.failures) == ([3, 3], {})
    ledger = json.loads((directory / "cloud" / "ledger.json").read_text())
    assert ledger["participations"] == [{"0": 1, "1": 1}]
    assert "client 2" not in (directory / "cloud" / "flower.log").read_text()
