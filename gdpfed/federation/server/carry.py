"""Send a vector of the model's size to every node and back, before anything is charged."""

import numpy as np

from gdpfed.clients.messages import CARRY, LARGE_BYTES, THETA_RECORD
from gdpfed.federation.server.join import Joined
from gdpfed.federation.server.transport import Transport, refusals

FLOAT_BYTES = 4


def carry_model(transport: Transport, joined: Joined, dimension: int, enough: int) -> None:
    """Leave out the nodes that a message as large as the model does not reach, or does not leave.

    A SuperNode whose memory is too small is ended when the model arrives, and nobody is told; all budgets
    would be charged by then. A small model goes where the questions went.

    Args:
        dimension: d; random numbers travel in the place of the model, since zeros shrink on the way.
        enough: how many nodes have to stay.

    Raises:
        RunError: too few stay; it names what to raise.
    """
    size = FLOAT_BYTES * dimension
    if size <= LARGE_BYTES:
        return
    numbers = np.random.default_rng().random(dimension, np.float32)
    content = {THETA_RECORD: {THETA_RECORD: numbers}}
    silent = refusals(transport, joined.nodes, dict.fromkeys(joined.nodes, content), CARRY)
    remedy = (
        "give its SuperNode and its app more memory (python -m deploy --parameters), or the run more "
        "run.timeout_seconds; nothing is charged"
    )
    joined.leave_out(
        {
            client: f"client {client} did not send back a message of {size / 1e6:.1f} MB, as large as the "
            f"model ({why}): {remedy}"
            for client, why in silent.items()
        },
        enough,
    )
