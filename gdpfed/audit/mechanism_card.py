"""The base class for checks of a model card's privacy guarantee; each privacy mechanism has a subclass."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gdpfed.audit.accounting import Charges, paid_first
from gdpfed.audit.card_forms import Expected, Fields
from gdpfed.audit.inference import Inference
from gdpfed.audit.run_files import RunFiles


class MechanismCard(ABC):
    """Computes from a run's files what the run's model card must say about the privacy guarantee.

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
        """The run's privacy plan (plan.json)."""
        return self.files.plan

    @property
    def paid_first(self) -> Charges:
        """The privacy costs of a vote or a norm histogram before the first round; or an empty list."""
        return paid_first(self.plan)

    def holds(self) -> frozenset[str]:
        """Return the conditions that all runs of this mechanism meet, to select model card lines by them."""
        return self.sections

    @abstractmethod
    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        """Return bounds on membership inference so far, for each client group: one bound per budget."""

    def of_members(self, index: int) -> Inference | None:
        """Return the membership inference bound for attackers in the same sum; None by default."""
        return None

    def inference_row(self, index: int, number: int) -> Fields:
        """Return further values for the card's row on membership inference; by default an empty mapping."""
        return {}

    def fields(self) -> Fields:
        """Return values of fields that only model cards of this mechanism have."""
        return {}

    def rows(self) -> Mapping[str, list[Fields]]:
        """Return values of table rows that only model cards of this mechanism have, by the row's name."""
        return {}


def spent_text(files: RunFiles, group: int) -> str:
    """Format the epsilon that a client group has spent so far, as in the model card."""
    return f"{files.rounds[-1]['spent_epsilon'][group]:.2f}" if files.rounds else "0.00"


def of_group(files: RunFiles, index: int) -> dict[str, Expected]:
    """Return what the first columns of the model card's row about a client group must say."""
    group = files.plan["groups"][index]
    return {
        "group": str(index),
        "group_clients": str(group["clients"]),
        "budget": f"{group['epsilon']:g}",
        "spent": spent_text(files, index),
    }
