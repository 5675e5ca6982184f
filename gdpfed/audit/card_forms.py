"""Read patterns of model card lines from text files, and compare a model card with them."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gdpfed.errors import AuditError

Expected = str | Callable[[str], bool]
"""What a field must contain: a text, or a function that says whether a text is allowed."""
Fields = Mapping[str, Expected]
LONGEST = 200
FIELD = re.compile(r"\{(\w+)\}")
ESCAPED = re.compile(r"\\([\\`*\[\]<>#|&\-+=~_.)])")
CELL = r"(?:\\.|[^|\\])*?"
# Of cells that are several at once.
SEVERAL = frozenset(
    {"rules", "counted_rules", "counted_names", "counted_values", "part_metrics", "part_values"}
)


@dataclass(frozen=True)
class Form:
    """The pattern of one line that a model card may have.

    Attributes:
        name: of the line; forms of one name stand for each other, under different conditions.
        text: with the names of fields in braces.
        conditions: of which all must hold.
        optional: whether it may be missing.
        repeated: whether it is a row, of which there are as many as the files have.
    """

    name: str
    text: str
    conditions: frozenset[str]
    optional: bool = False
    repeated: bool = False

    def fields_in(self, line: str) -> dict[str, str] | None:
        """Read the values of this pattern's fields from a model card's line; None if it does not match.

        A card escapes what others wrote by backslashes, which the values lack.
        """
        found = self._pattern.fullmatch(line)
        if found is None:
            return None
        return {field: ESCAPED.sub(r"\1", text) for field, text in found.groupdict().items()}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts, seen = [], set[str]()
        for number, part in enumerate(FIELD.split(self.text)):
            if number % 2 == 0:
                parts.append(re.escape(part))
            elif part in seen:
                parts.append(f"(?P={part})")
            else:
                seen.add(part)
                cell = self.text.startswith("|") and part not in SEVERAL
                parts.append(f"(?P<{part}>{CELL if cell else '.*?'})")
        return re.compile("".join(parts))


def read_forms(path: Path) -> list[Form]:
    """Read the line patterns of model cards from a file: ``name: line`` under ``[conditions]``.

    Raises AuditError: a line that is none of these.
    """
    forms, conditions = [], frozenset[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        if line.startswith("["):
            conditions = frozenset(line.strip("[]").split())
            continue
        head, separator, text = line.partition(": ")
        if not separator:
            raise AuditError(f"{path} has a line without a name: {line}: restore it from a copy")
        mark = head[-1] if head[-1] in "?*" else ""
        forms.append(Form(head.rstrip("?*"), text.strip(), conditions, mark == "?", mark == "*"))
    return forms


def compare(
    card: str, forms: Sequence[Form], holds: Collection[str], fields: Fields, rows: Mapping[str, list[Fields]]
) -> Iterator[str]:
    """Compare a model card with the patterns that apply to the run; yield a line for each difference.

    Args:
        card: the text.
        forms: all that a card may have.
        holds: the conditions that hold.
        fields: what is expected of fields, by name.
        rows: what is expected of repeated lines, by the name of the form: the fields of each, in order.

    Raises AuditError: a form with a field that nothing is expected of.
    """
    applying = [form for form in forms if form.conditions <= set(holds)]
    seen, tried = dict[str, int](), set[str]()
    for line in filter(None, map(str.strip, card.splitlines())):
        wrong = None
        for form in applying:
            found = form.fields_in(line)
            if found is None:
                continue
            tried.add(form.name)
            if not form.repeated and seen.get(form.name):
                wrong = wrong or f"model_card.md has a line more than follows: {_short(line)}"
                continue
            # A row beyond those that the files have is expected nowhere.
            expected: Fields | None = fields
            if form.repeated:
                own, number = rows.get(form.name, ()), seen.get(form.name, 0)
                expected = {**fields, **own[number]} if number < len(own) else None
            difference = _difference(found, expected, line)
            wrong = wrong or difference
            if difference is None:
                seen[form.name] = seen.get(form.name, 0) + 1
                break
        else:
            yield wrong or f"model_card.md has a line that this audit does not know: {_short(line)}"
    for form in applying:
        times, count = len(rows.get(form.name, ())) if form.repeated else 1, seen.get(form.name, 0)
        if count > times or (count < times and not form.optional and form.name not in tried - set(seen)):
            yield f"model_card.md has {count} of {times} lines of this kind: {_short(form.text)}"


def _difference(found: Mapping[str, str], expected: Fields | None, line: str) -> str | None:
    """Describe how a line of a model card differs from the expected values; return None if they agree."""
    if expected is None:
        return f"model_card.md has a line more than follows: {_short(line)}"
    for name, text in found.items():
        if name not in expected:
            raise AuditError(
                f"the model card has a field for which this audit has no expected value: {name}; use the "
                "gdpfed that wrote the card"
            )
        wanted = expected[name]
        if callable(wanted):
            if not wanted(text):
                return f"model_card.md says {name} {_short(text)}, which does not follow: {_short(line)}"
        elif text != wanted:
            return f"model_card.md says {name} {_short(text)}, where {_short(wanted)} follows: {_short(line)}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def anything(text: str) -> bool:
    """Accept any text in a field of the model card, for values that no file of the run contains."""
    return True


def near(value: float, within: float, unit: str = "") -> Callable[[str], bool]:
    """Return a function that checks whether a field's number equals `value` up to `within` and rounding."""

    def agrees(text: str) -> bool:
        number = text.removesuffix(unit)
        try:
            places = len(number.partition(".")[2])
            return abs(float(number) - value) <= within + 0.5001 * 10.0**-places
        except ValueError:
            return False

    return agrees
