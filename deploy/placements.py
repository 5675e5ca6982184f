"""Say where services are: each in its own container, or all as processes on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.topology import SUPERLINK, Federation, Node, services
from gdpfed.launch.home import free_ports

LOOPBACK = "127.0.0.1"
SUPERLINK_PORT = 8000
SUPERNODE_PORT = 9094
HEALTH_PORT = 9095
CREDENTIALS = "/federation"


@dataclass(frozen=True)
class Containers:
    """Each service is in its own container: credentials at ``/federation``, folders at ``/<name>``.

    Attributes:
        superlink_host: where nodes find the SuperLink.
        superlink_port: and on which port.
    """

    superlink_host: str = SUPERLINK
    superlink_port: int = SUPERLINK_PORT
    bind_host: str = "0.0.0.0"  # noqa: S104 - reachable from the container's own networks only
    health_host: str = LOOPBACK

    def host(self, service: str) -> str:
        return self.superlink_host if service == SUPERLINK else service

    def port(self, service: str) -> int:
        if service == SUPERLINK:
            return self.superlink_port
        return HEALTH_PORT if service.endswith("superexec") else SUPERNODE_PORT

    def credential(self, service: str, file: str) -> str:
        return f"{CREDENTIALS}/{file}"

    def folder(self, service: str, name: str) -> str:
        return f"/{name}"

    def own(self, node: Node, setting: str, value: str) -> str:
        return f"${{{variable(node.name, setting)}:-{value}}}"


@dataclass(frozen=True)
class Loopback:
    """Every service is on 127.0.0.1, on its own port and in its own directory.

    Attributes:
        root: holds one directory a service.
        ports: of every service.
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


def variable(party: str, setting: str) -> str:
    """Return the environment variable that sets something of a party, such as ``NODE_0_DATA``."""
    return f"{party.replace('-', '_').upper()}_{setting}"


def credentials_of(root: Path, service: str) -> Path:
    """Return the directory of a service's credentials on the machine that made them."""
    return root / service / "credentials"
