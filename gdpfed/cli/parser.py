"""Parses command lines; an unknown word gives one line that suggests the most similar known word."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from gdpfed.errors import InputError

INVALID = re.compile(r"invalid (\w+) value: (.*)")
"""What argparse says of a value that a function cannot read, which it calls by the function's name."""


class Parser(argparse.ArgumentParser):
    """A parser of command lines that raises input errors and suggests the most similar word."""

    def error(self, message: str) -> NoReturn:
        """Raise InputError that says what is wrong with the command line and how to see its help."""
        said = INVALID.sub(lambda found: f"{found[2]} is not a {found[1].replace('_', ' ')}", message)
        raise InputError(f"{self.prog}: {said}; '{self.prog} --help' shows how it is called")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse options; raise InputError for an unknown one; return the other words, for later parsing."""
        found, further = super().parse_known_args(args, namespace)
        for word in further:
            if word.startswith("-") and len(word) > 1:
                raise InputError(f"{self.prog} has no option {word.partition('=')[0]}{self._meant(word)}")
        return found, further

    def _meant(self, word: str) -> str:
        name, equals, value = word.partition("=")
        near = nearest_word(name, list(self._option_string_actions))
        if near:
            return f"; did you mean {near}?"
        if equals and "." in name:
            return f": a setting has no dashes, write {name.lstrip('-')}={value}"
        return f"; '{self.prog} --help' lists those that there are"


def nearest_word(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that is most similar to an unknown one; None if none is similar."""
    near = difflib.get_close_matches(word, known, n=1)
    return near[0] if near else None
