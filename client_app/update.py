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

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder


def order_and_model(
    content: RecordDict, parameters: SumParameters
) -> tuple["TrainingOrder", npt.NDArray[np.float32]]:
    """The order and the model of a message.

    Raises:
        OrderError: records are missing, or the model has another size than the client agreed to.
    """
    with loaded_for_good("torch"):
        from gdpfed.clients.order import TrainingOrder
        from gdpfed.clients.update import OrderError

    order, arrays = content.get(ORDER_RECORD), content.get(THETA_RECORD)
    if not isinstance(order, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise OrderError(f"the message lacks the record {ORDER_RECORD} or {THETA_RECORD}")
    theta = arrays[THETA_RECORD].numpy()
    if theta.dtype != np.float32 or theta.shape != (parameters.dimension,):
        raise OrderError(
            f"the model is {theta.dtype}{list(theta.shape)}, not float32[{parameters.dimension}]"
        )
    return TrainingOrder.from_scalars(dict(order)), theta


def encoded_update(
    order: "TrainingOrder",
    theta: npt.NDArray[np.float32],
    parameters: SumParameters,
    num_contributors: int,
    client_id: int,
    session: ClientSession | None = None,
    own_data: Path | None = None,
) -> npt.NDArray[np.uint32]:
    """One client's clipped and noised update as residues, shape (d,).

    ``own_data`` is the file with this client's own examples; without one its part of the data set.
    """
    from gdpfed.clients.update import noise_steps, update_steps

    encoding = parameters.encoding(num_contributors)
    steps = update_steps(order, theta, encoding, client_id, own_data)
    return encoding.to_residues(steps + noise_steps(order, parameters, num_contributors, session))
