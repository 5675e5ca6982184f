"""The base classes of errors that are written for users, and the error for wrong configurations.

A value that must be one of a few is refused by the sentence of :func:`not_known`.

They are here because `conf` stands below `gdpfed`, which has the other errors: :mod:`gdpfed.errors`.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches


class GDPFedError(Exception):
    """Base class of every gdpfed error whose text is written for users."""


class InputError(GDPFedError, ValueError):
    """Raised for input that cannot be used, before any file is written or any privacy budget is used."""


class ConfigError(InputError):
    """Raised for a configuration that cannot be used."""


def printable(text: str) -> str:
    """Return a text with a blank for each unprintable character, such as a terminal control code."""
    return "".join(each if each.isprintable() else " " for each in text)


def words_of(error: BaseException, at_most: int = 1000) -> str:
    """Return an error's text in one printable line, of so many characters at most.

    If it is empty, or if making it fails, as a package's error may, it is the name of the error's type.
    """
    try:
        line = " ".join(printable(str(error)).split())
    except BaseException:
        line = ""
    return (line or type(error).__name__)[:at_most]


def kind_and_words(error: BaseException, at_most: int = 1000) -> str:
    """Return an error's type and text in one line; its type alone where it has no text."""
    kind, words = type(error).__name__, words_of(error)
    return (kind if words == kind else f"{kind}: {words}")[:at_most]


def not_known(value: str, known: Iterable[str]) -> str:
    """Return the error message for a value that is not one of several: "X is not known: use A, B or C".

    If the last word of `value` is near to one of several: "X is not known; did you mean A? Use A, B or C".
    """
    words = tuple(known)
    if not words:
        return f"{value} is not known: none is installed"
    meant = _nearest(re.split(r"[=' ]", value.rstrip("'"))[-1], words)
    return f"{value} is not known{f'; did you mean {meant}? Use' if meant else ': use'} {either(words)}"


def _nearest(word: str, known: Sequence[str]) -> str:
    """Return which known word is nearest to a word; "" if none is near, or if two are equally near."""
    near = get_close_matches(word, known, n=2, cutoff=0.65) if len(known) > 1 else []
    how_near = [SequenceMatcher(None, each, word).ratio() for each in near]
    return near[0] if near and how_near.count(how_near[0]) == 1 else ""


def either(words: Iterable[str]) -> str:
    """Write alternatives in words: "A, B or C"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
