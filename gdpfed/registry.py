"""Registries of items that the configuration chooses by name; other packages can add to them."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Generic, TypeVar

from gdpfed.errors import kind_and_words, not_known
from gdpfed.extras_table import EXTRAS

T = TypeVar("T")
OF_PYTHON = "python."
"""The prefix of the names of objects that a Python program gives to a run (`gdpfed.python_objects`)."""


def is_ours(item: object) -> bool:
    """Whether a function or class belongs to this project and can be imported by name from its module."""
    module, name = (str(getattr(item, key, "")) for key in ("__module__", "__qualname__"))
    ours = module.partition(".")[0] in ("fastgrad", "gdpfed")
    return ours and getattr(sys.modules.get(module), name, None) is item


class Registry(Generic[T]):
    """Items of one kind by name: built-in ones, optional parts (extras), and those of installed packages.

    A registered item exists only in the process that registered it. An item that a package declares as an
    entry point exists in every process of the environment, also in Flower's nodes and Ray's workers::

        [project.entry-points."gdpfed.datasets"]
        mine = "my_package.my_module:load"

    `kind`: the word for an item in error messages, such as "data set". `entry_point_group`: the group of the
    entry points, such as "gdpfed.datasets". `built_in`: items of this project, in the form of entry points,
    such as ``{"mine": "my_package.my_module:load"}``. `error`: the exception that is raised for a name that
    cannot be used.
    """

    def __init__(
        self,
        kind: str,
        entry_point_group: str,
        *,
        built_in: Mapping[str, str] | None = None,
        error: type[Exception] = ValueError,
    ) -> None:
        self.kind = kind
        self.entry_point_group = entry_point_group
        self._error = error
        self._items: dict[str, T] = {}
        own = {**(built_in or {}), **EXTRAS.get(entry_point_group, {})}
        self._built_in = [EntryPoint(name, value, entry_point_group) for name, value in own.items()]

    def register(self, name: str, item: T) -> T:
        """Add an item under an unused name, which the configuration can then choose; return the item.

        Raises error: another item has the name.
        """
        if self._items.get(name, item) is not item:
            raise self._error(f"there is a {self.kind} '{name}' already: register yours under another name")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """Return the item with this name; import it first if the registry has not imported it yet.

        Raises error: no item or several items have the name, or the entry point cannot be imported.
        """
        return self._item(name, self._declared())

    def items(self) -> dict[str, T]:
        """Return all items of the registry by name, in alphabetical order; import those not imported yet.

        Raises error: an item cannot be loaded, as in :meth:`get`.
        """
        declared = self._declared()
        return {name: self._item(name, declared) for name in self._names(declared)}

    def names(self) -> list[str]:
        """Return all names in the registry, in alphabetical order, without importing any item."""
        return self._names(self._declared())

    def _names(self, declared: list[EntryPoint]) -> list[str]:
        return sorted(self._items.keys() | {point.name for point in declared})

    def _declared(self) -> list[EntryPoint]:
        """Return the entry points of built-in items and of installed packages, without duplicates."""
        found = _entry_points(self.entry_point_group, tuple(sys.path))
        return list(dict.fromkeys([*self._built_in, *found]))

    def _item(self, name: str, all_declared: list[EntryPoint]) -> T:
        declared = [point for point in all_declared if point.name == name]
        if len(declared) + (name in self._items) > 1:
            owners = ", ".join(_owner(point) for point in declared)
            raise self._error(f"{self.kind} '{name}' is there more than once ({owners}): keep one of them")
        if name in self._items:
            return self._items[name]
        if not declared and name.startswith(OF_PYTHON):
            raise self._error(
                f"{self.kind} '{name}' is an object of a Python program, which no file holds: begin, go on "
                'or use the run there, and give it again, as in gdpfed.simulate("run.resume=DIR", ...)'
            )
        if not declared:
            raise self._error(not_known(f"{self.kind} '{name}'", self._names(all_declared)))
        return self._load(declared[0])

    def _load(self, point: EntryPoint) -> T:
        try:
            item: T = point.load()
        except Exception as error:
            raise self._error(
                f"{self.kind} '{point.name}' of {_owner(point)} cannot be loaded from {point.value}: "
                f"{kind_and_words(error)}"
            ) from error
        return item


@lru_cache(maxsize=32)
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Return one group's entry points of all installed packages, cached for each value of ``sys.path``."""
    return entry_points(group=group)


def _owner(point: EntryPoint) -> str:
    return "gdpfed itself" if point.dist is None else f"package {point.dist.name}"
