"""Answers with what came."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train("echo")
def echo(message: Message, context: Context) -> Message:
    """The same content back."""
    return Message(message.content, reply_to=message)
