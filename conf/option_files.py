"""The YAML files of a run's options, and the call of Hydra that selects one file for each settings group.

A package declares them as entry points, as docs/extending.md shows: ``gdpfed.conf`` names a package whose
directory holds option files (``method/*.yaml``, ``dataset/*.yaml``), ``gdpfed.methods`` a method, whose
``config_class`` is the dataclass behind its option file. Both tables are handed in by :mod:`gdpfed.methods`,
which imports this package, and not the other way round. Results of Hydra are cached.
"""

import atexit
import pickle
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from conf.errors import ConfigError, not_known
from conf.schema import (
    Config,
    DatasetConfig,
    MethodConfig,
    PrivacyConfig,
    RunConfig,
    SecAggConfig,
    SimulationConfig,
    TrainingConfig,
)

OWN_DIRECTORY = Path(__file__).resolve().parent
_ONE_HYDRA = RLock()
"""Hydra keeps what it composes from in one place for the whole process."""


class Table(Protocol):
    """The interface of a registry: it returns items by name, and raises ConfigError for wrong names."""

    def names(self) -> list[str]: ...

    def get(self, name: str) -> Any: ...

    def items(self) -> dict[str, Any]: ...


_tables: dict[str, Table] = {}


def hand_in(*, methods: Table, option_packages: Table, client_counts: Table) -> None:
    """Store registries: methods, packages with option files, and functions that count a data set's clients.

    `client_counts`: by the name of a data set what counts its clients, from its path and columns.

    :mod:`gdpfed.methods` does this when it is imported, so that nothing here imports a method.
    """
    _tables.update(methods=methods, option_packages=option_packages, client_counts=client_counts)


def _table(kind: str) -> Table:
    if kind not in _tables:
        raise ConfigError("no method is known yet: import gdpfed.methods before a configuration is made")
    return _tables[kind]


def set_client_count(dataset: DictConfig) -> None:
    """Count a data set's clients in its files, if the configuration does not state their number.

    Raises InputError: they do not say it, or cannot be read.
    """
    if OmegaConf.is_missing(dataset, "num_clients"):
        dataset.num_clients = _table("client_counts").get(dataset.name)(dataset.path, dataset.columns)


def option_directories() -> list[Path]:
    """Return all directories of YAML option files: our own, those of packages, and those made at run time.

    Raises ConfigError: an entry point that is not a package.
    """
    packages = [_directory(name) for name in _table("option_packages").names()]
    return [OWN_DIRECTORY, *packages, *_made]


_made: list[Path] = []
"""A list with the folder of options that were made in this process; empty if there are none."""
OPTION_NAME = re.compile(r"[A-Za-z0-9][\w-]*")


def add_dataset_option(name: str, values: Mapping[str, Any]) -> None:
    """Add a choice ``dataset=<name>`` in this process: ``dataset=npz`` with the settings in `values`.

    `values`: of its settings, as in ``{"num_clients": 20}``; all others are those of ``dataset=npz``.

    Raises ConfigError: a name that cannot be one, that an option has, or a setting that no data set has.
    """
    if not OPTION_NAME.fullmatch(name):
        raise ConfigError(f"a data set cannot be called {name!r}: use letters, digits, '_' and '-'")
    known = [field.name for field in fields(DatasetConfig) if field.name != "name"]
    for key in values:
        if key not in known:
            raise ConfigError(not_known(f"setting 'dataset.{key}'", known))
    for directory in option_directories():
        if (directory / "dataset" / f"{name}.yaml").exists():
            raise ConfigError(f"there is an option dataset={name} already: register yours under another name")
    if not _made:
        folder = Path(tempfile.mkdtemp(prefix="gdpfed-options-")).resolve()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / "dataset").mkdir()
        _made.append(folder)
    option = {"defaults": ["npz", "_self_"], "name": name, **values}
    (_made[0] / "dataset" / f"{name}.yaml").write_text(yaml.safe_dump(option, sort_keys=False), "utf-8")


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
    """Return the dataclass of every method's options, by the method's name.

    Raises ConfigError: a method that cannot be imported, that two packages name, or whose ``config_class`` is
    no :class:`~conf.schema.MethodConfig`.
    """
    return {name: method_config(name) for name in _table("methods").names()}


def method_config(name: str) -> type[MethodConfig]:
    """Return the dataclass of one method's options, without importing other methods.

    Raises ConfigError: as :func:`method_configs`.
    """
    config_class = getattr(_table("methods").get(name), "config_class", None)
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise ConfigError(
            f"method '{name}' has config_class {config_class!r}: make it a dataclass that extends "
            "conf.schema.MethodConfig"
        )
    return config_class


Methods = tuple[tuple[str, type[MethodConfig]], ...]
SCHEMA = "schema_"
_DEFAULT_METHOD = re.compile(r"^\s*-\s*method:\s*(\S+)", re.MULTILINE)


def methods_of(option: str | None) -> Methods:
    """Return the methods that a method's YAML file of options is based on, directly or through other files.

    Importing all methods takes some tenths of a second. `option`: its name; None for the default.

    Raises ConfigError: as :func:`method_configs`, of these methods.
    """
    if option is None:
        config = (OWN_DIRECTORY / "config.yaml").read_text(encoding="utf-8")
        option = "".join(_DEFAULT_METHOD.findall(config))
    known = _table("methods").names()
    waiting, seen, found = [option], set[str](), [option] if option in known else []
    while waiting:
        name = waiting.pop()
        if name.startswith(SCHEMA):
            found.append(name.removeprefix(SCHEMA))
        elif name not in seen:
            seen.add(name)
            waiting += _starts_from(name)
    return tuple((name, method_config(name)) for name in sorted(set(found)) if name in known)


def _starts_from(option: str) -> list[str]:
    """Return the names in the ``defaults`` list of a method's YAML file, without their folders."""
    paths = [directory / "method" / f"{option}.yaml" for directory in option_directories()]
    try:
        return [name for path in paths if path.is_file() for name in _defaults_in(path.read_text("utf-8"))]
    except yaml.YAMLError:
        # Hydra says what is wrong with it.
        return []


@lru_cache(maxsize=64)
def _defaults_in(text: str) -> tuple[str, ...]:
    """Return the names in the ``defaults`` list of a YAML file's text, without their folders."""
    values = yaml.safe_load(text)
    names = (values.get("defaults") or []) if isinstance(values, dict) else []
    return tuple(name.rpartition("/")[2] for name in names if isinstance(name, str))


Choices = tuple[tuple[str, str], ...]

ANOTHER_GROUP = re.compile(r"^\s*-\s*(override\b|[\"']?/)|@package|@_global_", re.MULTILINE)
"""Matches lines in which a YAML file of options sets something outside of its own settings group."""


def chosen_options(options: Mapping[str, str], directories: tuple[Path, ...], methods: Methods) -> DictConfig:
    """Return the settings that Hydra composes from chosen YAML files, before single values are set.

    Hydra takes some tenths of a second for all groups. Where no option file says anything of another group,
    it composes only what no earlier tree has, and a tree is put together of groups. `options`: the chosen
    file by group, as in ``{"dataset": "fmnist"}``; others are as by default. `directories`: where option
    files are, the project's own first. `methods`: the schemas that Hydra knows.
    """
    return cast("DictConfig", pickle.loads(_packed(tuple(options.items()), directories, methods)))  # noqa: S301


@lru_cache(maxsize=64)
def _packed(chosen: Choices, directories: tuple[Path, ...], methods: Methods) -> bytes:
    """Return the composed settings of the chosen options as pickled bytes, a form that is fast to copy."""
    return pickle.dumps(_tree(chosen, directories, methods))


@lru_cache(maxsize=64)
def _tree(chosen: Choices, directories: tuple[Path, ...], methods: Methods) -> DictConfig:
    options, known = dict(chosen), _known(directories)
    (first, *others) = parts = [
        (group, options.get(group), methods if group == "method" else ()) for group in groups()
    ]
    alone = _each_group_is_alone(directories)
    asked = {part[0]: part for part in parts if not (alone and part in known)}
    if asked:
        searched = ",".join(f"'file://{directory}'" for directory in directories[1:])
        choices = (f"{group}={name}" for group, name in chosen if group in asked)
        unread = (*_groups_of_hydra(), *groups()) if alone else ()
        left_out = (f"~{group}" for group in unread if group not in asked)
        with initialized(methods):
            try:
                made = compose("config", overrides=[f"hydra.searchpath=[{searched}]", *choices, *left_out])
            except HydraException as error:
                raise ConfigError(_refusal(str(error), directories, dict(methods))) from None
        known |= dict.fromkeys(asked.values(), made)
        if len(asked) == len(parts):
            return made
    tree = deepcopy(known[first])
    for part in (each for each in others if known[each] is not known[first]):
        tree[part[0]] = known[part][part[0]]
    return tree


_IN_FILE = re.compile(r"In '(\w+)/([\w-]+)': (?:\w+ raised while composing config:)?(.*)", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"Key '\w+' not in '(\w+)'")
_NOT_LOADED = re.compile(r"Could not load '\w+/([^']+)'")


def _refusal(text: str, directories: tuple[Path, ...], methods: Mapping[str, type[MethodConfig]]) -> str:
    """Turn what Hydra says of an option file into one line that names the file and what is wrong in it."""
    found = _IN_FILE.search(text)
    if found is None:
        return f"an option file cannot be used: {' '.join(text.split())}"
    group, name, said = found.groups()
    places = (directory / group / f"{name}.yaml" for directory in directories)
    place = next((str(path) for path in places if path.exists()), f"{group}={name}")
    reason, _, key = said.partition("full_key: ")
    setting = key.split()[0] if key else group
    if (missing := _NOT_LOADED.search(reason)) is not None:
        names = _table("methods").names() if group == "method" else []
        schemas = [f"{SCHEMA}{each}" for each in names] or ["schema"]
        return not_known(f"{place}: among its defaults '{missing[1]}'", schemas)
    if (unknown := _UNKNOWN_KEY.search(reason)) is not None:
        kinds = [*methods.values(), *(cast("type[Any]", field.type) for field in fields(Config))]
        known = [each.name for kind in kinds if kind.__name__ == unknown[1] for each in fields(kind)]
        return not_known(f"{place}: setting '{setting}'", known)
    return f"{place}: {setting}: {' '.join(reason.split())}"


def _groups_of_hydra() -> list[str]:
    """Return the names of Hydra's own setting groups, which can be left out to make Hydra faster."""
    chosen = (default for default in HydraConf().defaults if isinstance(default, dict))
    return [f"hydra/{group}" for default in chosen for group, name in default.items() if name is not None]


def groups() -> list[str]:
    """Return the names of all groups of settings."""
    return sorted(section.name for section in fields(Config))


@lru_cache(maxsize=8)
def _known(directories: tuple[Path, ...]) -> dict[tuple[str, str | None, Methods], DictConfig]:
    """Return the cache of composed configurations; its keys are (group, option or None for default, methods).

    The methods are empty unless the group is ``method``. In a cached configuration, only the settings
    of the named group are sure to be complete: other groups may have the schema alone.
    """
    return {}


@lru_cache(maxsize=8)
def _each_group_is_alone(directories: tuple[Path, ...]) -> bool:
    files = (path for directory in directories for path in directory.glob("*/*.yaml"))
    return not any(ANOTHER_GROUP.search(path.read_text(encoding="utf-8")) for path in files)


@contextmanager
def initialized(methods: Methods) -> Iterator[None]:
    """Have Hydra know only these methods, and find our YAML files of options; one thread at a time."""
    with _ONE_HYDRA:
        _register_schema(methods)
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(OWN_DIRECTORY), version_base="1.3"):
            yield


@lru_cache(maxsize=1)
def _register_schema(methods: Methods) -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, node in (
        ("dataset", DatasetConfig),
        ("training", TrainingConfig),
        ("privacy", PrivacyConfig),
        ("secagg", SecAggConfig),
        ("run", RunConfig),
        ("simulation", SimulationConfig),
    ):
        store.store(group=group, name="schema", node=node)
    # A launcher hands the store to other processes, which may not have the class of a method that is gone.
    store.repo.pop("method", None)
    for name, method in methods:
        store.store(group="method", name=f"{SCHEMA}{name}", node=method)
