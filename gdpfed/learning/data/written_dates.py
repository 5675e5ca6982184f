"""Reads dates as people write them, if the text shows which part is the day.

03/04/2020 shows neither, and is not a date unless its form is said, by the declaration or by the site.
"""

import re
from contextlib import suppress
from datetime import date, datetime
from functools import lru_cache

from gdpfed.decimal_numbers import has_other_digits
from gdpfed.learning.data.columns import DatedAs
from gdpfed.learning.data.file_form import FILES_FILE

TIME = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)?"
FORMS = (
    ("day.month.year", re.compile(rf"(?P<d>\d{{1,2}})\.(?P<m>\d{{1,2}})\.(?P<y>\d{{4}}){TIME}")),
    ("year/month/day", re.compile(rf"(?P<y>\d{{4}})[/.](?P<m>\d{{1,2}})[/.](?P<d>\d{{1,2}}){TIME}")),
    ("day, name of the month, year", re.compile(r"(?P<d>\d{1,2})[- ]?(?P<n>[A-Za-z]{3,9})[- ]?(?P<y>\d{4})")),
    ("name of the month, day, year", re.compile(r"(?P<n>[A-Za-z]{3,9}) (?P<d>\d{1,2}),? (?P<y>\d{4})")),
)
SLASHED = re.compile(rf"(\d{{1,2}})[/-](\d{{1,2}})[/-](\d{{4}}){TIME}")
IN_NUMBERS = (
    re.compile(rf"(?P<year>\d{{4}})[-./](?P<one>\d{{1,2}})[-./](?P<other>\d{{1,2}}){TIME}", re.ASCII),
    re.compile(rf"(?P<one>\d{{1,2}})[-./](?P<other>\d{{1,2}})[-./](?P<year>\d{{4}}){TIME}", re.ASCII),
)
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
DAY_FIRST, MONTH_FIRST = "day/month/year", "month/day/year"
UNCLEAR = f"which may be two days: say dates of the file in {FILES_FILE}, as in dates: '%d/%m/%Y'"


DAY = "day "
"""Stands before the text of a cell that held a day, in a column in which other cells are texts."""


class UnclearError(ValueError):
    """A text that could be two different dates."""


@lru_cache(maxsize=2**16)
def written_date(text: str, dated: DatedAs, own: str | None = None) -> tuple[float, str]:
    """Convert a date in a common notation to a number; also return its format, "" for the declared one.

    After `DAY` it is of the form 2020-03-01, whatever the site or the declaration says.

    `own`: the form that the site says, and no other is tried.

    Raises:
        UnclearError: it may be two days.
        ValueError: it is not a date.
    """
    if has_other_digits(text):
        raise ValueError(f"{text!r} has digits that are not 0 to 9")
    said = f"{DAY}%Y-%m-%d" if text.startswith(DAY) else own or dated.form
    if said is not None:
        try:
            return _number(datetime.strptime(text, said).date(), dated), ""
        except ValueError:
            # Where one site writes days first, a day that does not fit is a fault and not a month.
            if own is not None or SLASHED.fullmatch(text):
                raise
    with suppress(ValueError):
        return _number(datetime.fromisoformat(text).date(), dated), "" if said is None else "ISO 8601"

    for form, pattern in FORMS:
        if found := pattern.fullmatch(text):
            parts = found.groupdict()
            name, months = parts.get("n", "").lower(), enumerate(MONTHS, start=1)
            named = next((number for number, each in months if name in (each, each[:3])), 0)
            month = int(parts["m"]) if "m" in parts else named
            return _number(date(int(parts["y"]), month, int(parts["d"])), dated), form
    if (found := SLASHED.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a date")
    first, second, year = (int(found[part]) for part in (1, 2, 3))
    if first <= 12 and second <= 12 and first != second:
        raise UnclearError(text)
    if second > 12:
        return _number(date(year, first, second), dated), MONTH_FIRST
    return _number(date(year, second, first), dated), DAY_FIRST


def _number(day: date, dated: DatedAs) -> float:
    return dated.of_days(float((day - dated.day).days))


def names_no_day(text: str) -> bool:
    """Whether a text has the form of a date in numbers, but names a day that does not exist: 31.02.2025."""
    found = next((match for pattern in IN_NUMBERS if (match := pattern.fullmatch(text))), None)
    if found is None:
        return False
    year, one, other = (int(found[part]) for part in ("year", "one", "other"))
    return not (_is_day(year, one, other) or _is_day(year, other, one))


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True
