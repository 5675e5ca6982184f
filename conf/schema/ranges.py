"""Allowed ranges of settings, stated in the types of fields; one function checks them all.

threshold: Annotated[float, within("[0.5, 1)")] = 2 / 3
workers: Annotated[int, at_least(1)] | None = None
device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from math import inf
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from conf.errors import ConfigError, either
from conf.limits import MOST_BATCH, MOST_STEPS

_INTERVAL = re.compile(r"([\[(])(.+), (.+)([\])])")


@dataclass(frozen=True)
class Interval:
    """A setting's allowed range: numbers between two bounds.

    Attributes:
        least, most: the bounds.
        without_least, without_most: whether that bound itself is left out.
        words: what a value must be, as a message says it.
    """

    least: float
    most: float
    words: str
    without_least: bool = False
    without_most: bool = False

    def broken_by(self, value: Any) -> str | None:
        """Return a message with the allowed range if a value is outside; return None if it is inside."""
        above = self.least < value if self.without_least else self.least <= value
        below = value < self.most if self.without_most else value <= self.most
        return None if above and below else f"must be {self.words}"


@dataclass(frozen=True)
class OneOf:
    """A setting's allowed values: one of several words."""

    choices: tuple[str, ...]

    def broken_by(self, value: Any) -> str | None:
        """Return a message with the choices if a value is not one of them; otherwise return None."""
        return None if value in self.choices else f"is not known: use {either(self.choices)}"


def between(least: float, most: float, more: str = "") -> Interval:
    """Return a setting's allowed range, from `least` to `most`; `more` is the end of the error message."""
    return Interval(least, most, f"from {_figure(least)} to {_figure(most)}{more}")


def at_least(least: float, more: str = "") -> Interval:
    """Return a setting's allowed range, `least` or more; `more` is the end of the error message."""
    return Interval(least, inf, f"at least {_figure(least)}{more}")


def within(interval: str, more: str = "") -> Interval:
    """Return a range from its notation: "[0.5, 1)" contains 0.5 but not 1; `more` ends the error message."""
    found = _INTERVAL.fullmatch(interval)
    if found is None:
        raise ValueError(f"{interval!r} is not an interval such as [0, 1)")
    opens, least, most, closes = found.groups()
    words = f"in {interval}{more}"
    return Interval(float(least), float(most), words, without_least=opens == "(", without_most=closes == ")")


def positive(words: str, *, or_zero: bool = False) -> Interval:
    """Return the range of numbers above 0 (from 0 on if `or_zero`); error messages describe it by `words`."""
    return Interval(0, inf, words, without_least=not or_zero, without_most=True)


def one_of(*choices: str) -> OneOf:
    """Return a setting's allowed values: these words."""
    return OneOf(choices)


def require_ranges(group: str, settings: object) -> None:
    """Raise ConfigError if a setting is outside the range stated in its field's type; None is allowed."""
    kind: type = type(settings)
    for key, ranges in _ranges_of(kind):
        value = getattr(settings, key)
        for each in ranges:
            if value is not None and (said := each.broken_by(value)):
                raise ConfigError(f"{group}.{key}={value} {said}")


def plain(annotation: Any) -> Any:
    """Return the type of a setting's field without its range."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


@lru_cache(maxsize=128)
def _ranges_of(cls: type) -> tuple[tuple[str, tuple[Interval | OneOf, ...]], ...]:
    """Return each field of a settings class that has allowed ranges, together with these ranges."""
    hints = get_type_hints(cls, include_extras=True)
    found = ((field.name, tuple(_stated(hints[field.name]))) for field in fields(cls))
    return tuple((key, ranges) for key, ranges in found if ranges)


def _stated(annotation: Any) -> Iterator[Interval | OneOf]:
    """Yield the allowed ranges in a type annotation, also inside of a union with None."""
    if get_origin(annotation) is Annotated:
        yield from (each for each in annotation.__metadata__ if isinstance(each, Interval | OneOf))
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _stated(each)


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


# Outside of these a run would not finish, or float32 would hold no model for long. Several groups have them.
NumClients = Annotated[int, between(1, 100_000_000)]
NumRounds = Annotated[int, between(1, 100_000)]
LocalSteps = Annotated[int, between(1, MOST_STEPS)]
BatchSize = Annotated[int, between(1, MOST_BATCH)]
LearningRate = Annotated[float, between(1e-9, 1e6)]
LearningRateDecay = Annotated[float, within("(0, 1]")]
Momentum = Annotated[float, within("[0, 1)")]
ClippingNorm = Annotated[float, between(1e-9, 1e9)]
Characters = Annotated[int, between(1, 100_000_000)]
# As torch takes it.
Seed = Annotated[int, between(0, 2**63 - 1)]
