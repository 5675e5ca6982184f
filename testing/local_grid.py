"""A Flower grid without a network: messages go directly to the ClientApp in this process."""

import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from client_app.carried import parted
from gdpfed.clients.messages import STAGES
from gdpfed.errors import FailedError

FIRST_NODE_ID = 1000
IN_CLEAR = {"secagg-mode": "off"}
"""The settings of nodes whose operators allow updates to be sent without masks."""


class Crash(BaseException):
    """Raised where a process would be killed, so that a test can stop the program at a chosen point."""


def make_context(
    client_id: int, settings: Mapping[str, Any] | None = None, node_id: int = FIRST_NODE_ID
) -> Context:
    """Make the context of a node that was started with these settings, as a SuperNode does."""
    config = {"partition-id": client_id, **(settings or {})}
    return Context(run_id=1, node_id=node_id, node_config=config, state=RecordDict(), run_config={})


def ask(message_type: str, content: RecordDict, context: Context) -> Mapping[str, Any]:
    """Send one message to a node, and return the records of its answer."""
    identify_task()
    return app(Message(content, context.node_id, message_type), context).content


def identify_task() -> None:
    """Set the identity of this process, as Flower does before it calls an app."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class LocalGrid:
    """A Flower grid for tests, which keeps a context for each node between messages as Flower does.

    Args:
        num_nodes: nodes; node k answers as client k.
        vanishes: (stage or query, client id) -> whether the client is gone by then.
        meddle: changes a message's content on its way to a client, once for each of its stages.
        spoil: changes an answer's content on its way back, once for each of the message's stages.

    Attributes:
        sent: (stage or query, client id), several of them for one message.
        exchanges: the stages and queries of every exchange.
        replies: contents of all answers.
        asked: the records' names of all messages.
        run: as a Grid has it.
        RUN: the id of every run on such a grid.
    """

    RUN = "1"

    def __init__(
        self,
        num_nodes: int,
        *,
        vanishes: Callable[[str, int], bool] = lambda kind, client: False,
        meddle: Callable[[str, int, RecordDict], RecordDict] = lambda kind, client, content: content,
        spoil: Callable[[str, int, RecordDict], RecordDict] = lambda kind, client, content: content,
        node_config: dict[str, Any] | None = None,
    ) -> None:
        identify_task()
        self.app: ClientApp = app
        self.run = SimpleNamespace(run_id=int(self.RUN))
        self.vanishes = vanishes
        self.meddle = meddle
        self.spoil = spoil
        self.sent: list[tuple[str, int]] = []
        self.exchanges: list[set[str]] = []
        self.replies: list[RecordDict] = []
        self.asked: list[frozenset[str]] = []
        self.arrived: dict[str, Message] = {}
        told = {"num-partitions": num_nodes, **(node_config or {})}
        self.contexts = {
            FIRST_NODE_ID + k: make_context(k, told, FIRST_NODE_ID + k) for k in range(num_nodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        """Deliver messages at once; a message to a client that has left gets no id and no answer."""
        self.exchanges.append(set())
        return [self._push(f"{time.monotonic_ns()}-{k}", message) for k, message in enumerate(messages)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        return [self.arrived.pop(message_id) for message_id in list(self.arrived) if message_id in asked]

    def _push(self, message_id: str, message: Message) -> str | None:
        message.content = parted(message.content)
        self.exchanges[-1].update(kinds_of(message))
        message.metadata.__dict__["_message_id"] = message_id
        reply = self._deliver(message)
        if reply is None:
            return None
        self.arrived[message_id] = reply
        return message_id

    def _deliver(self, message: Message) -> Message | None:
        node_id = message.metadata.dst_node_id
        client_id = node_id - FIRST_NODE_ID
        kinds = kinds_of(message)
        self.sent.extend((kind, client_id) for kind in kinds)
        self.asked.append(frozenset(message.content))
        if any(self.vanishes(kind, client_id) for kind in kinds):
            return None
        for kind in kinds:
            message.content = self.meddle(kind, client_id, message.content)
        try:
            reply = self.app(message, self.contexts[node_id])
        except Exception as error:
            return Message(Error(code=1, reason=str(error)), reply_to=message)
        self.replies.append(reply.content)
        for kind in kinds:
            reply.content = self.spoil(kind, client_id, reply.content)
        return reply


def as_grid(grid: LocalGrid) -> Grid:
    """Return the same grid, typed as Flower's Grid, for code that uses only methods of LocalGrid."""
    return cast("Grid", grid)


def crashing_grid(num_nodes: int, stage: str, occurrence: int) -> LocalGrid:
    """Return a grid that raises `Crash` at the n-th message of a stage, counted over all clients."""
    seen: list[str] = []

    def vanishes(kind: str, client: int) -> bool:
        seen.append(kind)
        if kind == stage and seen.count(stage) == occurrence:
            raise Crash
        return False

    return LocalGrid(num_nodes, vanishes=vanishes)


def kinds_of(message: Message) -> list[str]:
    """Return what a message asks for: stages of a secure sum, or one other request."""
    action = message.metadata.message_type.partition(".")[2]
    stages = [stage for stage in STAGES if stage in message.content]
    if stages and stages[0] != action:
        raise FailedError(f"a message of type {action} asks for {', '.join(stages)}: the first is its type")
    return stages or [action]


def refusals(grid: LocalGrid) -> list[str]:
    """Return the reasons of all requests that nodes refused, in order."""
    return [
        str(record[key])
        for reply in grid.replies
        for record in reply.values()
        for key in ("reason", "refusal")
        if key in record
    ]
