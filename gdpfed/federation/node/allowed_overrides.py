"""Which overrides a run may have, as a node's operator or the consortium says it in one line of words.

``run.num_rounds`` allows a setting with any value, ``method=gdpfed`` with this value alone, ``run.*`` all
settings below ``run``, and ``*`` everything. What no word allows is refused, also where it is no override.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from gdpfed.errors import InputError
from gdpfed.federation.node.node_config import ALLOWED_OVERRIDES_KEY, NodeConfigError

OVERRIDES = "overrides"
EVERYTHING = "*"


def refused_override(run_config: Mapping[str, Any], allowed: str) -> str | None:
    """The first word of a run's configuration that is not allowed; None if all are.

    `run_config`: as Flower hands it to a node, the overrides in one string. `allowed`: words between blanks.
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
    return next((word for word in said if not _is_allowed(word, words)), None)


def check_overrides(config: Mapping[str, Any], run_config: Mapping[str, Any]) -> None:
    """Refuse a run with an override that the node's operator does not allow; without a word all are.

    Raises NodeConfigError: it has one.
    """
    refuse_overrides(
        run_config, config.get(ALLOWED_OVERRIDES_KEY, EVERYTHING), ALLOWED_OVERRIDES_KEY, NodeConfigError
    )


def refuse_overrides(
    run_config: Mapping[str, Any], allowed: str, whose: str, error: type[InputError]
) -> None:
    """Raise ``error`` for a run with an override that is not allowed; ``whose`` says by what."""
    word = refused_override(run_config, allowed)
    if word is not None:
        raise error(
            f"this run overrides {word!r}, and {whose} allows {allowed!r} alone: leave it out, or ask for "
            "it to be allowed"
        )


def _is_allowed(word: str, allowed: Iterable[str]) -> bool:
    key = word.partition("=")[0]
    return any(
        key.startswith(each[:-1]) if each.endswith(".*") else each == (word if "=" in each else key)
        for each in allowed
    )
