"""Dates of a table as numbers: an age in years, or days since a day that the declaration names."""

from dataclasses import dataclass
from datetime import date, datetime

AGE_ON, DAYS_SINCE = "age_on", "days_since"
DAYS_A_YEAR = 365.25


@dataclass(frozen=True)
class DatedAs:
    """How a date becomes a number.

    Attributes:
        unit: ``age_on``, years from the date to ``day``, or ``days_since``, days from ``day`` to the date.
        day: declared, so that the number of a record depends on no other record.
        form: of a date, as :meth:`datetime.datetime.strptime` reads it; None for ISO 8601.
    """

    unit: str
    day: date
    form: str | None = None

    def number(self, text: str) -> float:
        """The number that a date is.

        Raises:
            ValueError: the text is no date of this form.
        """
        found = datetime.fromisoformat(text) if self.form is None else datetime.strptime(text, self.form)
        days = (found.date() - self.day).days
        return -days / DAYS_A_YEAR if self.unit == AGE_ON else float(days)
