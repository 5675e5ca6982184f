"""The settings of a node, given by ``--node-config``: each with the values that it takes.

A setting that nobody knows is refused, as one with a wrong value is: a limit that is misspelt would be none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from gdpfed.decimal_numbers import decimal_number
from gdpfed.errors import InputError
from gdpfed.privacy.events import Unit
from secagg.protocol.parameters import MODES

CLIENT_ID_KEY = "partition-id"
NUM_CLIENTS_KEY = "num-partitions"
EPSILON_KEY, DELTA_KEY = "epsilon", "delta"
RECORD_EPSILON_KEY, RECORD_DELTA_KEY = "epsilon-record", "delta-record"
SETTING_OF: Mapping[Unit, str] = {"client": EPSILON_KEY, "record": RECORD_EPSILON_KEY}
"""By which setting a node gives the budget of each unit."""
LEDGER_KEY, LEDGER_COPY_KEY = "ledger", "ledger-copy"
CAP_KEY = "max-epsilon-against-server"
MOST_ROUNDS_KEY, SEPARATION_KEY = "max-participations", "min-separation"
RAISED_KEY = "raised-from"
LOST_ROUNDS_KEY = "lost-rounds"
AVERSION_KEY, FIRST_BUDGET_KEY = "aversion", "first-budget"
DATA_KEY = "data"
WEIGHTS_KEY = "weights"
HELD_OUT_DATA_KEY, HELD_OUT_SHARE_KEY = "held-out-data", "held-out-share"
MODE_KEY = "secagg-mode"
BY_PARTY_KEY = "counts-by-party"
REFUSED_MODELS_KEY = "refused-models"
SESSION_FILE_KEY, SESSION_SECONDS_KEY = "session-file", "session-seconds"
EDGE_TRUSTED_KEY = "edge-trusted"
IDENTITY_FILE_KEY, ROSTER_FILE_KEY, CONSORTIUM_KEY = "identity-file", "roster-file", "consortium-key"
ALLOWED_OVERRIDES_KEY = "allowed-overrides"

MOST_CLIENTS = 2**16 - 1
MOST_COORDINATES = 2**31 - 1


class NodeConfigError(InputError):
    """A node configuration that cannot be used; the message names the key and the remedy."""


@dataclass(frozen=True)
class Kind:
    """The values that a setting takes.

    Attributes:
        wanted: in words, for an error.
        fits: whether a value is one of them.
    """

    wanted: str
    fits: Callable[[Any], bool]


def whole(least: int, most: int) -> Kind:
    """Whole numbers from ``least`` to ``most``; true and false are none."""
    return Kind(f"a whole number from {least} to {most}", lambda v: type(v) is int and least <= v <= most)


def positive(below: float = inf) -> Kind:
    """Numbers above 0 and below ``below``."""
    return Kind(f"a number above 0 and below {below:g}", lambda v: _is_number(v) and 0 < v < below)


def share() -> Kind:
    """Numbers from 0 to below 1."""
    return Kind("a number from 0 to below 1", lambda v: _is_number(v) and 0 <= v < 1)


def amount() -> Kind:
    """Finite numbers from 0 on."""
    return Kind("a finite number, 0 or more", lambda v: _is_number(v) and v >= 0 and isfinite(v))


def ascending() -> Kind:
    """A number above 0, or several in a text, each above the one before."""
    return Kind('a number above 0, or several in ascending order as in "0.1,1,5"', _is_ascending)


def numbers_in(value: float | str) -> tuple[float, ...]:
    """The numbers of a setting of kind `ascending`."""
    return tuple(decimal_number(each.strip()) for each in str(value).split(","))


def path() -> Kind:
    """Paths of files and folders."""
    return Kind("a path in quotes", lambda v: isinstance(v, str) and v != "")


def text() -> Kind:
    """Any text."""
    return Kind("a text in quotes", lambda v: isinstance(v, str) and v != "")


def one_of(*words: str) -> Kind:
    """One of these words."""
    return Kind(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def yes_or_no() -> Kind:
    """True and false."""
    return Kind("true or false", lambda v: isinstance(v, bool))


def _is_number(value: Any) -> bool:
    """A real number, or a whole one that fits 64 bits; true and false are none."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _is_ascending(value: Any) -> bool:
    if not _is_number(value) and not isinstance(value, str):
        return False
    try:
        numbers = (0.0, *numbers_in(value))
    except ValueError:
        return False
    return all(low < high < inf for low, high in pairwise(numbers))


LIMITS: Mapping[str, Kind] = {
    "minimum-cohort": whole(2, MOST_CLIENTS),
    "minimum-survivors": whole(2, MOST_CLIENTS),
    "minimum-bare-survivors": whole(2, MOST_CLIENTS),
    "minimum-noise-multiplier": amount(),
    "minimum-own-noise": amount(),
    "maximum-dropout-fraction": share(),
    "corrupt-fraction": share(),
    "sparse-corrupt-fraction": share(),
    "maximum-clients": whole(2, MOST_CLIENTS),
    "maximum-neighbours": whole(2, MOST_CLIENTS),
    "maximum-dimension": whole(1, MOST_COORDINATES),
    "maximum-clipping-norm": Kind("a number above 0", lambda v: _is_number(v) and v > 0),
}
"""The node's limits on a sum: the fields of ``ClientPolicy``, with hyphens."""

BUDGET_LIMITS: Mapping[str, Kind] = {
    CAP_KEY: positive(),
    MOST_ROUNDS_KEY: whole(1, 2**31),
    SEPARATION_KEY: whole(1, 2**31),
    RAISED_KEY: amount(),
    LOST_ROUNDS_KEY: whole(0, 2**31),
}
"""What goes with a budget of the node's own: fields of ``Budget``, with hyphens."""

OWN_SETTINGS: Mapping[str, Kind] = {
    CLIENT_ID_KEY: whole(0, 2**63 - 1),
    NUM_CLIENTS_KEY: whole(1, 2**63 - 1),
    EPSILON_KEY: positive(),
    DELTA_KEY: positive(1.0),
    RECORD_EPSILON_KEY: ascending(),
    RECORD_DELTA_KEY: positive(1.0),
    LEDGER_KEY: path(),
    LEDGER_COPY_KEY: path(),
    **BUDGET_LIMITS,
    AVERSION_KEY: positive(1.0),
    FIRST_BUDGET_KEY: positive(),
    DATA_KEY: path(),
    HELD_OUT_DATA_KEY: path(),
    HELD_OUT_SHARE_KEY: share(),
    WEIGHTS_KEY: path(),
    MODE_KEY: one_of(*MODES),
    BY_PARTY_KEY: yes_or_no(),
    REFUSED_MODELS_KEY: text(),
    SESSION_FILE_KEY: path(),
    SESSION_SECONDS_KEY: positive(),
    EDGE_TRUSTED_KEY: yes_or_no(),
    IDENTITY_FILE_KEY: path(),
    ROSTER_FILE_KEY: path(),
    CONSORTIUM_KEY: text(),
    ALLOWED_OVERRIDES_KEY: text(),
    **LIMITS,
}


def check_settings(config: Mapping[str, Any]) -> None:
    """Refuse a node's configuration that is not understood in every part.

    Raises:
        NodeConfigError: an unknown setting, with the nearest known one, or a value that it does not take.
    """
    known = OWN_SETTINGS
    if config.keys() - known.keys():
        from gdpfed.federation.node.stand_ins import all_settings

        known = all_settings()
    for key, value in config.items():
        kind = known.get(key)
        if kind is None:
            near = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise NodeConfigError(f"{key} is no setting of a node; the nearest one is {near}")
        if not kind.fits(value):
            raise NodeConfigError(f"{key} is {value!r}: give {kind.wanted}")


def fields_in(config: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Those of some settings that are given, by the names of the fields that they are."""
    return {key.replace("-", "_"): config[key] for key in settings if key in config}
