"""What the server needs of a transport: who is there, and one question to some of the nodes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

PATIENCE_SECONDS = 60.0
"""Who waits for longer wants to know for whom."""

Records = Mapping[str, Mapping[str, Any]]
"""What a message holds: records of plain values, or of arrays, by name."""


@dataclass(frozen=True)
class NodeReply:
    """What one node answers.

    `records`: in the answer. `failure`: why it is none, in one printable line; None where it is one.
    `reached`: whether the node itself has answered; what has not reached it is a failure of the transport.
    """

    records: Records = field(default_factory=dict)
    failure: str | None = None
    reached: bool = True


class Transport(Protocol):
    """Carries questions to nodes.

    Attributes:
        timeout_seconds: how long a question waits for its answers.
    """

    timeout_seconds: float

    def node_ids(self) -> set[int]:
        """The nodes that are online."""
        ...

    def ask(
        self,
        question: str,
        contents: Mapping[int, Records],
        *,
        timeout_seconds: float | None = None,
        tell_silent: Callable[[Collection[int]], None] | None = None,
    ) -> dict[int, NodeReply]:
        """Ask nodes a question, by node id; who has not answered in time is missing.

        `question`: of those in `gdpfed.clients.messages`. `contents`: for each node. `timeout_seconds`:
        another one than the transport's. `tell_silent`: is told once, after `PATIENCE_SECONDS`, which nodes
        have not answered yet.
        """
        ...


def refusals(
    transport: Transport,
    nodes: Mapping[int, int],
    contents: Mapping[int, Records],
    question: str,
    timeout_seconds: float | None = None,
) -> dict[int, str]:
    """Ask clients a question, by client id; why not, of those who refuse or stay silent."""
    by_node = {nodes[client]: content for client, content in contents.items()}
    replies = transport.ask(question, by_node, timeout_seconds=timeout_seconds) if by_node else {}
    seconds = transport.timeout_seconds if timeout_seconds is None else timeout_seconds
    silence = NodeReply(failure=f"it did not answer within {seconds:g} seconds")
    answers = {client: replies.get(nodes[client], silence).failure for client in contents}
    return {client: failure for client, failure in answers.items() if failure is not None}
