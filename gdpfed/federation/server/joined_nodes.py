"""What the server sends to nodes before any cost is recorded: a test message, and requests of plug-ins."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conf.schema import Config
from gdpfed.clients.messages import ASK, CARRY, LARGE_BYTES, THETA_RECORD
from gdpfed.federation.server.join import Joined
from gdpfed.federation.server.questions import NodeReply, Transport, refusals
from gdpfed.federation.server.server_sides import SERVER_SIDES, Answer, Values


@dataclass(frozen=True)
class NodesOfSide:
    """The joined nodes of a run, for a plug-in that sends them requests or leaves some out.

    `name`: of the side, and of its record in messages. `enough`: nodes that must stay.
    """

    name: str
    transport: Transport
    joined: Joined
    enough: int

    def ask(self, told: Values) -> dict[int, Answer]:
        """Send every node a plug-in's request; return the answers by client."""
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
        """Remove these clients from the run; raise RunError if too few stay."""
        self.joined.leave_out(refusals, self.enough)


def sides_wait_for_nodes(config: Config) -> bool:
    """Whether any plug-in must send requests to nodes before this run can be planned."""
    return any(side().asks(config) for side in SERVER_SIDES.items().values())


def with_answers(transport: Transport, joined: Joined, config: Config, enough: int) -> Config:
    """Have plug-ins ask the nodes; return the configuration with the nodes' answers.

    Raises:
        RunError: fewer than ``enough`` nodes answer.
        ConfigError: what cannot be asked.
    """
    for name, side in SERVER_SIDES.items().items():
        if side().asks(config):
            nodes = NodesOfSide(name, transport, joined, enough)
            config = side().with_answers(config, nodes)
    return config


FLOAT_BYTES = 4


def carry_model(transport: Transport, joined: Joined, dimension: int, enough: int) -> None:
    """Send each node a test message of the model's size, and leave out nodes that cannot answer.

    A SuperNode whose memory is too small is ended when the model arrives, and nobody is told; all budgets
    would be charged by then. A small model goes where the questions went.

    Args:
        dimension: d; random numbers travel in the place of the model, since zeros shrink on the way.
        enough: how many nodes have to stay.

    Raises RunError: too few stay; it names what to raise.
    """
    size = FLOAT_BYTES * dimension
    if size <= LARGE_BYTES:
        return
    numbers = np.random.default_rng().random(dimension, np.float32)
    content = {THETA_RECORD: {THETA_RECORD: numbers}}
    silent = refusals(transport, joined.nodes, dict.fromkeys(joined.nodes, content), CARRY)
    remedy = (
        "give its SuperNode and its app more memory (python -m deploy --parameters), or the run more "
        "run.timeout_seconds; nothing is charged"
    )
    joined.leave_out(
        {
            client: f"client {client} did not send back a message of {size / 1e6:.1f} MB, as large as the "
            f"model ({why}): {remedy}"
            for client, why in silent.items()
        },
        enough,
    )
