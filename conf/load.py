"""The one Hydra call: overrides in, a checked :class:`~conf.schema.Config` out."""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.extensions import OWN_DIRECTORY, method_configs, option_directories
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
from gdpfed.errors import ConfigError

PATHS = (
    "dataset.path",
    "run.directory",
    "run.resume",
    "secagg.roster_file",
    "secagg.consortium_key",
    "run.mlflow",
)


def _register_schema(methods: Mapping[str, type[MethodConfig]]) -> None:
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
    for name, method in methods.items():
        store.store(group="method", name=f"schema_{name}", node=method)


def _compose(overrides: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    others = ",".join(f"'file://{directory}'" for directory in option_directories()[1:])
    with initialize_config_dir(config_dir=str(OWN_DIRECTORY), version_base="1.3"):
        return compose("config", overrides=[f"hydra.searchpath=[{others}]", *overrides])


def options(group: str) -> list[str]:
    """The option files of a configuration group, as in ``dataset=<option>``, of all packages.

    Raises:
        ConfigError: two files for one option.
    """
    found: dict[str, Path] = {}
    for path in chain(*((directory / group).glob("*.yaml") for directory in option_directories())):
        if path.stem in found:
            raise ConfigError(f"{group}={path.stem} is {found[path.stem]} and {path}: rename one of them")
        found[path.stem] = path
    return sorted(found)


def _known_keys(overrides: Sequence[str]) -> list[str]:
    """Every dotted key of the configuration that the group choices among the overrides select."""
    chosen = dict(o.split("=", 1) for o in overrides if o.partition("=")[0] in _groups())
    choices = [f"{group}={option}" for group, option in chosen.items()]
    tree = OmegaConf.to_container(_compose(choices), resolve=False)
    sections = cast("dict[str, dict[str, object]]", tree)
    return [f"{group}.{key}" for group, section in sections.items() for key in section]


def _groups() -> list[str]:
    return sorted(section.name for section in fields(Config))


def _is_choice(override: str) -> bool:
    group, _, option = override.partition("=")
    return option in options(group)


def hydra_string(text: str) -> str:
    """A quoted value in Hydra's override grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _with_quoted_path(override: str) -> str:
    """Quote the value of a path, which may hold what has a meaning in Hydra's grammar, as ~ and commas do.

    Raises:
        ConfigError: the home directory of nobody.
    """
    key, equals, value = override.partition("=")
    if key not in PATHS or not value or value == "null" or value[0] in "'\"" or "${" in value:
        return override
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ConfigError(f"{override}: there is no user of that name here, write the whole path") from None
    return f"{key}{equals}{hydra_string(value)}"


def _check_form(overrides: Sequence[str]) -> None:
    """Refuse what Hydra would take but this configuration has no use for."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if not (equals and key and value) or key.startswith(("+", "~")):
            raise ConfigError(f"'{override}' is not an override of the form key=value")
        if key in _groups() and not _is_choice(override):
            raise ConfigError(f"{key}={value} is not one of {', '.join(options(key))}")


def _explain(overrides: Sequence[str], error: Exception) -> str:
    """One line that names the override at fault and what would be accepted."""
    known = _known_keys(overrides)
    for key in (override.partition("=")[0] for override in overrides):
        if key not in known and key not in _groups():
            return f"there is no setting '{key}'{_suggestion(key, known, overrides)}"
    cause = error.__cause__
    lines = [str(error), str(cause) if cause else ""]
    return ": ".join(" ".join(text.partition("full_key")[0].split()) for text in lines if text)


def _suggestion(key: str, known: Sequence[str], overrides: Sequence[str]) -> str:
    methods = method_configs() if key.startswith("method.") else ()
    owners = [name for name in methods if key in _known_keys([*overrides, f"method={name}"])]
    if owners:
        return f" for this method; it belongs to method={' or method='.join(owners)}"
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    siblings = [k for k in known if k.partition(".")[0] == key.partition(".")[0]]
    return f"; there are {', '.join(siblings or _groups())}"


def load(overrides: Sequence[str] = ()) -> Config:
    """Compose the configuration from option files and overrides, as in ``["dataset=fmnist"]``.

    Raises:
        ConfigError: an unknown key or option, a wrong type, or a value out of range; one line that
            names it and what would be accepted.
    """
    methods = method_configs()
    _register_schema(methods)
    _check_form(overrides)
    overrides = [_with_quoted_path(override) for override in overrides]
    try:
        config = cast("Config", OmegaConf.to_object(_compose(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(overrides, error)) from None
    name = config.method.name
    renamed = any(override.startswith("method.name=") for override in overrides)
    if renamed or methods.get(name) is not type(config.method):
        raise ConfigError(f"method.name={name} cannot be changed by itself: choose method={name}")
    config.validate()
    if config.privacy.planned_groups is not None:
        config.method.settle(config.privacy.planned_groups)
    return config


def split(overrides: str) -> list[str]:
    """Split the one string that Flower's run configuration can carry, by the rules of a shell."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"overrides={overrides!r} cannot be split into words: {error}") from None


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML, readable and complete."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def from_yaml(text: str) -> Any:
    """What :func:`to_yaml` wrote, as plain data; of a run that older code has saved as well.

    Before there was the group training, clients trained with what stood with the data set.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    settings = yaml.safe_load(text)
    if isinstance(settings, dict) and isinstance(settings.get("dataset"), dict):
        recommended = {key: settings["dataset"].get(key) for key in TrainingConfig.__dataclass_fields__}
        settings.setdefault("training", recommended)
    return settings
