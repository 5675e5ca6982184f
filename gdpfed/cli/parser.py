"""Command lines: an argument that cannot be read gives one line, with the word that was perhaps meant."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from gdpfed.errors import InputError

INVALID = re.compile(r"invalid (\w+) value: (.*)")
"""What argparse says of a value that a function cannot read, which it calls by the function's name."""


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are input errors, as for settings, and that suggests the nearest word."""

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the reason why a command line is refused, and say where the help is."""
        said = INVALID.sub(lambda found: f"{found[2]} is not a {found[1].replace('_', ' ')}", message)
        raise InputError(f"{self.prog}: {said}; '{self.prog} --help' shows how it is called")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse an unknown option where its command is known; other words are passed on.

        Raises InputError: names the option and the nearest one.
        """
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
    """The known word that is most similar to an unknown one; None if none is similar."""
    near = difflib.get_close_matches(word, known, n=1)
    return near[0] if near else None
