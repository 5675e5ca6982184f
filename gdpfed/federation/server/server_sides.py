"""Plug-in point of the server: a plug-in can send requests to nodes, and values with a run's conditions.

A side has two ends, this one and `gdpfed.federation.node.node_sides`, found by one name. A package declares
both as entry points.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.registry import Registry

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One client's answer to a request of a plug-in.

    `values`: flat, as its node sent them; nothing of them is checked. `refusal`: why there are none, in one
    line; None where there are some. `silent`: whether nothing came in time.
    """

    values: Values = field(default_factory=dict)
    refusal: str | None = None
    silent: bool = False


class JoinedNodes(Protocol):
    """The nodes that have joined a run, before the run is planned."""

    def ask(self, told: Values) -> Mapping[int, Answer]:
        """Send every node a plug-in's request; return the answers by client."""
        ...

    def leave_out(self, refusals: Mapping[int, str]) -> None:
        """Remove these clients from the run; each reason names the client and the cause.

        Raises RunError: too few stay.
        """
        ...


class ServerSide:
    """A plug-in's part on the server; by default, it sends nodes nothing."""

    def asks(self, config: Config) -> bool:
        """Whether this plug-in sends requests to nodes before this run is planned."""
        return False

    def with_answers(self, config: Config, nodes: JoinedNodes) -> Config:
        """Send the plug-in's question to all nodes, and return the configuration with their answers."""
        return config

    def told_at_join(self, config: Config) -> Values | None:
        """Return a flat dictionary to send to nodes with the request to join; None to send nothing."""
        return None

    def told_with_terms(self, config: Config) -> Values | None:
        """Return a flat dictionary to send to nodes with a run's conditions; None to send nothing."""
        return None


SERVER_SIDES: Registry[type[ServerSide]] = Registry(
    "server side",
    "gdpfed.server_sides",
    error=ConfigError,
)


def told_at_join(config: Config) -> dict[str, Values]:
    """Return what each plug-in sends to nodes with the request to join: plug-in's name -> values."""
    told = {name: side().told_at_join(config) for name, side in SERVER_SIDES.items().items()}
    return {name: values for name, values in told.items() if values is not None}


def told_with_terms(config: Config) -> dict[str, Values]:
    """Return what each plug-in sends to nodes with a run's conditions: plug-in's name -> values."""
    told = {name: side().told_with_terms(config) for name, side in SERVER_SIDES.items().items()}
    return {name: values for name, values in told.items() if values is not None}
