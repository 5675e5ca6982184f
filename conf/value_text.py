"""Find errors in the text of a setting's value: repeated keys, non-ASCII digits, unclosed brackets."""

import re
from collections.abc import Iterator

CLOSES = {"{": "}", "[": "]", "(": ")"}
QUOTES = ("'", '"')
_PARTS = re.compile(
    r"""(?P<quoted>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
    r"""|(?P<quote>['"])(?P<rest>.*)|(?P<sign>[][(){},:])|(?P<text>\\.?|[^][(){},:'"\\]+)""",
    re.DOTALL,
)
_BETWEEN = re.compile(r"[][(){}:,='\"\s]+")


def _parts(value: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a value in order: (sign, "") for each bracket or quote, ("", text) for other text.

    A quote that nothing closes is a sign, and what follows it is one text.
    """
    for part in _PARTS.finditer(value):
        if part["sign"]:
            yield part["sign"], ""
        elif part["quote"]:
            yield part["quote"], ""
            yield "", part["rest"]
        else:
            yield "", part["quoted"][1:-1] if part["quoted"] else part["text"]


def key_twice(value: str) -> str | None:
    """Return the first key that occurs twice in a mapping of Hydra's grammar; None if there is none."""
    opened: list[tuple[str, set[str]]] = []
    word, in_key = "", True
    for sign, text in _parts(value):
        if sign in CLOSES:
            opened.append((sign, set()))
            word, in_key = "", sign == "{"
        elif opened and sign == CLOSES[opened[-1][0]]:
            opened.pop()
            word, in_key = "", False
        elif opened and sign == ",":
            word, in_key = "", opened[-1][0] == "{"
        elif in_key and opened and sign == ":":
            key, keys = word.strip(), opened[-1][1]
            if key in keys:
                return key
            keys.add(key)
            in_key = False
        else:
            word += sign + text
    return None


def other_number(value: str) -> str | None:
    """Return the first word with "_" or a non-ASCII digit that Python reads as a number; else return None."""
    for word in _BETWEEN.split(value):
        if "_" in word or not word.isascii():
            try:
                float(word)
            except ValueError:
                continue
            return word
    return None


def unpaired_sign(value: str) -> str | None:
    """Say which quote or bracket of a value has no counterpart; None if all are in pairs."""
    opened = list[str]()
    for sign, _ in _parts(value):
        if sign in CLOSES or sign in QUOTES:
            opened.append(sign)
        elif sign in CLOSES.values() and (not opened or CLOSES[opened.pop()] != sign):
            return f"closes a '{sign}' that nothing opens"
    return f"opens a {opened[-1]} and does not close it" if opened else None
