"""Plug-in point of the server: a plug-in can ask nodes questions, and send values with a run's terms.

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
    """One client's answer to the question of a plug-in.

    `values`: flat, as its node sent them; nothing of them is checked. `refusal`: why there are none, in one
    line; None where there are some. `silent`: whether nothing came in time.
    """

    values: Values = field(default_factory=dict)
    refusal: str | None = None
    silent: bool = False


class JoinedNodes(Protocol):
    """The nodes that have joined a run whose plan is not made yet."""

    def ask(self, told: Values) -> Mapping[int, Answer]:
        """Ask every node a plug-in's question; return the answers by client."""
        ...

    def leave_out(self, refusals: Mapping[int, str]) -> None:
        """Continue without some clients; each reason names the client and the cause.

        Raises RunError: too few stay.
        """
        ...


class ServerSide:
    """A plug-in's part at the server; by default it asks and sends nothing."""

    def asks(self, config: Config) -> bool:
        """Whether this plug-in asks nodes before the plan of this run is made."""
        return False

    def with_answers(self, config: Config, nodes: JoinedNodes) -> Config:
        """Ask the nodes, and return the configuration with their answers."""
        return config

    def told_at_join(self, config: Config) -> Values | None:
        """Return flat values to send to nodes with the question to join; None for nothing."""
        return None

    def told_with_terms(self, config: Config) -> Values | None:
        """Return flat values to send with the terms of a run; None for nothing."""
        return None


SERVER_SIDES: Registry[type[ServerSide]] = Registry(
    "server side",
    "gdpfed.server_sides",
    error=ConfigError,
)


def told_at_join(config: Config) -> dict[str, Values]:
    """Return what each plug-in sends to nodes with the question to join, by plug-in."""
    told = {name: side().told_at_join(config) for name, side in SERVER_SIDES.items().items()}
    return {name: values for name, values in told.items() if values is not None}


def told_with_terms(config: Config) -> dict[str, Values]:
    """Return what each plug-in sends with the terms of a run, by plug-in."""
    told = {name: side().told_with_terms(config) for name, side in SERVER_SIDES.items().items()}
    return {name: values for name, values in told.items() if values is not None}
