"""What installed packages add to the configuration: option files, and the options of their methods.

A package declares them as entry points, as docs/extending.md shows: ``gdpfed.conf`` names a package whose
directory holds option files (``method/*.yaml``, ``dataset/*.yaml``), ``gdpfed.methods`` a method, whose
``config_class`` is the dataclass behind its option file.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from conf.schema import METHODS, MethodConfig
from gdpfed.errors import ConfigError
from gdpfed.registry import Registry

OWN_DIRECTORY = Path(__file__).resolve().parent

_option_packages: Registry[ModuleType] = Registry("option package", "gdpfed.conf", error=ConfigError)
_methods: Registry[Any] = Registry("method", "gdpfed.methods", error=ConfigError)


def option_directories() -> list[Path]:
    """Where option files are: the project's own directory first, then those of installed packages.

    Raises:
        ConfigError: an entry point that is no package.
    """
    return [OWN_DIRECTORY, *(_directory(name) for name in _option_packages.names())]


def _directory(name: str) -> Path:
    package = _option_packages.get(name)
    places = list(getattr(package, "__path__", ()))
    if not places:
        raise ConfigError(
            f"entry point {name} of gdpfed.conf is {package!r}, not a package: name the package whose "
            "directory holds the option files"
        )
    return Path(places[0]).resolve()


def method_configs() -> dict[str, type[MethodConfig]]:
    """The dataclass behind the options of every method, by the method's name.

    Raises:
        ConfigError: an installed method that cannot be imported, or whose ``config_class`` is no
            :class:`~conf.schema.MethodConfig`.
    """
    return METHODS | {name: _config_class(name) for name in _methods.names()}


def _config_class(name: str) -> type[MethodConfig]:
    if name in METHODS:
        raise ConfigError(f"an installed package names a method '{name}' as well: uninstall or rename it")
    config_class = getattr(_methods.get(name), "config_class", None)
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise ConfigError(
            f"method '{name}' has config_class {config_class!r}: make it a dataclass that extends "
            "conf.schema.MethodConfig"
        )
    return config_class
