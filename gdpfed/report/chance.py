"""Compares accuracy with always guessing the most frequent class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gdpfed.runs.file_formats import AT_CHANCE_FILE, MODEL_CARD_FILE, read_result

_WITHOUT_A_MODEL = "* without any model: "
UNEVEN = 0.8
"""With so large a share of one class, accuracy is mostly the share: the AUC is looked at in its place."""
UNKNOWN = "there are too few rounds, or that training.learning_rate or privacy.clipping_norm does not fit"


@dataclass(frozen=True)
class AtChance:
    """The finding that accuracy is not significantly better than always guessing the most frequent class.

    Attributes:
        accuracy, low, high: of the released model, and the ends of its 95 % interval.
        most_frequent, share: the class that most tested examples have, and the share of those that have it.
        tested: whose examples these are, and how many.
        causes: what may be the cause, each in words that end a sentence.
    """

    accuracy: float
    low: float
    high: float
    most_frequent: str
    share: float
    tested: str
    causes: Sequence[str]

    @property
    def line(self) -> str:
        """The warning, in one line, that accuracy is not above chance, with possible causes."""
        between = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        why = "; ".join(self.causes) or UNKNOWN
        return (
            f"The result is not above chance: accuracy {100 * self.accuracy:.1f} % ({between}) on "
            f"{self.tested}, and answering '{self.most_frequent}' always is right for "
            f"{100 * self.share:.1f} %. It may be that {why}"
        )

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the finding that a run's accuracy is not above chance; None if there is no such finding.

        Raises RunError: it is damaged, or of another format.
        """
        return read_result(directory / AT_CHANCE_FILE, "a result at chance", cls._of_values)

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        return cls(**values)


def base_rate_line(name: str, share: float) -> str:
    """Return a line for the model card: how often a constant guess of the most frequent class is right."""
    return f"{_WITHOUT_A_MODEL}answering '{name}' always would be right for {100 * share:.1f} % of it"


def base_rate_on_card(directory: Path) -> str | None:
    """Return what a run's model card says about always guessing the most frequent class; None if nothing."""
    try:
        card = (directory / MODEL_CARD_FILE).read_text(encoding="utf-8")
    except OSError:
        return None
    lines = (line for line in card.splitlines() if line.startswith(_WITHOUT_A_MODEL))
    return next((line.removeprefix(_WITHOUT_A_MODEL) for line in lines), None)
