"""A ClientApp that is honest except for faulty masked updates, as the run's configuration says.

It travels with the copy of the app that `faulty_app` makes, in place of the honest ClientApp.
"""

import json
import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from client_app.app import app as honest
from gdpfed.clients.messages import DATA, MASK, ROUND

STATE = "rule-breaker"
TOO_LONG_SECONDS = 600.0


class RuleBreaker(ClientApp):
    """A ClientApp that answers honestly, but spoils its masked update in the rounds that the run names."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = honest(message, context)
        data = reply.content.config_records[MASK].get(DATA) if MASK in reply.content else None
        if not isinstance(data, bytes):
            return reply
        before = context.state.config_records.get(STATE, ConfigRecord({ROUND: 0, DATA: b""}))
        round_number = int(str(before[ROUND])) + 1
        context.state[STATE] = ConfigRecord({ROUND: round_number, DATA: data})
        faults = json.loads(str(context.run_config["faults"])).get(str(round_number), {})
        fault = faults.get(str(context.node_config["partition-id"]))
        if fault == "nan":
            del reply.content[MASK]
            reply.content[MASK] = ArrayRecord({"update": Array(np.full(650, np.nan, np.float32))})
        elif fault is not None:
            reply.content[MASK][DATA] = SPOILED[fault](data, before[DATA])
        return reply


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
