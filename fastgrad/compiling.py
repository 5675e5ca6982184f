"""How numba compiles the loops of programs.

Machine code is kept beside the code, or where that cannot be written, in the user's cache directory or in
NUMBA_CACHE_DIR. Where none can, RuntimeError is raised: compiling takes too long for every process.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.types import void

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

Kernel = TypeVar("Kernel", bound=Callable[..., None])


def compiled(*types: Any, **options: Any) -> Callable[[Kernel], Kernel]:
    """Compile for these types of arguments; other threads run meanwhile."""

    def compile_it(function: Kernel) -> Kernel:
        compiled = numba.njit(void(*types), cache=True, nogil=True, error_model="numpy", **options)(function)
        return cast("Kernel", compiled)

    return compile_it
