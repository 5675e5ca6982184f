"""The base classes of errors that are written for users, and the error for wrong configurations.

A value that must be one of a few is refused by the sentence of :func:`not_known`.

They are here because `conf` stands below `gdpfed`, which has the other errors: :mod:`gdpfed.errors`.
"""

from collections.abc import Iterable


class GDPFedError(Exception):
    """Base class of every gdpfed error whose text is written for users."""


class InputError(GDPFedError, ValueError):
    """Raised for input that cannot be used, before any file is written or any privacy budget is used."""


class ConfigError(InputError):
    """Raised for a configuration that cannot be used."""


def not_known(value: str, known: Iterable[str]) -> str:
    """Return the error message for a value that is not one of several: "X is not known: use A, B or C"."""
    words = tuple(known)
    return f"{value} is not known: " + (f"use {either(words)}" if words else "none is installed")


def either(words: Iterable[str]) -> str:
    """Write alternatives in words: "A, B or C"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
