"""Tests of the Kubernetes chart: each service, network and secret of the Compose file has a counterpart."""

import json
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import init
from deploy.__main__ import main as write
from deploy.compose import Containers, compose_file, host_file
from deploy.edges import Layers
from deploy.federation import Federation, TopologyError
from deploy.kubernetes import main as print_secrets
from deploy.kubernetes import secrets_of, values_of
from tests.deploy.compose_promises import at_defaults

CHART = Path("deploy/helm")
GATE = "gate.gdpfed-server.svc"
TREES = {
    "server": compose_file(Federation.of(), party="server"),
    "node": compose_file(Federation.of(), party="node-3", place=Containers(GATE)),
    "edge": host_file(Layers.of(2, 6), "edge-1", party="server"),
    "gpu": compose_file(Federation.of(), party="node-0", place=Containers(GATE), cuda=True),
}


@pytest.mark.parametrize("kind", TREES)
def test_every_service_network_and_folder_of_compose_has_its_counterpart(kind):
    compose, values = json.loads(at_defaults(json.dumps(TREES[kind]))), values_of(TREES[kind], {})
    watching = {name for name, each in compose["services"].items() if each.get("profiles") == ["metrics"]}
    compose["networks"].pop("metrics")
    programs = values["services"] | values["jobs"]
    assert programs.keys() == compose["services"].keys() - {"init"} - watching
    for name, program in programs.items():
        ours = compose["services"][name]
        assert (name in values["jobs"]) == (ours["restart"] == "no")
        assert values["images"][program["image"]] == ours["image"]
        words = [*ours["entrypoint"], *ours.get("command", [])]
        assert program["command"] == [word.replace("$$", "$") for word in words]
        assert program["environment"] == ours["environment"]
        assert program["networks"] == ours.get("networks", [])
        assert program["published"] == ("ports" in ours)
        assert (program["data"] == "/data") == ("/data" in {each["target"] for each in ours["volumes"]})
        folders = {each["path"]: each["read_only"] for each in program["claims"].values()}
        secret = dict.fromkeys([*program["secrets"], *([program["data"]] if program["data"] else [])], True)
        mounted = {each["target"]: each.get("read_only", False) for each in ours["volumes"]}
        assert folders | secret == mounted
        assert ("probe" in program) == (name in values["services"])
    internal = {name: each["internal"] for name, each in values["networks"].items()}
    assert internal == {name: each["internal"] for name, each in compose["networks"].items()}
    assert "${" not in json.dumps(values)


@pytest.mark.parametrize(
    ("kind", "one", "other", "folder"),
    [
        ("edge", "server-superexec", "edge-client-1-guard", "edge-client-1-superexec-mailbox"),
        ("node", "node-3-superexec", "node-3-guard", "node-3-guard-guard"),
    ],
)
def test_a_folder_that_two_services_share_is_one_claim(kind, one, other, folder):
    services = values_of(TREES[kind], {})["services"]
    assert services[one]["claims"].keys() & services[other]["claims"].keys() == {folder}


def test_variables_are_those_of_compose():
    def config(variables):
        return values_of(TREES["node"], variables)["services"]["node-3-guard"]["command"][-1]

    assert " epsilon=1.0 max-epsilon-against-server=1.0 " in config({})
    assert " epsilon=2 max-epsilon-against-server=2 " in config({"NODE_3_EPSILON": "2"})
    alone = compose_file(Federation.of(), party="node-3", place=Containers(GATE, alone="node-3"))
    with pytest.raises(TopologyError, match="set NODE_3_EPSILON or make this file with --epsilon"):
        values_of(alone, {})


def test_values_are_of_one_party_and_name_their_command(capsys):
    assert write(["--helm"]) == 2
    assert "--helm is for one party" in capsys.readouterr().err
    assert write(["--party", "node-3", "--epsilon", "2.5", "--data", "/x", "--helm"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# Made by: python -m deploy --party node-3 ")
    assert " epsilon=2.5 " in said


def test_credentials_become_one_secret_a_service_and_no_other_files(tmp_path, capsys):
    assert print_secrets(["--directory", str(tmp_path)]) == 2
    assert "holds no credentials: make them with python -m deploy.init first" in capsys.readouterr().err
    assert init.main(["--directory", str(tmp_path), "--party", "server"]) == 0
    capsys.readouterr()
    assert print_secrets(["--directory", str(tmp_path)]) == 0
    secrets = {each["metadata"]["name"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    values = values_of(TREES["server"], {})
    assert secrets.keys() == values["services"].keys() | {"public"}
    assert secrets["gate"]["data"].keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert "ca.key" not in set(chain.from_iterable(each["data"] for each in secrets.values()))


def test_a_cluster_runs_signed_apps_alone(tmp_path):
    """In a cluster, SuperNodes check the app's signature, and each Kubernetes Secret stays below 1 MiB."""
    node = values_of(TREES["node"], {})["services"]["supernode-3"]
    assert node["command"][3:6] == ["python", "-m", "deploy.supernode"]
    assert node["claims"] == {"supernode-3-seen": {"path": "/seen", "read_only": False}}
    train = values_of(TREES["server"], {})["jobs"]["train"]
    assert {"--signature", "/public/app.fab.signature", "/state/superlink.db"} < set(train["command"])
    assert train["claims"] == {"superlink-state": {"path": "/state", "read_only": False}}
    assert init.main(["--directory", str(tmp_path)]) == 0
    secrets = {each["metadata"]["name"]: each["data"] for each in secrets_of(tmp_path)}
    assert secrets["supernode-3"].keys() >= {"roster.json", "consortium.identity"}
    assert "app.fab.signature" in secrets["public"]
    assert max(sum(map(len, each.values())) for each in secrets.values()) < 2**20


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm on this machine")
@pytest.mark.parametrize("kind", TREES)
def test_helm_renders_confined_pods(kind, tmp_path):
    values = values_of(TREES[kind], {})
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    made = _rendered(file, "--set", "data=study")
    of_kind: dict[str, dict[str, Any]] = {
        name: {} for name in ("StatefulSet", "Service", "PersistentVolumeClaim", "NetworkPolicy", "Job")
    }
    for each in made:
        of_kind[each["kind"]][each["metadata"]["name"]] = each["spec"]
    assert of_kind["StatefulSet"].keys() == values["services"].keys()
    assert of_kind["Service"].keys() == {name for name, each in values["services"].items() if "port" in each}
    assert of_kind["NetworkPolicy"].keys() >= {"nobody", *values["networks"]}
    assert of_kind["PersistentVolumeClaim"].keys() == {
        claim for each in values["services"].values() for claim in each["claims"]
    }
    asked = _rendered(
        file, "--set", "data=study", "--set", "run.job=audit", "--show-only", "templates/jobs.yaml"
    )
    assert [each["metadata"]["generateName"] for each in asked] == ["audit-"]
    for name, spec in (of_kind["StatefulSet"] | of_kind["Job"]).items():
        pod = spec["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert not pod["automountServiceAccountToken"], name
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
    if kubeconform := shutil.which("kubeconform"):
        text = yaml.safe_dump_all([*made, *asked]).encode()
        subprocess.run([kubeconform, "-strict", "-"], input=text, check=True)


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm on this machine")
def test_a_node_without_data_is_refused(tmp_path):
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values_of(TREES["node"], {})))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        _rendered(file)
    assert (
        "node-3-guard has no data: name the claim that holds it with --set data=CLAIM" in refused.value.stderr
    )


def _rendered(values, *words):
    command = [str(shutil.which("helm")), "template", "party", CHART, "--values", values, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]
