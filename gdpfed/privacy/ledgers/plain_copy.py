"""Copies of what a method asks for, made of exact plain types.

A subclass can say one thing when it is checked and another when it is carried out. So can an array that
somebody else holds. What is checked, charged and summed is therefore a copy that the method has never seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from gdpfed.errors import PrivacyError

T = TypeVar("T")
NUMBERS = "iuf"
"""Kinds of arrays that are copied: whole numbers and floating point."""


class PlainCopies:
    """Copies values, and each that occurs several times once.

    Args:
        kinds: the dataclasses that may occur; a subclass of one is refused.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._copies: dict[int, tuple[object, Any]] = {}

    def of(self, value: T, name: str) -> T:
        """Return a copy of a value in which every type is exact and every array read-only.

        Numbers, strings and arrays keep what is stored in them, whatever methods a subclass has put over it.

        Raises:
            PrivacyError: a value of another type; ``name`` says where it is.
        """
        if id(value) not in self._copies:
            # The value is kept beside its copy, so that no other can have its id meanwhile.
            self._copies[id(value)] = value, self._copied(value, name)
        copied: T = self._copies[id(value)][1]
        return copied

    def _copied(self, value: Any, name: str) -> object:
        if value is None or type(value) is bool or (isinstance(value, Enum) and not isinstance(value, str)):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__index__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
            array = np.array(value, subok=False)
            array.flags.writeable = False
            return array
        if type(value) in self._kinds:
            stored = {each.name: getattr(value, each.name) for each in fields(value)}
            return type(value)(**{key: self.of(each, f"{name}.{key}") for key, each in stored.items()})
        if isinstance(value, Sequence):
            return tuple(self.of(each, f"{name}[{i}]") for i, each in enumerate(value))
        expected = ", ".join(kind.__name__ for kind in self._kinds)
        raise PrivacyError(
            f"{name} is a {type(value).__name__}: give a number, a string, an array of numbers, or one of "
            f"{expected}, no subclass of it"
        )


def plain_requests(requests: Iterable[T], kinds: Sequence[type], asked: str) -> tuple[T, ...]:
    """Return copies of requests, so that what is checked is what is charged and summed.

    Args:
        requests: of exactly the first of ``kinds``.
        kinds: the dataclasses that may occur in them.
        asked: by whom and in which round, for errors.

    Raises:
        PrivacyError: a request of another class, or a value that is not plain.
    """
    copies, read = PlainCopies(*kinds), list[T]()
    for each in requests:
        if type(each) is not kinds[0]:
            raise PrivacyError(
                f"{asked}: a {type(each).__name__} is no request for a sum; make a {kinds[0].__name__}, no "
                "subclass of it"
            )
        read.append(copies.of(each, f"{asked}, request {len(read)}"))
    return tuple(read)
