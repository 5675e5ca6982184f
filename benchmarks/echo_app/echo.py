"""A Flower app whose server sends vectors to nodes, and whose clients send them back unchanged."""

import json
import random
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


@client.train("echo")
def echo(message: Message, context: Context) -> Message:
    """Reply to a message with its own content."""
    return Message(message.content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Time rounds in which nodes send the server's vectors back; write the seconds per round to a file."""
    names = ("nodes", "exchanges", "rounds", "dimension")
    nodes, exchanges, rounds, dimension = (int(context.run_config[name]) for name in names)
    vector = np.zeros(dimension, dtype=np.float32)
    seconds = []
    while len(everybody := list(grid.get_node_ids())) < nodes:
        time.sleep(0.2)
    for _ in range(rounds):
        node_ids = random.sample(everybody, nodes)
        started = time.perf_counter()
        for _ in range(exchanges):
            contents = [RecordDict({"v": ArrayRecord({"v": Array(vector)})}) for _ in node_ids]
            messages = [Message(c, n, "train.echo") for c, n in zip(contents, node_ids, strict=True)]
            replies = list(grid.send_and_receive(messages))
            if len(replies) != nodes or any(reply.has_error() for reply in replies):
                raise RuntimeError(
                    f"{len(replies)} of {nodes} nodes answered, not all of them without an error"
                )
        seconds.append(time.perf_counter() - started)
        Path(str(context.run_config["seconds"])).write_text(json.dumps(seconds), encoding="utf-8")
