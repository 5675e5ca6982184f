"""Whether a model is trained by a program, and why not."""

import torch
from torch import nn

from gdpfed.learning.models import flatten
from gdpfed.learning.programs.lowering import Lowered, NotLoweredError, lower

# Smaller models gain nothing unless they read a text step by step, and numba takes a while to load.
LEAST_PARAMETERS = 10_000


class UncompiledError(NotLoweredError):
    """Loops that numba cannot compile on this machine."""


def fitted(
    model: nn.Module, input_shape: tuple[int, ...], device: torch.device, *, records: bool = False
) -> Lowered:
    """A model's layers for a program, with its loops compiled.

    Args:
        model, input_shape, device: what is to be trained, and where.
        records: whether gradients of single records are asked for.

    Raises:
        NotLoweredError: a device, a size or a layer that programs are not for.
        UncompiledError: numba is missing or does not work.
    """
    if device.type != "cpu":
        raise NotLoweredError("programs are for CPUs")
    lowered = lower(model, input_shape)
    if lowered.reading is not None and records:
        raise NotLoweredError("gradients of single records of a text")
    if lowered.reading is None and len(flatten(model)) < LEAST_PARAMETERS:
        raise NotLoweredError(f"fewer than {LEAST_PARAMETERS:,} parameters")
    _compile(reads=lowered.reading is not None)
    return lowered


def _compile(*, reads: bool) -> None:
    """Load the kernels, and those that read a text: from the cache on the disk, or compiled now."""
    try:
        from numba import config
        from numba.core.errors import NumbaError
    except (ImportError, OSError) as error:
        raise UncompiledError(f"numba cannot be loaded: {_line(error)}") from None
    if config.DISABLE_JIT:
        raise UncompiledError("numba is switched off by NUMBA_DISABLE_JIT")
    try:
        import gdpfed.learning.programs.kernels

        if reads:
            import gdpfed.learning.programs.recurrence  # noqa: F401
    except (NumbaError, ImportError, OSError, RuntimeError) as error:
        raise UncompiledError(f"numba cannot compile: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
