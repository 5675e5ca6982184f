"""Text as windows of characters; the label of a window is the character that follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset, Split

# LEAF's 80 characters (Caldas et al., 2018); a public constant, since the characters that occur in the
# clients' texts would tell of them. Every other character is one more class.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
OUT_OF_VOCABULARY = len(CHARACTERS)
VOCABULARY_SIZE = len(CHARACTERS) + 1

_CODES = {character: code for code, character in enumerate(CHARACTERS)}


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Convert characters to positions in the vocabulary, shape (characters,)."""
    return np.fromiter((_CODES.get(c, OUT_OF_VOCABULARY) for c in text), dtype=np.uint8, count=len(text))


@dataclass(frozen=True)
class Windows:
    """Windows of a text, stored as start positions, so that the text is in memory once.

    Attributes:
        codes: the text, shape (characters,), uint8.
        starts: where each window begins, shape (N,), int64; the character after it is its label.
        sequence_length: characters of a window.
        every_position: whether labels are the characters after all positions of a window, and not after the
            last one alone.
    """

    codes: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sequence_length: int
    every_position: bool = False

    @property
    def y(self) -> npt.NDArray[np.int64]:
        """The character that follows each window, shape (N,)."""
        return self.codes[self.starts + self.sequence_length].astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, indices: npt.NDArray[np.int64]) -> Split:
        """Return the windows at these positions as character codes, (N, sequence_length), with labels."""
        positions = self.starts[indices][:, None] + np.arange(self.sequence_length + 1)
        characters = self.codes[positions].astype(np.int64)
        return Split(characters[:, :-1], characters[:, 1:] if self.every_position else characters[:, -1])

    def thinned(self, stride: int) -> "Windows":
        """Return every ``stride``-th window."""
        return Windows(self.codes, self.starts[::stride], self.sequence_length)

    def characters(self, indices: npt.NDArray[np.int64]) -> int:
        """Return how many different positions of the text these windows and their labels cover."""
        covered = np.zeros(len(self.codes) + 1, dtype=np.int64)
        np.add.at(covered, self.starts[indices], 1)
        np.add.at(covered, self.starts[indices] + self.sequence_length + 1, -1)
        return int(np.count_nonzero(np.cumsum(covered)))


def joined(parts: Sequence[Windows], sequence_length: int) -> Windows:
    """Join several texts to one; each window stays within its own text."""
    edges = np.cumsum([0, *(len(part.codes) for part in parts)])
    codes = [part.codes for part in parts]
    starts = [part.starts + edge for part, edge in zip(parts, edges, strict=False)]
    return Windows(
        np.concatenate(codes) if codes else np.zeros(0, dtype=np.uint8),
        np.concatenate(starts) if starts else np.zeros(0, dtype=np.int64),
        sequence_length,
    )


@lru_cache(maxsize=4)
def at_every_position(data: Dataset) -> Dataset:
    """Return the data set with the next token as training label at every position.

    Raises LearningError: its examples are not texts whose next token is the label.
    """
    train = data.train
    if isinstance(train, Windows):
        return replace(data, train=replace(train, every_position=True))
    if not isinstance(train, Split) or train.x.dtype != np.int64 or train.x.ndim != 2 or data.vocabulary:
        raise LearningError(
            "dataset.loss=next_token is for texts whose label is the next token, and this data set has none: "
            "use dataset.loss=cross_entropy"
        )
    return replace(data, train=following(train))


def following(texts: Split) -> Split:
    """Return texts with a label at every position, the next token: labels (N,) become (N, L)."""
    labels = np.concatenate([texts.x[:, 1:], texts.y[:, None]], axis=1)
    return replace(texts, y=labels.astype(np.int64))


def one_label(texts: Split) -> Split:
    """Return texts with a label only at the last position: labels (N, L) become (N,)."""
    return replace(texts, y=texts.y[:, -1])
