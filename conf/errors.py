"""The base of all errors of this project that are meant for users, and the error for configurations.

A value that must be one of a few is refused by the sentence of :func:`not_known`.

They are here because `conf` stands below `gdpfed`, which has the other errors: :mod:`gdpfed.errors`.
"""

from collections.abc import Iterable


class GDPFedError(Exception):
    """Base class of every error of this project that is written for users to read."""


class InputError(GDPFedError, ValueError):
    """Input that cannot be used; nothing has been written or charged for it."""


class ConfigError(InputError):
    """A configuration that cannot be used."""


def not_known(value: str, known: Iterable[str]) -> str:
    """The error message for a value that must be one of a few: "X is not known: use A, B or C"."""
    words = tuple(known)
    return f"{value} is not known: " + (f"use {either(words)}" if words else "none is installed")


def either(words: Iterable[str]) -> str:
    """Write alternatives in words: "A, B or C"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
