"""A method's own tables of its plan."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """One table of a plan.

    Attributes:
        title: above it.
        headings: of its columns.
        rows: one cell a heading; a cell may have several lines.
        notes: below it, a paragraph each.
        text_columns: headings of columns with words, which begin at the left; figures end at the right.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    text_columns: Sequence[str] = ()
