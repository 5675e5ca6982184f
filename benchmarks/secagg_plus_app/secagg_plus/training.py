"""A client's local training, in a module of its own so that only training imports torch."""

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Context

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load, split
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.works.update import batch_generator
from gdpfed.learning.training.local_update import local_update


def trained(context: Context, theta: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Train locally from ``theta`` as configured, and return the node's model."""
    client_id = int(context.node_config["partition-id"])
    config = load(split(str(context.run_config["overrides"])))
    order = order_of(config, task_of(config))
    update = local_update(
        order.task.build_model(),
        theta,
        order.task.client_data(client_id),
        order.training,
        rng=batch_generator(order, client_id),
        device=torch.device("cpu"),
    )
    model: npt.NDArray[np.float32] = theta + update.numpy()
    return model
