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
    """What a run's model card must say about one mechanism's promise, computed from the run's files.

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
        """The charges for a vote or a histogram of norms before the first round; empty without either."""
        return paid_first(self.plan)

    def holds(self) -> frozenset[str]:
        """Return the conditions of card lines that runs of this mechanism meet."""
        return self.sections

    @abstractmethod
    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        """Return membership inference bounds of the rounds so far, by client group or record group."""

    def of_members(self, index: int) -> Inference | None:
        """Return the membership bound against other members of a client's sums; None if the card has none."""
        return None

    def inference_row(self, index: int, number: int) -> Fields:
        """Return what a row of membership bounds must say besides the bounds."""
        return {}

    def fields(self) -> Fields:
        """Return values of fields that only model cards of this mechanism have."""
        return {}

    def rows(self) -> Mapping[str, list[Fields]]:
        """Return values of rows that only model cards of this mechanism have, by pattern."""
        return {}


def spent_text(files: RunFiles, group: int) -> str:
    """Write the epsilon that a group has spent so far, as the model card writes it."""
    return f"{files.rounds[-1]['spent_epsilon'][group]:.2f}" if files.rounds else "0.00"


def of_group(files: RunFiles, index: int) -> dict[str, Expected]:
    """Return what the first columns of a card's row about a group must say."""
    group = files.plan["groups"][index]
    return {
        "group": str(index),
        "group_clients": str(group["clients"]),
        "budget": f"{group['epsilon']:g}",
        "spent": spent_text(files, index),
    }
