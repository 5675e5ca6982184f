"""Read and write decimal numbers; refuse what Python also accepts, such as 4_5, infinity or Arabic digits."""

import re
from math import isfinite

NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
"""The pattern of a text that is a decimal number."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 round", "30 rounds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def has_other_digits(text: str) -> bool:
    """Whether a text has decimal digits other than ASCII 0 to 9, such as Arabic ones, which int() accepts."""
    return any(each.isdecimal() and not each.isascii() for each in text)


def decimal_number(text: str) -> float:
    """Read a finite number from a text without spaces around it.

    Raises ValueError: it is none.
    """
    number = float(text) if re.fullmatch(NUMBER, text) else float("nan")
    if not isfinite(number):
        raise ValueError(f"{text!r} is not a number")
    return number


def whole_number(text: str) -> int:
    """Read a whole number from a text without spaces around it.

    Raises ValueError: it is none.
    """
    if not re.fullmatch(r"[-+]?[0-9]+", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
