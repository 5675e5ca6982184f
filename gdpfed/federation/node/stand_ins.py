"""Plug-in point: an object that computes updates for a node that does not train on its own data.

A package declares one under the name of the node's setting that chooses it, in the entry point group
``gdpfed.stand_ins``.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gdpfed.errors import InputError
from gdpfed.federation.node.node_config import OWN_SETTINGS, Kind, NodeConfigError, check_settings
from gdpfed.registry import Registry

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

Vector = npt.NDArray[np.float32]
_WORD = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


class StandInError(InputError):
    """Raised if a stand-in (it replaces a node's own data) gives no update; the server reads the message."""


class StandIn(Protocol):
    """Gives a node's updates in place of training on the node's own data."""

    def check(self, order: "TrainingOrder") -> None:
        """Raise InputError if this object cannot follow the server's instruction; no cost is recorded yet."""
        ...

    def change(self, run: str, order: "TrainingOrder", theta: Vector) -> Vector:
        """Carry out the server's instruction to train; return the change of the model, shape (d,).

        Raises:
            StandInError: it was not done.
        """
        ...

    def end(self, run: str) -> None:
        """Note that a run of the server is over."""
        ...


@dataclass(frozen=True)
class StandInKind:
    """A kind of stand-in, which replaces a node's own data: its settings, and a function to make one.

    Attributes:
        settings: of a node, and the values that each takes; the one that chooses the kind among them.
        make: a node's stand-in, by all its settings; raises NodeConfigError.
    """

    settings: Mapping[str, Kind]
    make: Callable[[Mapping[str, Any]], StandIn]


STAND_INS: Registry[StandInKind] = Registry(
    "stand-in",
    "gdpfed.stand_ins",
    error=NodeConfigError,
)


def stand_in_of(config: Mapping[str, Any]) -> StandIn | None:
    """Make the object that replaces a node's own data (a stand-in); return None if no setting asks for it.

    Raises:
        NodeConfigError: settings that contradict it, or two stand-ins.
    """
    foreign = config.keys() - OWN_SETTINGS.keys()
    chosen = [name for name in STAND_INS.names() if name in foreign] if foreign else []
    if len(chosen) > 1:
        raise NodeConfigError(f"{' and '.join(chosen)} both stand in for this node's data: leave one out")
    return STAND_INS.get(chosen[0]).make(config) if chosen else None


def all_settings() -> dict[str, Kind]:
    """Return all settings of a node with their allowed values, and those of objects that replace its data."""
    more = {key: kind for each in STAND_INS.items().values() for key, kind in each.settings.items()}
    return {**OWN_SETTINGS, **more}


def settings_in(words: str) -> dict[str, Any]:
    """Parse a node's settings from the text of ``--node-config`` or from a TOML file.

    Raises NodeConfigError: they cannot be read, or are not settings of a node.
    """
    try:
        if words.endswith(".toml"):
            words = Path(words).expanduser().read_text(encoding="utf-8")
            config = tomllib.loads(words)
        elif rest := " ".join(_WORD.sub(" ", words).split()):
            raise ValueError(f"{rest} is not of the form name=value")
        else:
            config = tomllib.loads("\n".join(f"{key} = {value}" for key, value in _WORD.findall(words)))
    except (OSError, ValueError) as error:
        raise NodeConfigError(
            f"--node-config {words} cannot be read ({error}): give it as the node has it, as in "
            "\"epsilon=3.0 ledger='/state/ledger.json'\""
        ) from None
    check_settings(config)
    return config
