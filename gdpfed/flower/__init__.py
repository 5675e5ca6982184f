"""Train your own Flower app under a privacy plan: the strategy `GDPFed` and `private_client`.

A name is imported when it is first asked for: a node's process loads nothing of the server's.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdpfed.flower.client import private_client as private_client
    from gdpfed.flower.strategy import GDPFed as GDPFed


def __getattr__(name: str) -> object:
    from gdpfed.late_import import packages_needed

    with packages_needed():
        if name == "GDPFed":
            from gdpfed.flower.strategy import GDPFed

            return GDPFed
        if name == "private_client":
            from gdpfed.flower.client import private_client

            return private_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["GDPFed", "private_client"]
