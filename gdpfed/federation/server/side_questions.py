"""What systems ask of nodes that have joined, before the plan is made of their answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from conf.schema import Config
from gdpfed.clients.messages import ASK
from gdpfed.federation.server.join import Joined
from gdpfed.federation.server.server_sides import SERVER_SIDES, Answer, Values
from gdpfed.federation.server.transport import NodeReply, Transport


@dataclass(frozen=True)
class NodesOfSide:
    """The nodes of a run, as a side asks them.

    Attributes:
        name: of the side, and of its record in messages.
        enough: nodes that must stay.
    """

    name: str
    transport: Transport
    joined: Joined
    enough: int

    def ask(self, told: Values) -> dict[int, Answer]:
        """Ask every node, and return its answer by client."""
        nodes = {client: self.joined.nodes[client] for client in sorted(self.joined.nodes)}
        replies = self.transport.ask(ASK, {node: {self.name: told} for node in nodes.values()})
        return {client: self._answer(replies.get(node)) for client, node in nodes.items()}

    def _answer(self, reply: NodeReply | None) -> Answer:
        if reply is None:
            return Answer(silent=True)
        if reply.failure is not None:
            return Answer(refusal=reply.failure)
        return Answer(dict(reply.records.get(self.name, {})))

    def leave_out(self, refusals: Mapping[int, str]) -> None:
        """Go on without some, by client; RunError where fewer than enough stay."""
        self.joined.leave_out(refusals, self.enough)


def sides_wait_for_nodes(config: Config) -> bool:
    """Whether a system asks nodes before the plan of this run is made."""
    return any(side().asks(config) for side in SERVER_SIDES.items().values())


def with_answers(transport: Transport, joined: Joined, config: Config, enough: int) -> Config:
    """The configuration with what nodes answered to the systems that ask them.

    Raises:
        RunError: fewer than ``enough`` nodes answer.
        ConfigError: what cannot be asked.
    """
    for name, side in SERVER_SIDES.items().items():
        if side().asks(config):
            nodes = NodesOfSide(name, transport, joined, enough)
            config = side().with_answers(config, nodes)
    return config
