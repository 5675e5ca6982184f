"""Checks of a federation's Compose file: what its containers and its parties can access."""

import re
import shlex
import subprocess
import sys
from itertools import combinations
from pathlib import Path, PurePosixPath

from deploy.services import services

COMMITTED = Path("docker-compose.yml")


def told(federation, number=0):
    """Return the node settings in the Compose command of a node's guard, with variables not yet replaced."""
    own = {service.name: service for service in services(federation)}
    return own[federation.nodes[number].guard].command[-1]


def program(service):
    """Return the command line that a container runs."""
    return [*service["entrypoint"], *service.get("command", [])]


_INNERMOST_VARIABLE = re.compile(r"\$\{\w+(?::-([^${}]*)|(:\?)[^${}]*)?\}")


def at_defaults(text):
    """Replace each variable in a text: a required one by a fixed path, others by their default or nothing."""

    def default(variable):
        return "/set-by-its-operator" if variable[2] else variable[1] or ""

    while (replaced := _INNERMOST_VARIABLE.sub(default, text)) != text:
        text = replaced
    return text


def assert_fits_the_schema(*files):
    """Check that each file follows the Compose Specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def running(tree):
    """Return, by name, the services that run all the time and belong to no Compose profile."""
    return {
        name: each
        for name, each in tree["services"].items()
        if each["restart"] != "no" and "profiles" not in each
    }


def assert_promises(tree):
    """Check that no container has more rights than it needs, and that no party can access another party."""
    for name, service in tree["services"].items():
        _is_confined(name, service)
        # `down --volumes` takes no ledger away.
        assert {each["type"] for each in service.get("volumes", ())} <= {"bind"}, name
    assert "volumes" not in tree
    up = running(tree)
    watching = {name: each for name, each in tree["services"].items() if each.get("profiles") == ["metrics"]}
    apps = {name for name in up if name.endswith("superexec")}
    nodes = {name for name in up if "supernode" in name}
    for name, service in up.items():
        assert service["healthcheck"]["test"], name
        (credentials,) = (each for each in service["volumes"] if each["target"] == "/federation")
        assert credentials["read_only"], name
        # Whoever reaches the SuperLink may submit a run: nodes and other hosts reach its gate alone.
        assert "ports" not in service or name == "gate", name
        if name.endswith("-guard"):
            assert service["network_mode"] == "none", name
            continue
        # Whoever submits a run sends the app's code: it reaches nothing but its own Flower program.
        if name in apps:
            assert "ports" not in service, name
            assert all(tree["networks"][each]["internal"] for each in service["networks"]), name
    for network, settings in tree["networks"].items():
        on_it = {name for name, each in up.items() if network in each.get("networks", ())}
        assert len(on_it & nodes) <= 1, network
        without_host = {"com.docker.network.bridge.inhibit_ipv4": "true"}
        assert not on_it & apps or settings["driver_opts"] == without_host, network
    assert watching
    for name, service in watching.items():
        # Figures are for this host alone, and what serves them sees no credentials, data or other networks.
        assert all(each.startswith("127.0.0.1:") for each in service["ports"]), name
        assert service["networks"] == ["metrics"], name
        assert all(each["read_only"] for each in service["volumes"]), name
        kept = {Path(each["source"]).name for each in service["volumes"]}
        assert kept == {"runs" if name == "metrics" else "ledger"}
    assert tree["networks"]["metrics"]["driver_opts"] == {
        "com.docker.network.bridge.enable_ip_masquerade": "false"
    }
    if "superlink" in up:
        reached = set(up["superlink"]["networks"])
        others = {name for name, each in up.items() if reached & set(each.get("networks", ()))}
        assert others == {"superlink", "gate", "server-superexec"}
    for name in nodes:
        _decides_for_itself(up, name)
    _share_nothing(up)


def _settings(service):
    command = program(service)
    words = shlex.split(command[command.index("--node-config") + 1])
    return dict(word.partition("=")[::2] for word in words)


def _decides_for_itself(running, supernode):
    """Check that a node has a budget and a writable ledger, and that its data, keys and roster are read-only.

    With a guard its app sees the guard's socket and nothing else of it.
    """
    name = supernode.replace("edge-client-supernode", "edge-client").replace("supernode", "node")
    config, holder = _settings(running[supernode]), running[f"{name}-superexec"]
    if f"{name}-guard" in running:
        assert config == {"guard": "/guard/guard.sock"}
        seen = {each["target"]: each.get("read_only", False) for each in holder["volumes"]}
        assert seen == {"/federation": True, "/guard": True}
        holder = running[f"{name}-guard"]
        config = _settings(holder)
    read_only = {each["target"]: each.get("read_only", False) for each in holder["volumes"]}
    own = {"edge": False} if "edge" in config else {"ledger": False, "data": True}
    assert "edge" in config or {"epsilon", "epsilon-record"} & config.keys(), supernode
    for key, kept in {**own, "identity-file": True, "roster-file": True, "consortium-key": True}.items():
        folder = config[key] if key == "edge" else str(PurePosixPath(config[key]).parent)
        assert read_only[folder] == kept, (supernode, key)


def _is_confined(name, service):
    is_init = name == "init"
    user = service["user"].partition(":")[0]
    assert (user in ("0", "root")) == is_init, name
    assert not is_init or service["network_mode"] == "none", name
    assert service["cap_drop"] == ["ALL"], name
    assert set(service.get("cap_add", [])) <= ({"CHOWN", "DAC_OVERRIDE", "FOWNER"} if is_init else set()), (
        name
    )
    assert not service.get("privileged"), name
    assert service["read_only"], name
    assert service["security_opt"] == ["no-new-privileges:true"], name
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}, name


def _share_nothing(running):
    """Check that only a guard and its app, or an edge's server and the edge client's guard, share folders."""
    seen = [(name, PurePosixPath(each["source"])) for name, own in running.items() for each in own["volumes"]]
    for (one, path), (other, its) in combinations(seen, 2):
        if one != other and (path.is_relative_to(its) or its.is_relative_to(path)):
            assert path == its
            if path.name == "guard":
                assert {one, other} == {path.parent.name, path.parent.name.replace("-guard", "-superexec")}
                continue
            assert path.name == "mailbox"
            assert {one, other} == {"server-superexec", path.parent.name.replace("-superexec", "-guard")}
    for name, path in seen:
        assert path.name not in ("authority", "consortium", "federation"), name
