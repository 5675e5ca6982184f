"""Sends one vector to each of some nodes, as often as configured, and prints the seconds a round."""

import json
import random
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time ``rounds`` rounds of ``exchanges`` exchanges with ``nodes`` nodes of those there are."""
    config = context.run_config
    vector = np.zeros(int(config["dimension"]), dtype=np.float32)
    seconds = []
    while len(everybody := list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.2)
    for _ in range(int(config["rounds"])):
        node_ids = random.sample(everybody, int(config["nodes"]))
        started = time.perf_counter()
        for _ in range(int(config["exchanges"])):
            contents = [RecordDict({"v": ArrayRecord({"v": Array(vector)})}) for _ in node_ids]
            messages = [Message(c, n, "train.echo") for c, n in zip(contents, node_ids, strict=True)]
            replies = list(grid.send_and_receive(messages))
            if len(replies) != len(node_ids) or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(replies)} of {len(node_ids)} nodes answered")
        seconds.append(time.perf_counter() - started)
    print("echo seconds " + json.dumps(seconds), flush=True)
