"""The splits of random trees, drawn from a public seed and the declared columns, without data.

A tree of depth D asks the same D questions of every record, one a level (an oblivious tree), so it has 2^D
leaves. A question is drawn in two steps: a column, each with the same chance, and then, where it holds
numbers, a threshold uniform over its declared range; where it holds values, one of them. So a column of forty
values is not asked forty times as often as one of numbers.

Splits that no data chose cost no budget (totally random trees: Maddock, Cormode, Wang, Maple, Jha,
arXiv:2210.02910, Section 4.1). Numbers come from SHA-256, so all parties draw the same ones, whatever the
versions of their packages are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import Columns

MOST_TREES, MOST_DEPTH = 2000, 6
PRESENT = 0.5
"""The threshold of an input that is 1 where a record has a value, and else 0."""


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of all trees: for each tree and depth, an input and the threshold to compare it with.

    Attributes:
        inputs: which number of a record is asked for, shape (K, D).
        thresholds: above which the answer is yes, shape (K, D).
    """

    inputs: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float32]


def widths_of(columns: Columns) -> tuple[int, ...]:
    """Return how many inputs each declared column has: 1 for numbers, else the number of values."""
    return (*(1 for _ in columns.numeric), *(len(each.values) for each in columns.categorical))


def written(widths: Sequence[int]) -> str:
    """Write the number of inputs of each column as text, such as 1,1,3, for a model option."""
    return ",".join(map(str, widths))


def read_widths(text: str, num_inputs: int) -> tuple[int, ...]:
    """Read how many inputs each column has from text such as 1,1,3; empty text means one for each column.

    Raises LearningError: numbers that are not positive and whole, or do not add up to the inputs.
    """
    if not text:
        return (1,) * num_inputs
    parts = text.split(",")
    widths = tuple(int(each) for each in parts if each.isascii() and each.isdecimal() and int(each))
    if len(widths) != len(parts) or sum(widths) != num_inputs:
        raise LearningError(
            f"dataset.model_options.columns={text} must list how many inputs each column has, as in 1,1,3: "
            f"together {num_inputs}"
        )
    return widths


def drawn_splits(widths: Sequence[int], trees: int, depth: int, seed: int) -> Splits:
    """Choose the splits of K decision trees of depth D pseudorandomly, from a seed.

    Question number j takes two numbers of [0, 1) from the first 16 bytes of SHA-256 of the text
    ``trees <seed> <j>``, eight bytes each, big-endian, their first 53 bits: the first chooses the column, the
    second the threshold in (-1, 1), or the value.
    """
    firsts = np.cumsum([0, *widths])
    inputs = np.empty(trees * depth, dtype=np.int64)
    thresholds = np.empty(trees * depth, dtype=np.float32)
    for number in range(trees * depth):
        digest = sha256(f"trees {seed} {number}".encode()).digest()
        column, place = ((int.from_bytes(digest[at : at + 8]) >> 11) / 2**53 for at in (0, 8))
        chosen = int(column * len(widths))
        width = widths[chosen]
        inputs[number] = firsts[chosen] + int(place * width)
        thresholds[number] = 2 * place - 1 if width == 1 else PRESENT
    shape = (trees, depth)
    return Splits(inputs.reshape(shape), thresholds.reshape(shape))
