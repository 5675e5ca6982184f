"""A ClientApp that is honest but for its masked updates, as the run's configuration says.

It travels with the copy of the app that `faulty_app` makes, in place of the honest ClientApp.
"""

import json
import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from client_app.app import app as honest

STATE = "rule-breaker"
TOO_LONG_SECONDS = 600.0


class RuleBreaker(ClientApp):
    """Answers as the honest app does, then spoils the masked update of the rounds that it is told to."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if message.metadata.message_type != "train.masked":
            return reply
        name = max(reply.content.config_records, key=lambda key: len(_bytes(reply, key)))
        seen = context.state.get(STATE, ConfigRecord({"rounds": 0, "last": b""}))
        earlier, data = seen["last"], _bytes(reply, name)
        round_number = seen["rounds"] + 1
        context.state[STATE] = ConfigRecord({"rounds": round_number, "last": data})
        faults = json.loads(context.run_config["faults"]).get(str(round_number), {})
        fault = faults.get(str(context.node_config["partition-id"]))
        if fault == "nan":
            reply.content[name] = ArrayRecord({"update": Array(np.full(650, np.nan, np.float32))})
        elif fault is not None:
            reply.content[name]["data"] = SPOILED[fault](data, earlier)
        return reply


def _bytes(reply: Message, name: str) -> bytes:
    data = reply.content[name].get("data")
    return data if isinstance(data, bytes) else b""


def _late(data: bytes, earlier: bytes) -> bytes:
    time.sleep(TOO_LONG_SECONDS)
    return data


SPOILED = {
    "garbage": lambda data, earlier: os.urandom(len(data)),
    "short": lambda data, earlier: data[:-4],
    "replay": lambda data, earlier: earlier,
    "late": _late,
}

app = RuleBreaker()
