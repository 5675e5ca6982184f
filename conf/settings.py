"""List every setting with its type, default and comment, from the dataclasses and YAML files of options."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf

from conf.errors import ConfigError
from conf.load import compose_options, options
from conf.option_files import OWN_DIRECTORY, groups, method_configs
from conf.schema import Config, MethodConfig
from conf.schema.ranges import plain
from conf.suggestions import nearest

_COMMENT = re.compile(r"^(\w+):\s.*?\s#\s+(.+)$", re.MULTILINE)
_KEY = re.compile(r"^(\w+):", re.MULTILINE)
_HEADER = re.compile(r"\A(?:#.*\n)+")
_REFERENCE = re.compile(r"\$\{(.+)\}")
_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


@dataclass(frozen=True)
class Setting:
    """One setting of a run: its key, default, type and comment.

    Attributes:
        key: its dotted name, as in ``privacy.delta``.
        default: its value where nothing else is said.
        kind: what it may be, as in "number or null"; empty where its words alone say it.
        source: the setting whose value it has by default; empty where it has one of its own.
        words: what it is for.
        owners: the methods that have it with this default; empty for a setting of every configuration.
    """

    key: str
    default: str
    kind: str
    source: str
    words: str
    owners: tuple[str, ...] = ()


@dataclass(frozen=True)
class SettingGroup:
    """A group of settings, with a description of each option, as in ``{"off": "No masks, ..."}``.

    `chosen`: the option whose defaults are shown.
    """

    name: str
    options: Mapping[str, str]
    chosen: str
    settings: tuple[Setting, ...]


def setting_groups(choices: Sequence[str] = (), names: Sequence[str] = ()) -> list[SettingGroup]:
    """Return the settings of all methods by group; choices such as ``dataset=fmnist`` select the defaults.

    `names`: of the groups that are wanted; without them all are. Raises ConfigError: a choice that there is
    not.
    """
    composed = compose_options(choices)
    wanted = [each.name for each in fields(Config) if not names or each.name in names]
    return [_group(name, composed, choices) for name in wanted]


def counted_groups() -> dict[str, tuple[int, int]]:
    """Return the number of options and settings of each group, counted over all methods."""
    schemas: dict[str, Any] = {each.name: each.type for each in fields(Config)}
    sizes = {}
    for name, schema in schemas.items():
        files = options(name)
        keys = {field.name for field in fields(MethodConfig if name == "method" else schema)}
        if name == "method":
            # Option files have all settings of their methods, which take some tenths of a second to import.
            texts = (path.read_text(encoding="utf-8") for path in files.values())
            keys |= {key for text in texts for key in _KEY.findall(text)}
        sizes[name] = len(files), len(keys - {"name", "defaults"})
    return sizes


def search(found: Sequence[SettingGroup], words: Sequence[str]) -> list[SettingGroup]:
    """Return the groups and settings that match all words: groups by name, settings by name or comment.

    Raises ConfigError: nothing matches; it names what is nearest.
    """
    kept = [
        SettingGroup(
            group.name,
            group.options if not words or group.name in words else {},
            group.chosen,
            tuple(each for each in group.settings if all(_matches(group.name, each, word) for word in words)),
        )
        for group in found
    ]
    shown = [group for group in kept if group.settings]
    if not shown:
        known = [setting.key for group in found for setting in group.settings]
        near = nearest(words[-1], [*known, *groups()])
        hint = f"; did you mean '{near}'?" if near else ""
        raise ConfigError(f"no setting has '{' '.join(words)}' in its name or description{hint}")
    return shown


def _matches(group: str, setting: Setting, word: str) -> bool:
    if word in groups():
        return word == group
    return word.casefold() in f"{setting.key} {setting.words}".casefold()


def _group(name: str, composed: DictConfig, choices: Sequence[str]) -> SettingGroup:
    texts = {option: path.read_text(encoding="utf-8") for option, path in options(name).items()}
    chosen = dict(choice.split("=", 1) for choice in [*_default_choices(), *choices])[name]
    found = _method_settings(texts) if name == "method" else _settings(name, chosen, composed, texts)
    return SettingGroup(name, {option: _header(text) for option, text in texts.items()}, chosen, found)


def _default_choices() -> list[str]:
    text = (OWN_DIRECTORY / "config.yaml").read_text(encoding="utf-8")
    entries = (default for default in yaml.safe_load(text)["defaults"] if isinstance(default, dict))
    return [f"{group}={option}" for entry in entries for group, option in entry.items()]


def _header(text: str) -> str:
    """Return an option's description: the comment at the beginning of its YAML file; "" if there is none."""
    header = _HEADER.match(text)
    return " ".join(line.strip("# ") for line in header.group().splitlines()) if header else ""


def _settings(name: str, chosen: str, composed: DictConfig, texts: Mapping[str, str]) -> tuple[Setting, ...]:
    comments = dict(_COMMENT.findall("\n".join([*texts.values(), texts[chosen]])))
    raw: Any = OmegaConf.to_container(composed[name], resolve=False)
    schema: Any = {field.name: field.type for field in fields(Config)}[name]
    return tuple(
        _setting(f"{name}.{field.name}", field.type, raw[field.name], composed, comments.get(field.name, ""))
        for field in fields(schema)
        if field.name != "name"
    )


def _method_settings(texts: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return the settings of all methods; a setting appears once for each different default."""
    comments = dict(_COMMENT.findall("\n".join(texts.values())))
    found: dict[tuple[str, str], Setting] = {}
    for method, schema in method_configs().items():
        composed = compose_options([f"method={method}"])
        for field in fields(schema):
            key, value = f"method.{field.name}", composed.method[field.name]
            if field.name == "name":
                continue
            one = _setting(key, field.type, value, composed, comments.get(field.name, ""))
            owners = (*found[key, one.default].owners, method) if (key, one.default) in found else (method,)
            found[key, one.default] = Setting(key, one.default, one.kind, "", one.words, owners)
    shared = {f"method.{field.name}" for field in fields(MethodConfig)}
    return tuple(
        sorted(found.values(), key=lambda setting: (setting.key not in shared, setting.key, setting.default))
    )


def _setting(key: str, annotation: Any, raw: Any, composed: DictConfig, words: str) -> Setting:
    reference = _REFERENCE.fullmatch(raw) if isinstance(raw, str) else None
    return Setting(
        key=key,
        default=_text(OmegaConf.select(composed, key)),
        kind="" if "|" in words else _kind(annotation),
        source=reference.group(1) if reference else "",
        words=words,
    )


def _kind(annotation: Any) -> str:
    """Return the name of a setting's type, as in "list of numbers"; empty for types without a short name."""
    annotation = plain(annotation)
    if get_origin(annotation) in (Union, UnionType):
        inner, *_ = (each for each in get_args(annotation) if each is not NoneType)
        return f"{_kind(inner)} or null"
    if get_origin(annotation) is list:
        return f"list of {_kind(get_args(annotation)[0])}s"
    return _KINDS.get(annotation, "")


def _text(value: Any) -> str:
    """Return a setting's value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if OmegaConf.is_list(value) or isinstance(value, list):
        return f"[{','.join(_text(each) for each in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
