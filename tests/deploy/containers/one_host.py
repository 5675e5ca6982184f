"""Checks of all parties on one host with one Compose file: confinement, training, faults and key rotation."""

import json
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import yaml
from safetensors.numpy import load as load_tensors

from conf.load import load
from deploy.compose import METRICS, compose_file
from deploy.description import to_text
from deploy.federation import EXAMPLES_FILE, Federation
from deploy.init import provide_demo_data
from deploy.operate import training_words
from deploy.topology import DATA
from gdpfed.cli.metrics_command import RUN_PORT
from gdpfed.cli.node_command import NODE_PORT
from gdpfed.runs.file_formats import MODEL_FILE
from server_app.train import train
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid
from testing.small_runs import nothing_drawn
from tests.deploy.containers import hostile
from tests.deploy.containers.engine import (
    OPEN,
    REACH,
    EngineError,
    Project,
    app_image,
    call,
    read,
    removed_afterwards,
    until,
)

Check = Callable[[str, Callable[[], object]], bool]
RUNS = "server-superexec/runs"
LEDGER_METRICS, USER_ID = "ledger-metrics", 49999
# The documented training that leaves room for a second one, and one that costs next to nothing.
# At the tolerance of 0.2 of a training on few nodes, fewer of them can lose nobody.
TOLERATES_ONE = 5
HALF = ("privacy.budgets=[0.5]", "run.num_rounds=1")
LITTLE = ("privacy.budgets=[0.1]",)
PREFIX = "10.214"
# Everybody in clear: no noise, so that the sums of two runs can be compared.
WITHOUT_NOISE = ("method=fedavg", "privacy.budgets=[1]", "run.num_rounds=2", "run.seed=7")


def scenario(root: Path, num_nodes: int, parts: Collection[str], check: Check) -> None:
    """Start a federation on one host, run these parts of ``PARTS`` on it, and take it down."""
    federation = Federation.of(num_nodes)
    file = root / "compose.yml"
    file.write_text(to_text(compose_file(federation), "for a test"), encoding="utf-8")
    project = Project("gdpfed-test", file, root / "federation", {"NETWORK_PREFIX": PREFIX})
    project.root.mkdir()
    with removed_afterwards(project):
        if not check(
            "up --wait ends with 0 at the first try",
            lambda: project.compose("up", "--detach", "--wait") is not None,
        ):
            return
        for name, part in PARTS.items():
            if name in parts:
                part(project, federation, check)
        project.compose("--profile", METRICS, "down")
        check("down leaves no container and no network", lambda: project.left() == [])


def _all(outcomes: Iterable[bool]) -> bool:
    return all(list(outcomes))


def _confined(project: Project, service: str) -> bool:
    """Return whether a container has no privileges, cannot write to /app, and has resource limits."""
    status = project.compose("exec", "--no-TTY", service, "cat", "/proc/1/status")
    told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    host = project.inspect(service)["HostConfig"]
    with suppress(EngineError):
        project.compose("exec", "--no-TTY", service, "touch", "/app/x")
        return False
    return (
        told["Uid"].split() == [str(USER_ID)] * 4
        and all(int(told[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd"))
        and told["NoNewPrivs"].strip() == "1"
        and min(host["Memory"], host["NanoCpus"], host["PidsLimit"]) > 0
    )


def _confinement(project: Project, federation: Federation, check: Check) -> None:
    """Check what each container may do, and which containers can connect to which others."""
    check(
        "every container is confined as the file says",
        lambda: _all(_confined(project, each) for each in project.services()),
    )
    app, other = "node-0-superexec", "supernode-1"
    check("a node's app reaches its own SuperNode", lambda: project.reaches(app, "supernode-0", 9094))
    check("a SuperNode reaches the gate", lambda: project.reaches("supernode-0", "gate", 8000))
    check(
        "a SuperNode does not reach the SuperLink",
        lambda: not any(project.reaches("supernode-0", each, 8000) for each in project.address("superlink")),
    )
    hostile.gets_nothing(project, federation.nodes[0], check)
    for service in (app, "supernode-0", "server-superexec"):
        check(
            f"{service} reaches no other node's SuperNode",
            partial(_reaches_none, project, service, project.address(other), 9094),
        )
    check(
        "a node's app does not reach the SuperLink",
        lambda: not any(project.reaches(app, each, 8000) for each in project.address("superlink")),
    )
    with listening() as (port, seen):
        (bridge,) = json.loads(call("docker", "network", "inspect", "bridge"))[0]["IPAM"]["Config"]
        hosts_end = str(next(ip_network(bridge["Subnet"]).hosts()))
        usual = (
            "run",
            "--rm",
            "--network",
            "bridge",
            "--entrypoint",
            "python",
            app_image()["image"],
        )
        check(
            "a container on Docker's usual network reaches a port of its host",
            lambda: call("docker", *usual, "-c", REACH, hosts_end, str(port)).strip() == OPEN,
        )
        before = len(seen)
        for service in (app, "server-superexec"):
            addresses = [hosts_end, own_address(), *_gateways(project, service)]
            check(
                f"{service} reaches no port of its host, by any of its addresses",
                partial(_reaches_none, project, service, addresses, port),
            )
            check(f"{service} has no address of IPv6", partial(_has_no_ipv6, project, service))
        check("nothing has reached that port", lambda: len(seen) == before)


def _has_no_ipv6(project: Project, service: str) -> bool:
    """Return whether a container has no IPv6 address except that of its loopback."""
    lines = project.compose("exec", "--no-TTY", service, "cat", "/proc/net/if_inet6").splitlines()
    return all(line.split()[-1] == "lo" for line in lines)


def _reaches_none(project: Project, service: str, addresses: Iterable[str], port: int) -> bool:
    return not any(project.reaches(service, address, port) for address in dict.fromkeys(addresses))


def _gateways(project: Project, service: str) -> list[str]:
    """Return the first address of each network of a service, which Docker gives to the host."""
    networks = project.inspect(service)["NetworkSettings"]["Networks"].values()
    return [
        str(next(ip_network(f"{each['IPAddress']}/{each['IPPrefixLen']}", strict=False).hosts()))
        for each in networks
    ]


@contextmanager
def listening() -> Iterator[tuple[int, list[Any]]]:
    """Listen on every address of this host; yield the port and a growing list of callers' addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - for the time of the test
        seen: list[Any] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, address = server.accept()
                    seen.append(address)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], seen


def own_address() -> str:
    """Return the address by which this host would reach other machines; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(("192.0.2.1", 9))
        return str(out.getsockname()[0])


def _records(project: Project, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(project.root, f"{RUNS}/{run}/rounds.jsonl").splitlines()]


def _trained(project: Project, run: str, *overrides: str) -> bool:
    """Train a run to its end, and return whether it passes its audit."""
    project.job("train", *overrides, f"run.directory={run}")
    return _audited(project, run)


def _audited(project: Project, run: str) -> bool:
    return "Every budget held, and the files agree." in project.job("audit", f"/runs/{run}")


def _ledgers(project: Project, federation: Federation) -> bool:
    """Return True if every node's ledger passes its audit; the audit job raises an error if one does not."""
    return _all(
        project.job("audit", "--node-ledger", f"/{node.name}/ledger.json") != "" for node in federation.nodes
    )


def _trainings(project: Project, federation: Federation, check: Check) -> None:
    check("flwr speaks to the SuperLink", lambda: "Listing all runs" in project.job("flwr", "list"))
    check("a training completes and passes its audit", lambda: _trained(project, "first", *HALF))
    check(
        "all are in its sum",
        lambda: [each["survivors"] for each in _records(project, "first")] == [[len(federation.nodes)]],
    )
    check(
        "a second training, in the same words, completes and passes its audit",
        lambda: _trained(project, "second", *HALF),
    )
    check("the ledger of every node passes its audit", lambda: _ledgers(project, federation))


def _figures(project: Project, federation: Federation, check: Check) -> None:
    """Check that metrics are served to this host, by containers that cannot reach the federation."""
    served = (f"http://127.0.0.1:{RUN_PORT}/metrics", f"http://127.0.0.1:{NODE_PORT}/metrics")

    def text(address: str) -> str:
        with suppress(OSError), urlopen(address, timeout=30) as reply:  # noqa: S310 - both are http
            return str(reply.read().decode())
        return ""

    def readable() -> int:
        return sum(text(address).count('gdpfed_readable{of="/') for address in served)

    project.compose("--profile", METRICS, "up", "--detach", METRICS, LEDGER_METRICS)
    until(lambda: readable() == 1 + len(federation.nodes), "figures are served", 120)
    runs, ledgers = map(text, served)
    check("figures of the newest run are served to this host", lambda: "gdpfed_run_rounds{" in runs)
    check(
        "figures of every ledger are served to this host",
        lambda: (
            ledgers.count("gdpfed_node_ledger_sound{") == len(federation.nodes) and "} 0.0" not in ledgers
        ),
    )
    for service in (METRICS, LEDGER_METRICS):
        check(f"{service} is confined as the file says", partial(_confined, project, service))
        for other, port in (("superlink", 8000), ("supernode-0", 9094)):
            check(
                f"{service} does not reach {other}",
                partial(_reaches_none, project, service, project.address(other), port),
            )
    project.compose("--profile", METRICS, "rm", "--stop", "--force", METRICS, LEDGER_METRICS)


def _until_stage(project: Project, service: str, stage: str, before: int) -> None:
    """Wait until a service has received more than ``before`` messages of this stage of secure sums."""
    until(lambda: _messages(project, service, stage) > before, f"{service} is in stage {stage}")


def _messages(project: Project, service: str, stage: str) -> int:
    return project.log(service).count(f"Receiving: train.{stage} message")


def _faults(project: Project, federation: Federation, check: Check) -> None:
    everybody = len(federation.nodes)

    def killed() -> bool:
        before = _messages(project, "supernode-1", "mask")
        job = project.begin(
            "run", "--rm", "--no-TTY", "train", *LITTLE, "run.num_rounds=1", "run.directory=killed"
        )
        _until_stage(project, "supernode-1", "mask", before)
        project.compose("kill", "supernode-1")
        ended = job.end()
        project.compose("up", "--detach", "--wait")
        return ended == 0 and [each["survivors"] for each in _records(project, "killed")] == [[everybody - 1]]

    def silent() -> bool:
        project.compose("stop", "node-0-superexec")
        (node_id,) = re.findall(r"^node-0 +(\d+) online", project.job("nodes"), re.MULTILINE)
        job = project.begin(
            "run", "--rm", "--no-TTY", "train", *LITTLE, "run.timeout_seconds=75", "run.directory=silent"
        )
        ended, text = job.end(), " ".join(job.text().split())
        project.compose("start", "node-0-superexec")
        # A tenth of the time limit.
        return ended == 2 and f"SuperNodes {node_id} have not answered for 7.5 s" in text

    def power_cut() -> bool:
        call("docker", "kill", *project.compose("ps", "--quiet").split())
        project.compose("up", "--detach", "--wait")
        states = [project.inspect(each)["State"] for each in project.services()]
        return all(state["Health"]["Status"] == "healthy" for state in states)

    # A plain down leaves the network of the profile that the figures have used.
    down = ("--profile", METRICS, "down")

    def taken_down() -> bool:
        words = (*LITTLE, "run.num_rounds=2", "run.directory=down")
        before = _messages(project, "supernode-1", "mask")
        job = project.begin("run", "--rm", "--no-TTY", "train", *words)
        _until_stage(project, "supernode-1", "mask", before)
        project.compose(*down)
        ended, text = job.end(), job.text()
        project.compose(*down)
        return (
            ended == 2 and "KeyError" not in text and "has not answered for" in text and project.left() == []
        )

    def resumed() -> bool:
        project.compose("up", "--detach", "--wait")
        project.job("train", *LITTLE, "run.num_rounds=2", "run.resume=down")
        return len(_records(project, "down")) == 2 and _audited(project, "down")

    check("every container is killed: up --wait ends with 0, all are healthy", power_cut)
    check("a train that is under way ends by itself after down, and nothing is left", taken_down)
    check("up, and the run that was cut off is resumed and passes its audit", resumed)
    check("the server names the SuperNode that is silent, and the run ends", silent)
    if everybody >= TOLERATES_ONE:
        check("a SuperNode is killed while it masks: the sum stands without it", killed)
    check("the ledger of every node passes its audit after the faults", lambda: _ledgers(project, federation))


def _listed(project: Project) -> dict[str, tuple[str, str]]:
    """Return the id and the status of every node, by the node's name."""
    lines = (line.split() for line in project.job("nodes").splitlines())
    return {name: (node_id, status) for name, node_id, status in lines}


def _nodes(project: Project, federation: Federation, check: Check) -> None:
    names, last = [node.name for node in federation.nodes], federation.nodes[-1]

    def all_online() -> bool:
        listed = _listed(project)
        return list(listed) == names and all(status == "online" for _, status in listed.values())

    def online() -> dict[str, tuple[str, str]]:
        until(all_online, f"{', '.join(names)} are online", 180)
        return _listed(project)

    def renewed(kind: str, *services: str) -> dict[str, tuple[str, str]]:
        party = () if kind == "authority" else ("--party", last.name)
        project.compose("run", "--rm", "--no-TTY", "init", *party, "--renew", kind)
        project.compose("up", "--detach", "--wait", "--force-recreate", *services)
        return online()

    def rotated() -> bool:
        before, after = online(), renewed("node-key", last.supernode)
        return before[last.name] != after[last.name] and before[names[0]] == after[names[0]]

    def unregistered() -> bool:
        project.job("nodes", "--unregister", last.name)
        again = project.compose("run", "--rm", "--no-TTY", "register")
        return last.name not in _listed(project) and f"never again under the same key: {last.name}" in again

    check("the nodes are listed by name, online", online)
    check("a node's key is rotated by its name", rotated)
    check("a node is unregistered by its name, and its key stays out", unregistered)
    check("it comes back under a new key", lambda: renewed("node-key", last.supernode))
    check("the authority is rotated, and every node comes back", lambda: renewed("authority"))


def _same_sums(project: Project, federation: Federation, check: Check) -> None:
    """Check that, without noise and budgets, containers train the same model, bit by bit, as one process."""
    kept = project.file.read_text(encoding="utf-8")
    tree = yaml.safe_load(kept)
    for node in federation.nodes:
        command = tree["services"][node.guard]["command"]
        # A node that signs adds up fewer than four members only if there is noise.
        command[-1] = re.sub(
            r'epsilon=\S+ (max-\S+ )?(raised-\S+ )?(lost-\S+ )?(ledger\S*="\S+" )+',
            f"minimum-bare-survivors={len(federation.nodes)} ",
            command[-1],
        )
    project.file.write_text(to_text(tree, "for a test without budgets"), encoding="utf-8")
    mine: dict[str, Any] = {}

    def trained() -> bool:
        project.compose("up", "--detach", "--wait")
        project.job("train", *WITHOUT_NOISE, "run.directory=same")
        mine.update(load_tensors(read(project.root, f"{RUNS}/same/{MODEL_FILE}")))
        return [each["survivors"] for each in _records(project, "same")] == [[len(federation.nodes)]] * 2

    def same() -> bool:
        theirs = load_tensors(_in_one_process(project.file.parent / "one-process", federation))
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[key], theirs[key]) for key in mine)

    check("without noise and budgets a training completes with all in its sums", trained)
    check("its model is, bit by bit, that of the same code in one process", same)
    project.file.write_text(kept, encoding="utf-8")
    project.compose("up", "--detach", "--wait")


def _in_one_process(root: Path, federation: Federation) -> bytes:
    """Train with the same seed and data in this process, and return the content of the model's file."""
    grid = LocalGrid(len(federation.nodes))
    for node in federation.nodes:
        (root / node.superexec / DATA).mkdir(parents=True)
        path = root / node.superexec / DATA / EXAMPLES_FILE
        grid.contexts[FIRST_NODE_ID + node.client_id].node_config["data"] = str(path)
    provide_demo_data(root, federation)
    words = training_words(len(federation.nodes), [*WITHOUT_NOISE, f"run.directory={root / 'run'}"])
    with nothing_drawn():
        train(as_grid(grid), load(words), LocalGrid.RUN)
    return (root / "run" / MODEL_FILE).read_bytes()


PARTS = {
    "confinement": _confinement,
    "trainings": _trainings,
    "figures": _figures,
    "sums": _same_sums,
    "rotation": _nodes,
    "faults": _faults,
}
