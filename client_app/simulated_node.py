"""Detect Flower's simulation backend, where nobody starts nodes and so no node has settings.

A node that an operator starts must not take itself for a simulated one, for a simulated one may send its
update in clear (``secagg=off``). So the sign has to be one that neither a message, a run's configuration,
an environment variable nor the node's own configuration makes: *this process is an actor of Ray*.

The simulation backend of Flower 1.41 calls the ClientApp in a Ray actor
(``flwr.simulation.ray_transport.ray_actor.ClientAppActor``). A SuperNode has it called in a program of its
own, ``flwr-clientapp``, which starts no Ray. A process becomes an actor when Ray's own worker program
starts it and connects it to a Ray cluster; Ray keeps that in the memory of the process. Code that calls
``ray.init`` becomes a driver and no actor. A SuperNode that somebody runs inside a Ray job starts
``flwr-clientapp`` as a child, which is no actor either. The app's own code could pretend, but it comes from
those whom a node trusts to send it: they could as well send an app without this check (see docs/privacy.md,
*whoever may submit runs*).
"""

import sys


def in_flowers_simulation() -> bool:
    """Whether this process is a Ray actor, in which Flower's simulation backend runs ClientApps."""
    # Ray is not imported for this: in its own actors it is there, and elsewhere it takes a second to load.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
