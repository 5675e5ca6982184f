"""Permissions that a node's operator gives to runs: for changed settings, models, files, weights, and counts.

One line of words says which overrides are allowed; the consortium may have such a line as well.
``run.num_rounds`` allows a setting with any value, ``method=gdpfed`` only this value, ``run.*`` all settings
below ``run``, and ``*`` everything. Only ``*`` allows entries of the run's configuration besides overrides.
"""

import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from logging import ERROR
from typing import TYPE_CHECKING, Any

from gdpfed.clients.messages import one_line
from gdpfed.errors import InputError, LearningError
from gdpfed.federation import log
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.learning.weights_file import WeightsFile, keep_own

OF_EACH_PARTY = "_by_party"
"""The end of the names of models that show separate figures for each client."""

if TYPE_CHECKING:
    from gdpfed.federation.node.node_settings import NodeSettings
    from gdpfed.learning.data.source import DataSource

OVERRIDES = "overrides"
EVERYTHING = "*"


def refused_override(run_config: Mapping[str, Any], allowed: str) -> str | None:
    """Return the first setting that a run overrides without this node's permission; None if all are allowed.

    `run_config`: Flower's run configuration, with the overrides in one string. `allowed`: a line of words.
    """
    words = allowed.split()
    if EVERYTHING in words:
        return None
    unknown = next((key for key in run_config if key != OVERRIDES), None)
    if unknown is not None:
        return unknown
    try:
        said = shlex.split(str(run_config.get(OVERRIDES, "")))
    except ValueError:
        return str(run_config[OVERRIDES])
    for word in said:
        key = word.partition("=")[0]
        if not any(
            key.startswith(each[:-1]) if each.endswith(".*") else each == (word if "=" in each else key)
            for each in words
        ):
            return word
    return None


def check_overrides(config: Mapping[str, Any], run_config: Mapping[str, Any]) -> None:
    """Raise NodeConfigError if a run changes a setting that the node's operator does not allow.

    Without the setting allowed-overrides, all are allowed.
    """
    refuse_overrides(
        run_config, config.get("allowed-overrides", EVERYTHING), "allowed-overrides", NodeConfigError
    )


def refuse_overrides(
    run_config: Mapping[str, Any], allowed: str, whose: str, error: type[InputError]
) -> None:
    """Raise ``error`` if a run overrides a setting that is not in ``allowed``; ``whose`` names that list."""
    word = refused_override(run_config, allowed)
    if word is not None:
        raise error(
            f"this run overrides {word!r}, and {whose} allows only {allowed!r}: leave it out, or have it "
            "allowed there"
        )


def check_refused(settings: "NodeSettings", model: str) -> None:
    """Raise NodeConfigError if the node's operator forbids the run's model, for example one for statistics.

    Forbidden names may contain * for any letters. A model whose name ends in _by_party shows separate figures
    for each client, which the operator must allow.
    """
    if model.endswith(OF_EACH_PARTY):
        check_by_party(settings)
    for refused in (settings.given.refused_models or "").split(","):
        if fnmatchcase(model, refused.strip()):
            raise NodeConfigError(
                f"the run's model is {one_line(model)}, and this node was started with refused-models="
                f"'{settings.given.refused_models}': choose another model, or ask the node's operator"
            )


def check_by_party(settings: "NodeSettings") -> None:
    """Raise NodeConfigError if a run would show this node's own noised counts without permission.

    Raises NodeConfigError: the node was not started with counts-by-party=true, and is not simulated.
    """
    if not settings.simulated and not settings.given.counts_by_party:
        raise NodeConfigError(
            "this run shows noised counts of every single client, and this node was not started with "
            "counts-by-party=true: set run.evaluation_by_party and method.by_party to false, or ask the "
            "node's operator"
        )


def check_weights(settings: "NodeSettings", wanted: str, named: str | None = None) -> None:
    """Raise NodeConfigError unless the node's file of model weights has the SHA-256 that the run names.

    `wanted`: that SHA-256. `named`: the path that the run names; only simulated nodes without a file read it.

    Raises:
        NodeConfigError: the node has no file or another one; only the node's log names that file.
        LearningError: on a simulated node, as in `WeightsFile.tensors`.
    """
    own = settings.given.weights
    if own is None and settings.simulated:
        if named is not None:
            WeightsFile(named, wanted).tensors()
        return
    if own is None:
        raise NodeConfigError(
            f"this run is built on a file of weights with SHA-256 {one_line(wanted)}, and this node was "
            f"started without weights: it reads no file that another names; start it with "
            f"weights=..."
        )
    try:
        keep_own(own, wanted)
    except LearningError as error:
        log(ERROR, "%s", error)
        raise NodeConfigError(
            f"weights is not the safetensors file that this run is built on, whose SHA-256 is "
            f"{one_line(wanted)}: take that one, and see the log of this client"
        ) from None


def check_named_file(settings: "NodeSettings", source: "DataSource", owners: str | None = None) -> None:
    """Raise NodeConfigError if the server names a file to open and this node has no data of its own.

    `owners`: the file that says whose each example is, if the run names one.

    Raises NodeConfigError: a file is named, and the node is not simulated, without data and stand-in.
    """
    named = source.named_file or owners
    if named is not None and trains_on_a_part(settings):
        raise NodeConfigError(
            f"the server names the file {one_line(named)}, and this node was started without data: it "
            f"reads no file that another names; start it with data=..."
        )


def trains_on_a_part(settings: "NodeSettings") -> bool:
    """Whether this node has no own data, so that it trains on a part of a data set that the server names."""
    return settings.data is None and settings.stand_in is None and not settings.simulated
