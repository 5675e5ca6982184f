"""Import modules when one of their attributes is first used, and name packages that are missing.

In a deployment, every message starts a new process, and most messages need neither torch nor scipy. A program
that uses only a part of this project need not install the packages of the other parts.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from gdpfed.errors import InputError
from gdpfed.installed import how_to_get


class LateModule:
    """Stands in for a module, and imports it when one of its attributes is first used.

    It is not in ``sys.modules``. ``inspect``, for example, asks every module there for its file while torch
    is loaded, and that question would import the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _module(self) -> ModuleType:
        return import_module(self._name)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._module, attribute)


def late_import(name: str) -> Any:
    """Return a stand-in for a module; its first use raises ModuleNotFoundError if the module is missing."""
    return LateModule(name)


@contextmanager
def loaded_for_good(name: str) -> Iterator[None]:
    """Pause garbage collection while a ``with`` block first imports `name`, then exempt all objects from it.

    The objects of a large module live as long as the process. The collector would search them many times,
    also at the process's end: this took a third of the time of a process that loads torch for one message.
    """
    if name in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def packages_needed() -> Iterator[None]:
    """In a ``with`` block, turn the error of a missing package into an InputError with a remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        raise InputError(
            f"this needs the package {name}, which is not installed: {how_to_get(name)}"
        ) from error
