"""Reads YAML files that people write; each error is one line that names the fault."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from gdpfed.decimal_numbers import decimal_number
from gdpfed.errors import LearningError, not_known
from gdpfed.learning.data.pipes import refuse_pipe
from gdpfed.yaml_files import read_yaml


def read_parts(path: Path, purpose: str) -> "Part":
    """Read a YAML file; every value in it stays a text.

    `purpose`: what it must do, for an error.

    Raises LearningError: no such file, a pipe, or not YAML in UTF-8.
    """
    try:
        refuse_pipe(path, str(path), f"write a file, which must {purpose}")
        values = read_yaml(path.read_text(encoding="utf-8"), as_texts=True)
    except OSError as error:
        raise LearningError(f"{path} cannot be read ({error.strerror}): it must {purpose}") from None
    except UnicodeDecodeError as error:
        raise LearningError(f"{path} is not in UTF-8 ({error}): save it in UTF-8") from None
    except LearningError:
        raise
    except ValueError as error:
        raise LearningError(f"{path}: {error}") from None
    return Part(str(path), values, "")


@dataclass(frozen=True)
class Part:
    """A part of a YAML file, which knows its place in the file for errors."""

    place: str
    values: Any
    key: str

    def wrong(self, wanted: str) -> LearningError:
        """Return a LearningError with this part's place and value, and with a description of valid values."""
        if self.values is None and not self.key:
            return LearningError(f"{self.place}: the file is empty; it must be {wanted}")
        shown = f"'{self.values}'" if isinstance(self.values, str) else repr(self.values)
        return LearningError(f"{self.place}: {self.key or 'the file'} is {shown[:80]}; it must be {wanted}")

    def mapping(
        self, *, required: Sequence[str], allowed: Sequence[str], usual: str = ""
    ) -> dict[str, "Part"]:
        """Check that this part is a mapping with these keys, and return the part of each key.

        `usual`: what is written in place of a mapping, for an error; "" where nothing is.
        """
        known = (*required, *allowed)
        if not isinstance(self.values, Mapping):
            keys = f"keys with values: {', '.join(known)}"
            raise self.wrong(f"{usual}, or {keys}" if usual else keys)
        for key in self.values:
            if key not in known:
                raise LearningError(not_known(f"{self.place}: key '{joined_key(self.key, key)}'", known))
        for key in required:
            if key not in self.values:
                raise LearningError(f"{self.place} lacks the key '{joined_key(self.key, key)}'")
        return {key: Part(self.place, value, joined_key(self.key, key)) for key, value in self.values.items()}

    def items(self, named: str = "columns") -> Iterator[tuple[str, "Part"]]:
        """Yield the entries of a mapping whose keys are chosen freely, such as names of columns.

        `named`: what the keys name, for an error.
        """
        if not isinstance(self.values, Mapping) or not self.values:
            raise self.wrong(f"{named} by name")
        for key, value in self.values.items():
            check_printable(str(key), f"{self.place}: a key of {self.key or 'the file'}")
            yield str(key), Part(self.place, value, joined_key(self.key, str(key)))

    def list(self) -> list["Part"]:
        """Return the entries of this part, which must be a list."""
        if not isinstance(self.values, list) or not self.values:
            raise self.wrong("a list, as in [a, b]")
        return [Part(self.place, value, self.key) for value in self.values]

    def text(self, *, empty: bool = False) -> str:
        """Read a printable text."""
        if not isinstance(self.values, str) or not (self.values.strip() or empty):
            raise self.wrong("a text")
        said = self.values.strip()
        check_printable(said, f"{self.place}: {self.key}")
        return said

    def date_form(self) -> str:
        """Read a date format for `strptime`; it must contain day, month and year."""
        said, day = self.text(), date(2024, 12, 31)
        try:
            if datetime.strptime(day.strftime(said), said).date() == day:
                return said
        except ValueError:
            pass
        raise self.wrong("the form of a date with its day, month and year, as in '%d/%m/%Y'")

    def number(self) -> float:
        """Read a decimal number."""
        try:
            return decimal_number(self.text())
        except ValueError:
            raise self.wrong("a number, as in 1.5") from None

    def range(self) -> tuple[float, float]:
        """Read a range: a list of two numbers, the lower first."""
        bounds = [each.number() for each in self.list()]
        if len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise self.wrong("two numbers, the lower first, as in [0, 100]")
        return bounds[0], bounds[1]

    def values_once(self) -> tuple[str, ...]:
        """Read a list of texts; raise LearningError if a text occurs twice."""
        texts = tuple(each.text() for each in self.list())
        if len(set(texts)) < len(texts):
            raise self.wrong("a list in which no value occurs twice")
        return texts


def check_printable(name: str, place: str) -> None:
    """Raise LearningError if a name has line breaks or other characters that cannot be printed.

    `place`: what the error calls it.

    Raises LearningError: it has a line break or another character that cannot be printed.
    """
    if not name.isprintable():
        raise LearningError(
            f"{place} is {ascii(name)[:80]}, with a line break or another character that cannot be printed: "
            "give it a name without, in the data and where it is declared"
        )


def joined_key(key: str, part: str) -> str:
    return f"{key}.{part}" if key else part
