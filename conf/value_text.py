"""The text of a value in an override: keys that a mapping has twice, other digits, brackets left open."""

import re

CLOSES = {"{": "}", "[": "]", "(": ")"}
_BETWEEN = re.compile(r"[][(){}:,='\"\s]+")


def key_twice(value: str) -> str | None:
    """The first key that a mapping in a value of Hydra's grammar has twice; None where there is none."""
    opened: list[tuple[str, set[str]]] = []
    word, in_key, at = "", True, 0
    while at < len(value):
        letter = value[at]
        if letter in "'\"":
            end = _quoted(value, at)
            word, at = word + value[at + 1 : end], end + 1
            continue
        if letter in CLOSES:
            opened.append((letter, set()))
            word, in_key = "", letter == "{"
        elif opened and letter == CLOSES[opened[-1][0]]:
            opened.pop()
            word, in_key = "", False
        elif opened and letter == ",":
            word, in_key = "", opened[-1][0] == "{"
        elif in_key and opened and letter == ":":
            key, keys = word.strip(), opened[-1][1]
            if key in keys:
                return key
            keys.add(key)
            in_key = False
        else:
            word += letter
        at += 1
    return None


def other_number(value: str) -> str | None:
    """The first word of a value that Python alone reads as a number: with a mark inside, as in 1_0, or in
    digits of another script; None where there is none."""
    for word in _BETWEEN.split(value):
        if "_" in word or not word.isascii():
            try:
                float(word)
            except ValueError:
                continue
            return word
    return None


def _quoted(value: str, at: int) -> int:
    """Where the quote that begins there ends; the last letter where nothing ends it."""
    end = at + 1
    while end < len(value) and value[end] != value[at]:
        end += 2 if value[end] == "\\" else 1
    return min(end, len(value) - 1)


def unpaired_sign(value: str) -> str | None:
    """What a value does that leaves a quote or bracket open or closes none; None: all are in pairs."""
    quote, opened = "", list[str]()
    signs = iter(value)
    for sign in signs:
        if sign == "\\":
            next(signs, None)
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in CLOSES:
            opened.append(sign)
        elif sign in CLOSES.values() and (not opened or CLOSES[opened.pop()] != sign):
            return f"closes a '{sign}' that nothing opens"
    return f"opens a {quote or opened[-1]} and does not close it" if quote or opened else None
