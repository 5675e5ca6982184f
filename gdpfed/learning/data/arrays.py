"""Arrays as users bring them: the members of an ``.npz`` file, and numbers that a model can take."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
import numpy.typing as npt
from psutil import virtual_memory

from gdpfed.errors import LearningError

Array = npt.NDArray[np.generic]
# Of what numpy raises for a file that is damaged, encrypted or larger than memory.
MOST_MEMORY = 0.5
"""Of the memory that is free, for the arrays of one file."""
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, BadZipFile, zlib.error)


def read_npz(path: Path, keys: Sequence[str], name: str) -> dict[str, Array]:
    """The arrays of these names.

    Args:
        name: what errors call the file.

    Raises:
        LearningError: no ``.npz`` file, one that cannot be read, or one without these arrays.
    """
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):
                raise LearningError(
                    f"{name} cannot be read as .npz: it is no archive of arrays; write one with np.savez"
                )
            with ZipFile(file) as archive_of:
                size = sum(each.file_size for each in archive_of.infolist())
            if size > (most := virtual_memory().available * MOST_MEMORY):
                raise LearningError(
                    f"{name} holds {size / 2**30:.3g} GiB once it is unpacked, and {most / 2**30:.3g} GiB of "
                    "memory may go into it: write less into one file"
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                missing = [key for key in keys if key not in archive]
                if missing:
                    raise LearningError(
                        f"{name} lacks the arrays {', '.join(missing)}; it needs {', '.join(keys)}"
                    )
                return {key: archive[key] for key in keys}
    except LearningError:
        raise
    except UNREADABLE as error:
        raise LearningError(f"{name} cannot be read as .npz: {' '.join(str(error).split())}") from None


def as_numbers(
    values: Array, dtype: npt.DTypeLike, name: str
) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """The same array as float32 or int64.

    Raises:
        LearningError: text, complex or other values that are no real numbers, or some that are not finite.
    """
    if values.dtype.kind not in "biuf":
        raise LearningError(f"{name} holds values of type {values.dtype}; it must hold real numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers: npt.NDArray[np.float32] | npt.NDArray[np.int64] = values.astype(dtype)
    if not np.isfinite(numbers).all():
        raise LearningError(f"{name} holds values that are not finite as {np.dtype(dtype)}")
    return numbers
