"""What systems ask of nodes that have joined, before the plan is made of their answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from conf.schema import Config
from gdpfed.clients.messages import ASK
from gdpfed.federation.server.server_sides import SERVER_SIDES, Answer, Values
from server_app.exchange import failure_of, replies_to
from server_app.join import Joined


@dataclass(frozen=True)
class NodesOfSide:
    """The nodes of a run, as a side asks them.

    Attributes:
        name: of the side, and of its record in messages.
        enough: nodes that must stay.
    """

    name: str
    grid: Grid
    joined: Joined
    timeout_seconds: float
    enough: int

    def ask(self, told: Values) -> dict[int, Answer]:
        """Ask every node, and return its answer by client."""
        content = RecordDict({self.name: ConfigRecord(dict(told))})
        nodes = {client: self.joined.nodes[client] for client in sorted(self.joined.nodes)}
        replies = replies_to(self.grid, nodes, dict.fromkeys(nodes, content), ASK, self.timeout_seconds)
        answers: dict[int, Answer] = {}
        for client in nodes:
            reply = replies.get(client)
            if reply is None:
                answers[client] = Answer(silent=True)
            elif (refusal := failure_of(reply)) is not None:
                answers[client] = Answer(refusal=refusal)
            else:
                record = reply.content.get(self.name)
                answers[client] = Answer(dict(record) if isinstance(record, ConfigRecord) else {})
        return answers

    def leave_out(self, refusals: Mapping[int, str]) -> None:
        """Go on without some, by client; RunError where fewer than enough stay."""
        self.joined.leave_out(refusals, self.enough)


def sides_wait_for_nodes(config: Config) -> bool:
    """Whether a system asks nodes before the plan of this run is made."""
    return any(side().asks(config) for side in SERVER_SIDES.items().values())


def with_answers(grid: Grid, joined: Joined, config: Config, enough: int) -> Config:
    """The configuration with what nodes answered to the systems that ask them.

    Raises:
        RunError: fewer than ``enough`` nodes answer.
        ConfigError: what cannot be asked.
    """
    for name, side in SERVER_SIDES.items().items():
        if side().asks(config):
            nodes = NodesOfSide(name, grid, joined, config.run.timeout_seconds, enough)
            config = side().with_answers(config, nodes)
    return config
