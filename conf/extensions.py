"""The methods by name, and the option files: the project's own and those of installed packages.

A package declares them as entry points, as docs/extending.md shows: ``gdpfed.conf`` names a package whose
directory holds option files (``method/*.yaml``, ``dataset/*.yaml``), ``gdpfed.methods`` a method, whose
``config_class`` is the dataclass behind its option file. Both tables are handed in by :mod:`gdpfed.methods`,
which imports this package, and not the other way round.
"""

from pathlib import Path
from typing import Any, Protocol

from conf.errors import ConfigError
from conf.schema import MethodConfig

OWN_DIRECTORY = Path(__file__).resolve().parent


class Table(Protocol):
    """Things by name, as :class:`gdpfed.registry.Registry` holds them; its errors are ConfigErrors."""

    def names(self) -> list[str]: ...

    def get(self, name: str) -> Any: ...

    def items(self) -> dict[str, Any]: ...


_tables: dict[str, Table] = {}


def hand_in(*, methods: Table, option_packages: Table) -> None:
    """Take the methods, each with its ``config_class``, and the packages that hold option files.

    :mod:`gdpfed.methods` does this when it is imported, so that nothing here imports a method.
    """
    _tables.update(methods=methods, option_packages=option_packages)


def _table(kind: str) -> Table:
    if kind not in _tables:
        raise ConfigError("no method is known yet: import gdpfed.methods before a configuration is made")
    return _tables[kind]


def option_directories() -> list[Path]:
    """Where option files are: the project's own directory first, then those of installed packages.

    Raises ConfigError: an entry point that is no package.
    """
    return [OWN_DIRECTORY, *(_directory(name) for name in _table("option_packages").names())]


def _directory(name: str) -> Path:
    package = _table("option_packages").get(name)
    places = list(getattr(package, "__path__", ()))
    if not places:
        raise ConfigError(
            f"entry point {name} of gdpfed.conf is {package!r}, not a package: name the package whose "
            "directory holds the option files"
        )
    return Path(places[0]).resolve()


def method_configs() -> dict[str, type[MethodConfig]]:
    """The dataclass behind the options of every method, by the method's name.

    Raises ConfigError: a method that cannot be imported, that two packages name, or whose ``config_class`` is
    no :class:`~conf.schema.MethodConfig`.
    """
    return {name: _config_class(name, method) for name, method in _table("methods").items().items()}


def _config_class(name: str, method: object) -> type[MethodConfig]:
    config_class = getattr(method, "config_class", None)
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise ConfigError(
            f"method '{name}' has config_class {config_class!r}: make it a dataclass that extends "
            "conf.schema.MethodConfig"
        )
    return config_class
