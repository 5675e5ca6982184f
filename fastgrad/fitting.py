"""Prepare a model for compiled loops (numba), or raise an error that says why this is not possible."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module

import torch
from torch import nn

from fastgrad.lowered import LoweredModel, NotLoweredError
from fastgrad.lowering import lower

# Smaller models gain nothing unless they read a text step by step, and numba takes a while to load.
LEAST_PARAMETERS = 10_000


class UncompiledError(NotLoweredError):
    """Raised if numba cannot compile the loops for a model on this machine."""


def fitted(
    model: nn.Module, input_shape: tuple[int, ...], device: torch.device, *, records: bool = False
) -> LoweredModel:
    """Return a model's layers in the form that compiled loops need, and compile these loops with numba.

    `model`, `input_shape`, `device`: what is to be trained, and where. `records`: whether gradients of single
    records are asked for.

    Raises:
        NotLoweredError: a device, a size or a layer that programs are not for.
        UncompiledError: numba is missing or does not work.
    """
    if device.type != "cpu":
        raise NotLoweredError(f"compiled programs are for CPUs, not for {device}")
    lowered = lower(model, input_shape)
    if lowered.reading is not None and records:
        raise NotLoweredError("no compiled program exists for gradients of single records of a text")
    if lowered.draws and records:
        raise NotLoweredError("no compiled program exists for dropout in gradients of single records")
    if lowered.reading is None and len(lowered.order) < LEAST_PARAMETERS:
        raise NotLoweredError(
            f"a compiled program does not pay for a model with fewer than {LEAST_PARAMETERS:,} parameters"
        )
    needed = ["fastgrad.kernels"]
    needed += ["fastgrad.embedding_lstm"] if lowered.reading is not None else []
    needed += [stage.compiled.partition(":")[0] for stage in lowered.stages]
    _load(needed)
    return lowered


@cache
def can_compile() -> bool:
    """Whether the compiled loops that add up integers work here; the first call loads numba."""
    try:
        _load(["fastgrad.layer"])
    except UncompiledError:
        return False
    return True


def _load(modules: Sequence[str]) -> None:
    """Import modules of compiled loops; raise UncompiledError if numba is missing or does not work."""
    try:
        from numba import config
        from numba.core.errors import NumbaError
    except (ImportError, OSError) as error:
        raise UncompiledError(f"numba cannot be loaded: {_line(error)}") from None
    if config.DISABLE_JIT:
        raise UncompiledError("numba is switched off by NUMBA_DISABLE_JIT")
    try:
        for module in modules:
            import_module(module)
    except (NumbaError, ImportError, OSError, RuntimeError) as error:
        raise UncompiledError(f"numba cannot compile: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
