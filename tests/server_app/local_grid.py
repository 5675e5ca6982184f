"""A grid without Flower's runtime: messages go straight to the real ClientApp handlers, in this process."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app

FIRST_NODE_ID = 1000


class LocalGrid:
    """One context a node, kept between messages as Flower keeps it.

    Args:
        num_nodes: nodes; node k answers as client k.
        vanishes: (message type, client id) -> whether the client is gone by then.
        meddle: changes a message's content on its way to a client.
    """

    def __init__(
        self,
        num_nodes: int,
        *,
        vanishes: Callable[[str, int], bool] = lambda kind, client: False,
        meddle: Callable[[str, int, RecordDict], RecordDict] = lambda kind, client, content: content,
        node_config: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app: ClientApp = app
        self.vanishes = vanishes
        self.meddle = meddle
        self.sent: list[tuple[str, int]] = []
        self.replies: list[RecordDict] = []
        self.contexts = {
            FIRST_NODE_ID + k: Context(
                run_id=1,
                node_id=FIRST_NODE_ID + k,
                node_config={"partition-id": k, "num-partitions": num_nodes, **(node_config or {})},
                state=RecordDict(),
                run_config={},
            )
            for k in range(num_nodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{time.monotonic_ns()}-{number}"
            reply = self._deliver(message)
            if reply is not None:
                replies.append(reply)
        return replies

    def _deliver(self, message: Message) -> Message | None:
        node_id = message.metadata.dst_node_id
        client_id = node_id - FIRST_NODE_ID
        kind = message.metadata.message_type.partition(".")[2]
        self.sent.append((kind, client_id))
        if self.vanishes(kind, client_id):
            return None
        message.content = self.meddle(kind, client_id, message.content)
        try:
            reply = self.app(message, self.contexts[node_id])
        except Exception as error:
            return Message(Error(code=1, reason=str(error)), reply_to=message)
        self.replies.append(reply.content)
        return reply
