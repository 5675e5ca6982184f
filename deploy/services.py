"""Read a federation's services from ``docker-compose.yml``; adapt paths and addresses to where they run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from deploy.compose import compose_file
from deploy.description import Tree, described, said
from deploy.federation import Federation, TopologyError
from deploy.topology import (
    CONSORTIUM_FILE,
    CREDENTIALS,
    LOOPBACK,
    ROSTER_FILE,
    SERVER,
    SERVER_SUPEREXEC,
    Folder,
    Placement,
    Service,
)
from gdpfed.errors import not_known

NO_PROXY = "no_proxy"
TASK_POLL_VARIABLE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - in a container: on its own networks
LOCAL, SETTINGS = "localhost", "--node-config"
_CREDENTIAL = re.compile(rf"{CREDENTIALS}/([\w.-]+)")
_ADDRESS = re.compile(r"([a-z][\w-]*|127\.0\.0\.1):(\d+)")


@cache
def flower_environment() -> dict[str, str]:
    """Return the environment variables of Flower's programs, wherever they run."""
    own: Mapping[str, str] = described()["services"][SERVER_SUPEREXEC]["environment"]
    told = {name: value for name, value in own.items() if name.startswith("FLWR_") and name != "FLWR_HOME"}
    return told | {NO_PROXY: own[NO_PROXY]}


def services(federation: Federation, place: Placement | None = None) -> tuple[Service, ...]:
    """Return every service of the federation, in an order in which they can be started.

    Without a place they are as in containers, with the variables of the description in their commands.
    """
    tree = compose_file(federation)["services"]
    parties = {
        name: node.name for node in federation.nodes for name in (node.supernode, node.superexec, node.guard)
    }
    running = {
        name: each for name, each in tree.items() if each["restart"] != "no" and "profiles" not in each
    }
    # What a SuperNode is told is read by the app that it starts, with the files of that one.
    told = {node.superexec: running[node.supernode]["command"][-1] for node in federation.nodes}
    made = {
        name: _service_of(name, each, parties.get(name, SERVER), told.get(name, ""), running)
        for name, each in running.items()
    }
    if place is None:
        return tuple(made.values())
    readers = {node.supernode: made[node.superexec] for node in federation.nodes}
    return tuple(_on_its_host(each, place, readers.get(each.name, each)) for each in made.values())


def services_of(every: Sequence[Service], parties: Sequence[str]) -> list[Service]:
    """Return the services of the given parties, or all services if no party is given.

    Raises TopologyError: no such party.
    """
    known = sorted({service.party for service in every})
    for party in parties:
        if party not in known:
            raise TopologyError(not_known(f"--party {party}", known))
    return [service for service in every if service.party in (parties or known)]


def _service_of(name: str, service: Tree, party: str, told: str, running: Iterable[str]) -> Service:
    words = [*service["entrypoint"], *service.get("command", [])]
    # A SuperNode is started again by a shell, in a container alone; so its probe asks first whether it was.
    if words[0] == "sh":
        del words[: len(service["entrypoint"]) - 1]
    test = service["healthcheck"]["test"]
    probe = test[test.index("python") :]
    offline = service.get("network_mode") == "none"
    own = words if offline or SETTINGS not in words else words[: words.index(SETTINGS)]
    named = _CREDENTIAL.findall(" ".join([*own, *probe, told]))
    if name == SERVER_SUPEREXEC:
        named += [ROSTER_FILE, CONSORTIUM_FILE]
    # A folder's path on the host is <service>/<name>.
    folders = []
    for volume in service["volumes"]:
        if volume["target"] != CREDENTIALS:
            path = PurePosixPath(said(volume["source"], {}))
            of = path.parent.name
            writable = not volume.get("read_only", False)
            folders.append(Folder(path.name, writable, None if of == name else of))
    limits = service["deploy"]["resources"]["limits"]
    return Service(
        name=name,
        party=party,
        command=tuple(words),
        credentials=tuple(dict.fromkeys(named)),
        probe=tuple(probe),
        folders=tuple(folders),
        needs=tuple(each for each in service["depends_on"] if each in running),
        runs_app=name.endswith("-superexec"),
        offline=offline,
        memory=limits["memory"],
        processes=limits["pids"],
    )


def _on_its_host(service: Service, place: Placement, reader: Service) -> Service:
    """Return a service with its container's paths and addresses replaced by those on the host where it runs.

    `reader`: who reads its settings: what a SuperNode is told is for the app that it starts.
    """
    there = {f"{CREDENTIALS}/{file}": place.credential(service.name, file) for file in service.credentials}
    there |= _folders(service, place) | {EVERYWHERE: place.listens_on(service.name)}
    for name, number in _ADDRESS.findall(" ".join([*service.command, *service.probe])):
        if name in service.needs:
            there[f"{name}:{number}"] = f"{place.host(name)}:{place.port(name)}"
        elif name in (LOCAL, LOOPBACK):
            port = str(place.port(service.name))
            there |= {f"{name}:{number}": f"{name}:{port}", number: port}
    told = {f"{CREDENTIALS}/{file}": place.credential(reader.name, file) for file in reader.credentials}
    told |= _folders(reader, place)
    words = [said(word, place.variables) for word in service.command]
    at = words.index(SETTINGS) if SETTINGS in words else len(words)
    return replace(
        service,
        command=(*_replaced(words[:at], there), *_replaced(words[at:], told)),
        probe=_replaced(service.probe, there),
    )


def _folders(service: Service, place: Placement) -> dict[str, str]:
    """Map each of a service's folders from its path in a container to its path where the service runs."""
    return {f"/{each.name}": place.folder(each.of or service.name, each.name) for each in service.folders}


def _replaced(words: Sequence[str], by: Mapping[str, str]) -> tuple[str, ...]:
    """Replace texts (keys of `by`) in the words of a command, but never inside a longer name."""
    longest_first = "|".join(map(re.escape, sorted(by, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{longest_first})(?![\w-])")
    return tuple(pattern.sub(lambda found: by[found[0]], word) for word in words)
