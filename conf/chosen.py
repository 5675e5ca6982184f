"""The one call of Hydra: it selects an option file of each group. Results are cached."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from conf.extensions import OWN_DIRECTORY
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

Methods = tuple[tuple[str, type[MethodConfig]], ...]
Choices = tuple[tuple[str, str], ...]

ANOTHER_GROUP = re.compile(r"^\s*-\s*(override\b|[\"']?/)|@package|@_global_", re.MULTILINE)
"""How an option file would choose or set what is not of its group."""


def chosen_options(options: Mapping[str, str], directories: tuple[Path, ...], methods: Methods) -> DictConfig:
    """What Hydra composes of option files alone, as a tree of the caller's own.

    Hydra takes some tenths of a second for any composition. Where no option file says anything of another
    group, a tree is put together of what other compositions had of each group. `options`: the chosen file by
    group, as in ``{"dataset": "fmnist"}``; others are as by default. `directories`: where option files are,
    the project's own first. `methods`: the schema of every method.
    """
    return deepcopy(_tree(tuple(options.items()), directories, methods))


@lru_cache(maxsize=64)
def _tree(chosen: Choices, directories: tuple[Path, ...], methods: Methods) -> DictConfig:
    options, known = dict(chosen), _known(directories, methods)
    (first, *others) = parts = [(group, options.get(group)) for group in groups()]
    if not (all(part in known for part in parts) and _each_group_is_alone(directories)):
        made = _composed(tuple(f"{group}={name}" for group, name in chosen), directories, methods)
        known |= dict.fromkeys(parts, made)
        return made
    tree = deepcopy(known[first])
    for part in others:
        tree[part[0]] = known[part][part[0]]
    return tree


def groups() -> list[str]:
    """The names of all groups of settings."""
    return sorted(section.name for section in fields(Config))


@lru_cache(maxsize=8)
def _known(directories: tuple[Path, ...], methods: Methods) -> dict[tuple[str, str | None], DictConfig]:
    """A tree that has each option of each group, None being the default; filled as trees are made."""
    return {}


@lru_cache(maxsize=8)
def _each_group_is_alone(directories: tuple[Path, ...]) -> bool:
    files = (path for directory in directories for path in directory.glob("*/*.yaml"))
    return not any(ANOTHER_GROUP.search(path.read_text(encoding="utf-8")) for path in files)


def _composed(choices: tuple[str, ...], directories: tuple[Path, ...], methods: Methods) -> DictConfig:
    _register_schema(methods)
    GlobalHydra.instance().clear()
    others = ",".join(f"'file://{directory}'" for directory in directories[1:])
    with initialize_config_dir(config_dir=str(OWN_DIRECTORY), version_base="1.3"):
        return compose("config", overrides=[f"hydra.searchpath=[{others}]", *choices])


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
    for name, method in methods:
        store.store(group="method", name=f"schema_{name}", node=method)
