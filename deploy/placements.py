"""Say where services are: each in its own container, or all as processes on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.federation import Federation, Node
from deploy.topology import GATE, SUPERLINK, services
from gdpfed.launch.home import free_ports

LOOPBACK = "127.0.0.1"
SUPERLINK_PORT = 8000
SUPERNODE_PORT = 9094
HEALTH_PORT = 9095
BUDGET, DATA_FOLDER = "EPSILON", "DATA"
CREDENTIALS = "/federation"


@dataclass(frozen=True)
class Containers:
    """Each service is in its own container: credentials at ``/federation``, folders at ``/<name>``.

    Attributes:
        superlink_host: where nodes find the gate of the SuperLink.
        superlink_port: and on which port.
        alone: the node whose host this is, if it is that of one node. Its budget and its data are in the
            file, or Compose refuses to begin without the variables of these: a default would come back with
            the first command that is given without them.
        epsilon: that node's budget; None to have it said.
        data: that node's folder, an absolute path; None to have it said.
    """

    superlink_host: str = GATE
    superlink_port: int = SUPERLINK_PORT
    bind_host: str = "0.0.0.0"  # noqa: S104 - reachable from the container's own networks only
    health_host: str = LOOPBACK
    alone: str | None = None
    epsilon: float | None = None
    data: str | None = None

    def host(self, service: str) -> str:
        return self.superlink_host if service == GATE else service

    def port(self, service: str) -> int:
        if service == GATE:
            return self.superlink_port
        if service == SUPERLINK:
            return SUPERLINK_PORT
        return HEALTH_PORT if service.endswith("superexec") else SUPERNODE_PORT

    def credential(self, service: str, file: str) -> str:
        return f"{CREDENTIALS}/{file}"

    def folder(self, service: str, name: str) -> str:
        return f"/{name}"

    def own(self, node: Node, setting: str, value: str) -> str:
        if setting == BUDGET and node.name == self.alone:
            return _required(node.name, BUDGET) if self.epsilon is None else repr(self.epsilon)
        return f"${{{variable(node.name, setting)}:-{value}}}"

    def data_of(self, party: str, default: str) -> str:
        """Where the data of a party lies on its host; a variable says another place than the default."""
        if party == self.alone:
            return _required(party, DATA_FOLDER) if self.data is None else self.data
        return f"${{{variable(party, DATA_FOLDER)}:-{default}}}"


@dataclass(frozen=True)
class Loopback:
    """Every service is on 127.0.0.1, on its own port and in its own directory.

    `root`: holds one directory a service. `ports`: of every service.
    """

    root: Path
    ports: Mapping[str, int]
    bind_host: str = LOOPBACK
    health_host: str = LOOPBACK

    @classmethod
    def on_free_ports(cls, root: Path, federation: Federation) -> "Loopback":
        """Take ports that no program listens on at the moment."""
        names = [service.name for service in services(federation, Containers())]
        return cls(root, dict(zip(names, free_ports(len(names)), strict=True)))

    def host(self, service: str) -> str:
        return LOOPBACK

    def port(self, service: str) -> int:
        return self.ports[service]

    def credential(self, service: str, file: str) -> str:
        return str(credentials_of(self.root, service) / file)

    def folder(self, service: str, name: str) -> str:
        return str(self.root / service / name)

    def own(self, node: Node, setting: str, value: str) -> str:
        return value


def _required(party: str, setting: str) -> str:
    """A variable without which Compose refuses, and says the option that writes the value into the file."""
    name = variable(party, setting)
    return f"${{{name}:?set {name} or make this file with --{setting.lower()}}}"


def variable(party: str, setting: str) -> str:
    """Return the environment variable that sets something of a party, such as ``NODE_0_DATA``."""
    return f"{party.replace('-', '_').upper()}_{setting}"


def credentials_of(root: Path, service: str) -> Path:
    """Return the directory of a service's credentials on the machine that made them."""
    return root / service / "credentials"
