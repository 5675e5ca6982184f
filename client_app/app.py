"""Flower's ClientApp, which a run sends to nodes; it passes messages to the node's guard process, if any.

The person who submits a run sends this code. On a node with a guard, it sees only messages and the guard's
answers: no data, no ledger and no keys. On a node without a guard, as in simulation, this code answers the
messages itself (:mod:`client_app.node_app`).
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.relay import GUARD_KEY, relayed
from gdpfed.child_process import begin_process

begin_process("flwr-clientapp", ends_with_parent=True)


class NodeClientApp(ClientApp):
    """Flower's ClientApp of a node: it asks the node's guard process for answers, or answers itself."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message of the server for this node.

        Raises GuardError: the guard does not answer, or the node has other settings beside the guard.
        """
        if GUARD_KEY in context.node_config:
            return relayed(message, context)
        from client_app.node_app import app as node_app

        return node_app(message, context)


app = NodeClientApp()
