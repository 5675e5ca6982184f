"""Checks of input numbers: each function returns the value, or raises PrivacyError with a short message."""

import math
from collections.abc import Collection
from numbers import Integral, Real

from gdpfed.errors import PrivacyError, not_known

SMALLEST_RATE, SMALLEST_DELTA = 1e-9, 1e-100


def require_number(name: str, value: object) -> float:
    """Return `value` as a float; raise PrivacyError if it is not a real number or is NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PrivacyError(f"{name} is {value!r}; give a number")
    if math.isnan(value):
        raise PrivacyError(f"{name} is nan; give a number")
    return float(value)


def require_positive(name: str, value: object) -> float:
    """Return `value` as a float; raise PrivacyError if it is not positive and finite."""
    number = require_number(name, value)
    if not 0.0 < number < math.inf:
        raise PrivacyError(f"{name} is {value}; it must be positive and finite")
    return number


def require_rate(name: str, value: object) -> float:
    """Return `value` as a float; raise PrivacyError if it is not in (0, 1], or too small to account for."""
    number = require_number(name, value)
    if number > 1.0:
        raise PrivacyError(
            f"{name} is {value}; a rate above 1 would need more than all clients, choose one in (0, 1]"
        )
    if number < SMALLEST_RATE:
        raise PrivacyError(f"{name} is {value}; choose a rate in (0, 1], and at least {SMALLEST_RATE:g}")
    return number


def require_delta(value: object) -> float:
    """Return `value` as a float; raise PrivacyError if it is not in (0, 1), or too small to account for."""
    number = require_number("delta", value)
    if not SMALLEST_DELTA <= number < 1.0:
        raise PrivacyError(
            f"delta is {value}; it must lie in (0, 1) and be at least 1e-100, for instance 1e-5"
        )
    return number


def require_count(name: str, value: object, *, at_least: int = 1) -> int:
    """Return `value` as an int; raise PrivacyError if it is not whole, or is below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise PrivacyError(f"{name} is {value!r}; give a whole number")
    if value < at_least:
        raise PrivacyError(f"{name} is {value}; it must be at least {at_least}")
    return int(value)


def require_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise PrivacyError if `value` is not among `choices`."""
    if value not in choices:
        raise PrivacyError(not_known(f"{name}={value}", sorted(choices)))


def require_length(name: str, values: Collection[object], num_groups: int) -> None:
    """Raise PrivacyError unless a setting of groups has one entry for each group."""
    if len(values) != num_groups:
        raise PrivacyError(f"{name} has {len(values)} entries for {num_groups} groups; give one for each")
