"""A method's own description of its plan and promise: tables, and lines of the model card."""

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


@dataclass(frozen=True, kw_only=True)
class CardText:
    """Lines of the model card, in Markdown; each is empty where the usual ones say enough.

    Attributes:
        promise: what is promised, in place of the usual lines.
        also: what is to be said below the usual lines on the promise.
        not_covered: what is not promised, in place of the usual lines.
    """

    promise: Sequence[str] = ()
    also: Sequence[str] = ()
    not_covered: Sequence[str] = ()
