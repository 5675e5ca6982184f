"""Reads numbers as people write them: decimal commas, thousands marks, truth values.

What a cell means follows from the cell alone, or the site says the decimal mark: no record changes how
another one is read. A cell that may be two numbers, as 30,500, is none.
"""

import re
from functools import lru_cache

from gdpfed.decimal_numbers import NUMBER, decimal_number
from gdpfed.learning.data.file_form import FILES_FILE

MARKED = r"^[-+]?[0-9]*,[0-9]+$"
"""A number with one comma, for Arrow."""
TWO_MEANINGS = "^[-+]?[1-9][0-9]{{0,2}}{}[0-9]{{3}}$"
"""A number whose only mark may group thousands."""
COMMA_IS_UNCLEAR, POINT_IS_UNCLEAR = TWO_MEANINGS.format(","), TWO_MEANINGS.format("[.]")
SPACES = "'\u2019 \u00a0\u202f"
"""Marks that group thousands and are not decimal marks."""
TRUTHS = {"true": 1.0, "false": 0.0}
UNCLEAR = (
    f"which is a thousand times as much if its mark groups thousands: say decimal: '.' or ',' of the file in "
    f"{FILES_FILE}"
)
COMMA, GROUPED, TRUTH = "comma", "grouped", "truth"


class UnclearError(ValueError):
    """A text that could be two different numbers."""


@lru_cache(maxsize=2**16)
def written_number(text: str, decimal: str | None, likely: str = ".") -> tuple[float, str]:
    """Convert a written number to a float; also return the name of its notation (``comma``), "" if plain.

    `decimal`: the mark that the site says; None where each cell has to show it. `likely`: what a mark is that
    might be two.

    Raises:
        UnclearError: it may be two numbers.
        ValueError: it is none.
    """
    if text.casefold() in TRUTHS:
        return TRUTHS[text.casefold()], TRUTH
    text = text.replace("\u2212", "-")
    if decimal is None and re.search(POINT_IS_UNCLEAR if likely == "," else COMMA_IS_UNCLEAR, text):
        raise UnclearError(text)
    for mark in (decimal,) if decimal else (likely, "," if likely == "." else "."):
        other = "," if mark == "." else "."
        if re.fullmatch(NUMBER.replace(r"\.", re.escape(mark)), text):
            return decimal_number(text.replace(mark, ".")), COMMA if mark == "," else ""
        for group in (*SPACES, other):
            pattern = rf"[-+]?[0-9]{{1,3}}(?:{re.escape(group)}[0-9]{{3}})+(?:{re.escape(mark)}[0-9]+)?"
            if re.fullmatch(pattern, text):
                return decimal_number(text.replace(group, "").replace(mark, ".")), GROUPED
    raise ValueError(text)
