"""Columns of texts such as names and categories, which are compared as texts.

What names is a text and stays one: 7 and 007 are two persons, and no name passes through a number with a
fraction, which tells 15 digits apart.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.columns import whole

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = late_import("pyarrow")

DECIMAL_COMMA = re.compile(r"-?(?:0|[1-9][0-9]*),(?![0-9]{3}$)[0-9]+|-?0,[0-9]+")
"""A number with a comma that groups no thousands."""
Texts = npt.NDArray[np.object_]
Mask = npt.NDArray[np.bool_]
EXACT = {"halffloat": 2**11, "float": 2**24, "double": 2**53}
"""Below which whole numbers of a type with fractions are told apart."""
NOT_UTF8 = "holds bytes that are not a text in UTF-8: write it as text"
OTHER_TYPE = "which is not a text, number or date: convert the column"


@dataclass(frozen=True, eq=False)
class TextCells:
    """A column of texts, stored as the distinct texts and the index of each cell's text.

    What is missing is the empty text.
    """

    distinct: Sequence[str]
    which: npt.NDArray[np.int64]

    @property
    def missing(self) -> Mask:
        found: Mask = self.of([text == "" for text in self.distinct], bool)
        return found

    def of(self, values: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Expand values, one for each distinct text, to an array with a value for every cell."""
        return np.array(values, dtype=dtype)[self.which]

    def text(self, at: int) -> str:
        return self.distinct[int(self.which[at])]

    @property
    def texts(self) -> Texts:
        """The texts of all cells, shape (N,)."""
        return self.of(self.distinct, object)

    def taken(self, at: npt.NDArray[np.int64]) -> "TextCells":
        return TextCells(self.distinct, self.which[at])


def texts_of(values: "pa.Array", name: str, place: str, *, exact: bool = True) -> TextCells:
    """Read a column's cells as texts, without spaces at both ends; missing values become empty texts.

    `exact`: whether whole numbers that their type does not tell apart are refused.
    Whole numbers of any type are written without a fraction, as 7, other numbers so that they read the same.

    Raises LearningError: values of a type that is neither a text, a number nor a date, or names as numbers in
    which some are one.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        return texts_of(values.dictionary_decode(), name, place, exact=exact)
    if pa.types.is_null(kind):
        return TextCells([""], np.zeros(len(values), np.int64))
    if is_bytes(kind):
        try:
            decoded = values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raise LearningError(f"{place}: column '{name}' {NOT_UTF8}") from None
        return texts_of(decoded, name, place, exact=exact)
    if not (pa.types.is_primitive(kind) or is_text(kind) or pa.types.is_decimal(kind)):
        raise LearningError(f"{place}: column '{name}' holds {kind}, {OTHER_TYPE}")
    encoded = values.dictionary_encode(null_encoding="encode")
    found = encoded.dictionary
    if pa.types.is_boolean(kind):
        texts = [str(value) for value in found.to_pylist()]
    elif pa.types.is_floating(kind):
        # As few digits as tell the numbers of this type apart: 0.1 of 32 bits is no 0.10000000149.
        shortest = {"halffloat": np.float16, "float": np.float32}.get(str(kind), float)
        texts = [
            float_text(value, EXACT[str(kind)] if exact else np.inf, name, place, shortest)
            for value in found.to_pylist()
        ]
    else:
        try:
            texts = found.cast(pa.string()).to_pylist()
        except pa.ArrowException:
            raise LearningError(f"{place}: column '{name}' holds {found.type}, {OTHER_TYPE}") from None
    valid = found.is_valid().to_pylist()
    stripped = [text.strip() if there else "" for text, there in zip(texts, valid, strict=True)]
    return merged(stripped, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def merged(texts: Sequence[str], which: npt.NDArray[np.int64]) -> TextCells:
    """Make a column of texts in which equal texts are merged into one."""
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(text, len(numbers)) for text in texts]
    return TextCells([*numbers], np.array(of, dtype=np.int64)[which] if of else which)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is a text type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether an Arrow type is a type of bytes; some programs write texts as bytes."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def float_text(
    value: float | None, exact: float, name: str, place: str, shortest: Callable[[float], Any] = float
) -> str:
    """Return a number as text, whole ones without a fraction, empty if it is missing.

    `exact`: below which its type tells whole numbers apart; inf to allow all. `shortest`: of the type.

    Raises LearningError: a number beyond `exact`.
    """
    if value is None or np.isnan(value):
        return ""
    if np.isfinite(value) and abs(value) >= exact:
        raise LearningError(
            f"{place}: column '{name}' holds {value!r} as a floating-point number, which cannot "
            "express every whole number of this size: write the column as text or whole numbers"
        )
    return str(int(value)) if np.isfinite(value) and value == int(value) else str(shortest(value))


def without(cells: TextCells, marks: frozenset[str]) -> TextCells:
    """Replace the texts that mean a missing value by empty texts."""
    short = frozenset(map(whole, marks))
    return merged(
        ["" if each in marks or whole(each) in short else each for each in cells.distinct], cells.which
    )


def named(cells: TextCells, values: Mapping[str, str]) -> tuple[TextCells, int]:
    """Replace texts by the values for which they stand; return the cells, and how many were replaced."""
    stands = [values.get(each, values.get(whole(each))) for each in cells.distinct]
    count = int(cells.of([each is not None for each in stands], bool).sum())
    pairs = zip(stands, cells.distinct, strict=True)
    return merged([each if value is None else value for value, each in pairs], cells.which), count


def numbered(cells: TextCells, values: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the number that `values` gives each cell's text, int64[N]; -1 for unknown texts.

    A text is that value which it equals. Where none is, 1.0 and 1,0 are the value 1, 1,5 is 1.5, and the
    other way round; and so are truth values of any letters, true, True and TRUE, or 1 where that is declared.
    """
    short = {_plain(text): number for text, number in values.items()}
    for truth, digit in (("true", "1"), ("false", "0")):
        if truth in short:
            short.setdefault(digit, short[truth])
        elif digit in short:
            short[truth] = short[digit]
    return cells.of([values.get(text, short.get(_plain(text), -1)) for text in cells.distinct], np.int64)


def _plain(text: str) -> str:
    """Normalise a text for comparison: 7.0 to 7, a decimal comma to a point, truth values to lower case."""
    if text.casefold() in ("true", "false"):
        return text.casefold()
    pointed = text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text
    return whole(pointed)
