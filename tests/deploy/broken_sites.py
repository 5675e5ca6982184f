"""A federation on loopback whose nodes connect through proxies; some nodes have faults and stay offline."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.certificates import Authority
from deploy.federation import Federation
from deploy.loopback import LoopbackFederation
from deploy.topology import GATE, PROXY_FILE, SUPERLINK, SUPERLINK_CA_FILE, credentials_of


class SitesBehindAProxy(LoopbackFederation):
    """A federation whose nodes connect through proxies; some nodes have a fault and never come online.

    Args:
        federation: of all of them.
        proxies: what each SuperNode's file says, by the node's name.
        arriving: the names of those that arrive.
        away: the node of which nothing is started.
        swapped: the node whose operator holds the certificate of another authority.
    """

    def __init__(
        self,
        federation: Federation,
        proxies: Mapping[str, str],
        *,
        arriving: Sequence[str],
        away: str,
        swapped: str,
    ) -> None:
        super().__init__(federation)
        self._proxies, self._arriving, self._away, self._swapped = proxies, arriving, away, swapped

    def supernode_file(self, node: str, name: str) -> Path:
        """Return the path of a file that a node's SuperNode reads."""
        return credentials_of(self.home.path, f"super{node}") / name

    def _start_all(self) -> None:
        for node, line in self._proxies.items():
            self.supernode_file(node, PROXY_FILE).write_text(line, encoding="utf-8")
        other = Authority.create("another authority").certificate_pem
        self.supernode_file(self._swapped, SUPERLINK_CA_FILE).write_bytes(other)
        arriving = {
            service
            for each in self.federation.nodes
            if each.name in self._arriving
            for service in each.services
        }
        broken = {each.supernode for each in self.federation.nodes if each.name != self._away}
        everywhere = {name for name, each in self.services.items() if each.party == "server"}
        self.start(SUPERLINK)
        self.wait_until_healthy(SUPERLINK)
        self.operate("register", "--public", str(self.home.path / "public"))
        for name in self.services:
            if name in arriving | broken | everywhere and name != SUPERLINK:
                self.start(name)
        self.wait_until_healthy(GATE)
        for service in self.services.values():
            if service.offline and service.name in arriving:
                self.wait_until_healthy(service.name)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Wait until all nodes without a fault are online."""
        self.operate("wait", "--nodes", str(len(self._arriving)))
