"""Trains as a client of the project does, in Flower's legacy client under its SecAgg+ mod."""

import numpy as np
import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from conf.load import load, split
from gdpfed.client_update import batch_generator
from gdpfed.learning.local_update import local_update
from gdpfed.rounds.run import order_of
from gdpfed.tasks import task_of


class Trainer(NumPyClient):
    """One client of the configured task."""

    def __init__(self, context: Context) -> None:
        self.client_id = int(context.node_config["partition-id"])
        config = load(split(str(context.run_config["overrides"])))
        self.order = order_of(config, task_of(config))

    def fit(self, parameters, config):
        """Local training from the given model; every client has the same weight."""
        (theta,) = parameters
        task = self.order.task
        update = local_update(
            task.build_model(),
            theta.astype(np.float32),
            task.client_data(self.client_id),
            self.order.training,
            rng=batch_generator(self.order, self.client_id),
            device=torch.device("cpu"),
        )
        return [theta + update.numpy()], 1, {}


def make_client(context: Context) -> Client:
    """The legacy client of a node."""
    return Trainer(context).to_client()


app = ClientApp(client_fn=make_client, mods=[secaggplus_mod])
