"""Hashes of data, by which a resumed run checks that its data have not changed.

A fingerprint says whether two data sets are equal, and so a little about each of them: it stays where the
data are, and is in nothing that is sent or published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np


class Hash(Protocol):
    """A hash object that takes bytes piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None: ...


def fingerprint(*parts: object) -> str:
    """Return the SHA-256, in hexadecimal, of the types, shapes and contents of all arguments, in order.

    `parts`: arrays, dataclasses, sequences and mappings of such, and plain values. Numbers count as they are
    held in memory, whatever file they were read from.

    Raises TypeError: a part is none of these.
    """
    digest = sha256()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: Hash, part: object) -> None:
    if isinstance(part, np.ndarray) and part.dtype.kind != "O":
        digest.update(f"array {part.dtype.str} {part.shape} ".encode())
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    elif isinstance(part, np.ndarray):
        _add(digest, part.tolist())
    elif is_dataclass(part) and not isinstance(part, type):
        digest.update(f"{type(part).__name__} ".encode())
        _add(digest, [getattr(part, field.name) for field in fields(part)])
    elif isinstance(part, Mapping):
        _add(digest, sorted(part.items()))
    elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
        digest.update(f"sequence {len(part)} ".encode())
        for each in part:
            _add(digest, each)
    elif part is None or isinstance(part, str | bytes | bool | int | float | np.generic):
        told = repr(part.item() if isinstance(part, np.generic) else part)
        digest.update(f"{type(part).__name__} {len(told)} {told} ".encode())
    else:
        raise TypeError(f"{type(part).__name__} has no canonical form")
