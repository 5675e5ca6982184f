"""All services of a federation as processes on this machine, each with its own port and directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.federation import Federation
from deploy.services import services
from deploy.topology import LOOPBACK, credentials_of
from gdpfed.launch.home import free_ports


@dataclass(frozen=True)
class Loopback:
    """Places every service on 127.0.0.1, with its own port and its own directory.

    `root`: holds one directory a service. `ports`: of every service. `variables`: those that are set of the
    description.
    """

    root: Path
    ports: Mapping[str, int]
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def on_free_ports(cls, root: Path, federation: Federation) -> "Loopback":
        """Give every service a port that no program uses at the moment."""
        names = [service.name for service in services(federation)]
        return cls(root, dict(zip(names, free_ports(len(names)), strict=True)))

    def host(self, service: str) -> str:
        return LOOPBACK

    def listens_on(self, service: str) -> str:
        return LOOPBACK

    def port(self, service: str) -> int:
        return self.ports[service]

    def credential(self, service: str, file: str) -> str:
        return str(credentials_of(self.root, service) / file)

    def folder(self, service: str, name: str) -> str:
        return str(self.root / service / name)
