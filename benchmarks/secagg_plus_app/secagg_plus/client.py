"""A Flower client that runs gdpfed's local training inside Flower's own SecAgg+."""

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

from gdpfed.late_import import loaded_for_good


class Trainer(NumPyClient):
    """A client that trains on its own data; it imports training code only when it trains."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train on the node's data from the given parameters; return the new parameters, with weight 1."""
        with loaded_for_good("torch"):
            from .training import trained

        (theta,) = parameters
        return [trained(self.context, theta.astype(np.float32))], 1, {}


def make_client(context: Context) -> Client:
    """Make a node's client in the form that Flower's legacy SecAgg+ code needs."""
    return Trainer(context).to_client()


app = ClientApp(client_fn=make_client, mods=[secaggplus_mod])
