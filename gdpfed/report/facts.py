"""Prints names and values on the terminal, one pair a line, with all values aligned."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP = 2
"""Blanks between a name and its value."""
LEAST_VALUE = 20
"""Columns that a value has at least, however narrow the output is."""
_FIXED = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Fact:
    """A name with its value, shown on one line; with `detail` it is shown only in detailed outputs."""

    name: str
    value: str
    detail: bool = False


class FactLines:
    """Lines of names and values with aligned values; a long value goes on in the lines below."""

    def __init__(self, facts: Iterable[Fact], *, details: bool = False) -> None:
        self.facts: Sequence[Fact] = [fact for fact in facts if details or not fact.detail]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from (Text(line) for line in self.lines(options.max_width))

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of all names and values, for an output with `width` columns."""
        indent = max((len(fact.name) for fact in self.facts), default=0) + GAP
        for fact in self.facts:
            parts = _wrapped(fact.value, width - indent) or [""]
            for number, part in enumerate(parts):
                yield f"{fact.name if number == 0 else '':{indent}}{part}"


class Notes:
    """Sentences as a bullet list, wrapped to the width of the output."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = list(sentences)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sentence in self.sentences:
            first, *more = _wrapped(sentence, options.max_width - GAP)
            yield Text("\n".join([f"* {first}", *(f"  {part}" for part in more)]))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text, keeping each number together with its percent sign."""
    lines = wrap(text.replace(" %", f"{_FIXED}%"), max(width, LEAST_VALUE), break_on_hyphens=False)
    return [line.replace(_FIXED, " ") for line in lines]
