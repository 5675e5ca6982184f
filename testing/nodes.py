"""One node alone: a context as a SuperNode makes it, and the app's answer to one message."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app

NODE_ID = 1000


def make_context(client_id: int, **settings: Any) -> Context:
    """The context of a node that was started with these settings."""
    config = {"partition-id": client_id, "num-partitions": 40, **settings}
    return Context(run_id=1, node_id=NODE_ID, node_config=config, state=RecordDict(), run_config={})


def ask(message_type: str, content: RecordDict, context: Context) -> Mapping[str, Any]:
    """The records of a node's answer."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return app(Message(content, NODE_ID, message_type), context).content
