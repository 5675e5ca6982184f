"""The settings of a node, given by ``--node-config``: each is a field with its allowed values.

An unknown setting or a wrong value is refused, since a misspelt limit would limit nothing. The field
``max_participations`` is the setting ``max-participations``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

from gdpfed.decimal_numbers import decimal_number
from gdpfed.errors import InputError
from gdpfed.privacy.events import Unit
from secagg.protocol.parameters import MODES

MOST_CLIENTS = 2**16 - 1
MOST_COORDINATES = 2**31 - 1


class NodeConfigError(InputError):
    """Raised if the settings of a node cannot be used; the message names the setting and the remedy."""


@dataclass(frozen=True)
class Kind:
    """The values that a node's setting may have, and how errors describe them.

    Attributes:
        wanted: the allowed values in words, for an error.
        fits: whether a value is allowed.
        read: converts an allowed value to the value that the node uses.
    """

    wanted: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Any] = lambda value: value


def whole(least: int, most: int) -> Kind:
    """Return the kind of setting that allows whole numbers from ``least`` to ``most``."""
    return Kind(f"a whole number from {least} to {most}", lambda v: type(v) is int and least <= v <= most)


def positive(below: float = inf) -> Kind:
    """Return the kind of setting that allows numbers above 0 and below ``below``."""
    return Kind(f"a number above 0 and below {below:g}", lambda v: _is_number(v) and 0 < v < below, float)


def share() -> Kind:
    """Return the kind of setting that allows fractions, from 0 to below 1."""
    return Kind("a number from 0 to below 1", lambda v: _is_number(v) and 0 <= v < 1, float)


def amount() -> Kind:
    """Return the kind of setting that allows finite numbers of 0 or more."""
    return Kind("a finite number, 0 or more", lambda v: _is_number(v) and v >= 0 and isfinite(v), float)


def ascending() -> Kind:
    """Return the kind of setting that allows one number above 0, or a text of several in ascending order."""
    return Kind('a number above 0, or several in ascending order as in "0.1,1,5"', _is_ascending, _numbers_in)


def _numbers_in(value: float | str) -> tuple[float, ...]:
    return tuple(decimal_number(each.strip()) for each in str(value).split(","))


def path() -> Kind:
    """Return the kind of setting that allows the path of a file or folder."""
    return Kind("a path in quotes", lambda v: isinstance(v, str) and v != "", lambda v: Path(v).expanduser())


def text() -> Kind:
    """Return the kind of setting that allows any non-empty text."""
    return Kind("a text in quotes", lambda v: isinstance(v, str) and v != "")


def one_of(*words: str) -> Kind:
    """Return the kind of setting that allows only the given words."""
    return Kind(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def yes_or_no() -> Kind:
    """Return the kind of setting that allows only true or false."""
    return Kind("true or false", lambda v: isinstance(v, bool))


def _is_number(value: Any) -> bool:
    """Whether a value is a number, and not true or false; whole numbers must fit into 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _is_ascending(value: Any) -> bool:
    if not _is_number(value) and not isinstance(value, str):
        return False
    try:
        numbers = (0.0, *_numbers_in(value))
    except ValueError:
        return False
    return all(low < high < inf for low, high in pairwise(numbers))


Positive = Annotated[float, positive()]
Share = Annotated[float, share()]
Amount = Annotated[float, amount()]
Clients = Annotated[int, whole(2, MOST_CLIENTS)]
Rounds = Annotated[int, whole(1, 2**31)]
YesOrNo = Annotated[bool, yes_or_no()]
File = Annotated[Path, path()]


@dataclass(frozen=True, kw_only=True)
class SumLimits:
    """The node's own limits on secure sums; a limit that is not set is None.

    They are fields of ``ClientPolicy``.
    """

    minimum_cohort: Clients | None = None
    minimum_survivors: Clients | None = None
    minimum_bare_survivors: Clients | None = None
    minimum_noise_multiplier: Amount | None = None
    minimum_own_noise: Amount | None = None
    maximum_dropout_fraction: Share | None = None
    corrupt_fraction: Share | None = None
    sparse_corrupt_fraction: Share | None = None
    maximum_clients: Clients | None = None
    maximum_neighbours: Clients | None = None
    maximum_dimension: Annotated[int, whole(1, MOST_COORDINATES)] | None = None
    maximum_clipping_norm: (
        Annotated[float, Kind("a number above 0", lambda v: _is_number(v) and v > 0, float)] | None
    ) = None


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """The settings of a node's own privacy budget; a setting that is not given is None.

    They are fields of ``Budget``.
    """

    max_epsilon_against_server: Positive | None = None
    max_participations: Rounds | None = None
    min_separation: Rounds | None = None
    raised_from: Amount | None = None
    lost_rounds: Annotated[int, whole(0, 2**31)] | None = None


@dataclass(frozen=True, kw_only=True)
class NodeConfig(SumLimits, BudgetLimits):
    """The settings that a node was started with; None where a setting is not given.

    Attributes:
        partition_id: the number of the client that the node answers for.
        num_partitions: a setting that Flower gives in simulations; nothing reads it.
        epsilon, delta, epsilon_record, delta_record: the budgets of the client and of its records.
        ledger, ledger_copy: the file that records the spent budget, and the folder with a copy of it.
        aversion, first_budget: the node's preferences in games and for prices (`Player`).
        data, held_out_data, held_out_share: its own examples, and which of them are never trained on.
        weights: the node's file of model weights.
        secagg_mode: how much the node trusts the server.
        edge_trusted: whether the server is an edge server that may see single updates.
        counts_by_party: whether a run may show this node's own noised counts.
        refused_models: names of models, separated by commas. allowed_overrides: words, separated by blanks.
        session_file, session_seconds: the file with the keys of open sessions, and how long they stay open.
        identity_file, roster_file, consortium_key: the node's signing key, all clients' public keys, and the
            key that signed these.
    """

    partition_id: Annotated[int, whole(0, 2**63 - 1)] | None = None
    num_partitions: Annotated[int, whole(1, 2**63 - 1)] | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, positive(1.0)] | None = None
    epsilon_record: Annotated[tuple[float, ...], ascending()] | None = None
    delta_record: Annotated[float, positive(1.0)] | None = None
    ledger: File | None = None
    ledger_copy: File | None = None
    aversion: Annotated[float, positive(1.0)] | None = None
    first_budget: Positive | None = None
    data: File | None = None
    held_out_data: File | None = None
    held_out_share: Share | None = None
    weights: File | None = None
    secagg_mode: Annotated[str, one_of(*MODES)] | None = None
    counts_by_party: YesOrNo | None = None
    refused_models: Annotated[str, text()] | None = None
    session_file: File | None = None
    session_seconds: Positive | None = None
    edge_trusted: YesOrNo | None = None
    identity_file: File | None = None
    # A path, or the word first-seen; so it stays a text here.
    roster_file: Annotated[str, replace(path(), read=str)] | None = None
    consortium_key: Annotated[str, text()] | None = None
    allowed_overrides: Annotated[str, text()] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Make a NodeConfig from checked settings; settings of edge servers and users' apps are left out."""
        known = ((key, OWN_SETTINGS[key]) for key in config if key in OWN_SETTINGS)
        return cls(**{key.replace("-", "_"): kind.read(config[key]) for key, kind in known})

    def fields_of(self, group: type[SumLimits | BudgetLimits]) -> dict[str, Any]:
        """Return the given settings of one group, such as the limits on sums."""
        values = {field.name: getattr(self, field.name) for field in fields(group)}
        return {name: value for name, value in values.items() if value is not None}


def _settings_of(group: type) -> dict[str, Kind]:
    """Return the settings that a class has as fields, with the allowed values of each."""
    hints = get_type_hints(group, include_extras=True)
    kinds: dict[str, Kind] = {}
    for field in fields(group):
        annotation = hints[field.name]
        stated = annotation if get_origin(annotation) is Annotated else get_args(annotation)[0]
        kinds[field.name.replace("_", "-")] = stated.__metadata__[0]
    return kinds


OWN_SETTINGS: Mapping[str, Kind] = _settings_of(NodeConfig)
"""All settings of a node, except those of stand-ins."""
SETTING_OF: Mapping[Unit, str] = {"client": "epsilon", "record": "epsilon-record"}
"""The name of the setting with the budget of each privacy unit."""


def check_settings(config: Mapping[str, Any]) -> None:
    """Raise NodeConfigError for an unknown setting of a node, or for a wrong value.

    Raises NodeConfigError: for an unknown setting, it names the nearest known one; or two files are one.
    """
    known = OWN_SETTINGS
    if config.keys() - known.keys():
        from gdpfed.federation.node.stand_ins import all_settings

        known = all_settings()
    for key, value in config.items():
        kind = known.get(key)
        if kind is None:
            near = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise NodeConfigError(f"{key} is not a setting of a node; the nearest one is {near}")
        if not kind.fits(value):
            raise NodeConfigError(f"{key} is {value!r}: give {kind.wanted}")
    if "ledger" in config or "session-file" in config:
        from gdpfed.federation.node.ledger_file import check_places

        check_places(config)
