"""Trains as a client of the project does, in Flower's legacy client under its SecAgg+ mod."""

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

from gdpfed.late_import import loaded_for_good


class Trainer(NumPyClient):
    """One client of the configured task; it loads what trains when it is asked to train."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Local training from the given model; every client has the same weight."""
        with loaded_for_good("torch"):
            from .training import trained

        (theta,) = parameters
        return [trained(self.context, theta.astype(np.float32))], 1, {}


def make_client(context: Context) -> Client:
    """The legacy client of a node."""
    return Trainer(context).to_client()


app = ClientApp(client_fn=make_client, mods=[secaggplus_mod])
