"""Read JSON files strictly: raise ValueError for repeated keys and for numbers that are not finite.

Python's reader takes the last of two equal keys, and takes NaN and Infinity, which are no JSON.
"""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, NoReturn

WRONG_FORM = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError)
"""Errors that Python may raise if JSON data do not have the form that their reader expects."""


def read_json(text: str | bytes) -> Any:
    """Return the data of a JSON text.

    Raises ValueError: no JSON, a key that is said twice, or a number that is not finite; one line.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is there twice")
    return values


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")
