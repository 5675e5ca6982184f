"""The order and the model of a message, checked against what the client agreed to.

Torch is imported here and only where a message orders a training: each message of a deployment starts a
fresh process, and loading torch takes longer than what the other messages ask for.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from gdpfed.clients.messages import ORDER_RECORD, THETA_RECORD
from gdpfed.late_import import loaded_for_good
from secagg import ClientSession, SumParameters

# A larger order would keep this node busy for as long as the server likes. As `conf.limits` has them, so that
# no run is begun of which every node refuses every round.
MOST = {"local_steps": 100_000, "batch_size": 1_000_000}

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder


def order_and_model(
    content: RecordDict, parameters: SumParameters
) -> tuple["TrainingOrder", npt.NDArray[np.float32]]:
    """The order and the model of a message.

    Raises:
        OrderError: records are missing, the model has another size than the client agreed to, or the training
            is larger than any.
    """
    with loaded_for_good("torch"):
        from gdpfed.clients.order import OrderError, TrainingOrder

    order, arrays = content.get(ORDER_RECORD), content.get(THETA_RECORD)
    if not isinstance(order, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise OrderError(f"the message lacks the record {ORDER_RECORD} or {THETA_RECORD}")
    theta = arrays[THETA_RECORD].numpy()
    ordered = TrainingOrder.from_scalars(dict(order))
    dimension = parameters.dimension - ordered.more_coordinates
    if theta.dtype != np.float32 or theta.shape != (dimension,):
        raise OrderError(f"the model is {theta.dtype}{list(theta.shape)}, not float32[{dimension}]")
    asked = {name: (getattr(ordered.training, name), most) for name, most in MOST.items()}
    records = ordered.records
    if records is not None:
        asked["steps on records"] = (records.num_steps, MOST["local_steps"])
        asked["batch rates"] = (len(records.batch_rates), MOST["local_steps"])
    for name, (value, most) in asked.items():
        if type(value) is not int or not 1 <= value <= most:
            raise OrderError(f"the order's {name} is {value!r}: it must be from 1 to {most}")
    return ordered, theta


def masked_update(
    order: "TrainingOrder",
    theta: npt.NDArray[np.float32],
    session: ClientSession,
    num_contributors: int,
    client_id: int,
    own_data: Path | None = None,
) -> bytes:
    """Train, and return the session's masked vector.

    ``own_data`` is the file with this client's own examples; without one its part of the data set.
    """
    from gdpfed.clients.update import own_noise, update_steps

    steps = update_steps(order, theta, session.encoding(), client_id, own_data)
    noise = own_noise(order, session.parameters, num_contributors)
    return session.mask(steps, order.context(theta), noise=noise)


def update_in_clear(
    order: "TrainingOrder",
    theta: npt.NDArray[np.float32],
    parameters: SumParameters,
    client_id: int,
    own_data: Path | None = None,
) -> npt.NDArray[np.uint32]:
    """One client's update as residues without noise, shape (d,), for sums without secure aggregation.

    ``own_data`` is the file with this client's own examples; without one its part of the data set.
    """
    from gdpfed.clients.update import update_steps

    encoding = parameters.encoding(parameters.num_clients)
    return encoding.to_residues(update_steps(order, theta, encoding, client_id, own_data))
