"""What a node is told at its own start, by ``--node-config`` or by the simulation."""

from flwr.app import Context

from secagg import ClientPolicy

CLIENT_ID_KEY = "partition-id"


class NodeConfigError(ValueError):
    """A node configuration that cannot be used; the message names the key and the remedy."""


def client_id_of(context: Context) -> int:
    """Which client of the plan this node is.

    Raises:
        NodeConfigError: the node was started without ``partition-id``.
    """
    client_id = context.node_config.get(CLIENT_ID_KEY)
    if not isinstance(client_id, int) or client_id < 0:
        raise NodeConfigError(
            f"{CLIENT_ID_KEY} is {client_id!r}: start the node with "
            f'--node-config "{CLIENT_ID_KEY}=<number of the client, from 0>"'
        )
    return client_id


def policy_of(context: Context) -> ClientPolicy:
    """The node's own limits on a sum.

    The keys are ``minimum-cohort``, ``maximum-dropout-fraction``, ``minimum-noise-multiplier``,
    ``secagg-mode`` (active refuses sums without signatures) and ``corrupt-fraction`` (what a sparse
    graph must withstand).
    """
    config = context.node_config
    return ClientPolicy(
        minimum_cohort=int(config.get("minimum-cohort", 2)),
        maximum_dropout_fraction=float(config.get("maximum-dropout-fraction", 0.5)),
        minimum_noise_multiplier=float(config.get("minimum-noise-multiplier", 0.0)),
        mode=str(config.get("secagg-mode", "curious")),
        corrupt_fraction=float(config.get("corrupt-fraction", 0.0)),
    )
