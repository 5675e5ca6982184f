"""The base class for checks of a model card's privacy promise; each mechanism has a subclass."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gdpfed.audit.accounting import Charges, paid_first
from gdpfed.audit.card_forms import Expected, Fields
from gdpfed.audit.inference import Inference
from gdpfed.audit.run_files import RunFiles


class MechanismCard(ABC):
    """What the model card of a run of one mechanism must say, as it follows from the run's files.

    Attributes:
        lines: files with lines besides those of card_lines.txt, for mechanisms of their own words.
        sections: the conditions of those lines that hold for it, for a private run.
        files: of the run.
    """

    lines: ClassVar[tuple[Path, ...]] = ()
    sections: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, files: RunFiles) -> None:
        self.files = files

    @property
    def plan(self) -> Mapping[str, Any]:
        """The run's plan."""
        return self.files.plan

    @property
    def paid_first(self) -> Charges:
        """What a vote or a histogram of norms costs every client before the first round; empty without."""
        return paid_first(self.plan)

    def holds(self) -> frozenset[str]:
        """The conditions of card lines that hold for a run of this mechanism."""
        return self.sections

    @abstractmethod
    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        """Membership inference bounds of the charged rounds, by group of clients or of records."""

    def of_members(self, index: int) -> Inference | None:
        """The membership bounds against members of a client's sums; None if the card states none."""
        return None

    def inference_row(self, index: int, number: int) -> Fields:
        """What the card must say in a row of membership bounds, beside the bounds."""
        return {}

    def fields(self) -> Fields:
        """What the card must say in fields that only cards of this mechanism have."""
        return {}

    def rows(self) -> Mapping[str, list[Fields]]:
        """What the card must say in rows that only cards of this mechanism have, by the pattern's name."""
        return {}


def spent_text(files: RunFiles, group: int) -> str:
    """The epsilon that a group has spent up to the last round, as a model card writes it."""
    return f"{files.rounds[-1]['spent_epsilon'][group]:.2f}" if files.rounds else "0.00"


def of_group(files: RunFiles, index: int) -> dict[str, Expected]:
    """What the first columns of a card's row about a group must say."""
    group = files.plan["groups"][index]
    return {
        "group": str(index),
        "group_clients": str(group["clients"]),
        "budget": f"{group['epsilon']:g}",
        "spent": spent_text(files, index),
    }
