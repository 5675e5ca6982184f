"""Reads settings from YAML files named on the command line, as in ``gdpfed simulate mine.yaml``.

Such a file has the form of Hydra's own: options of groups below ``defaults``, and values by group and key.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpfed.cli.command import named_path
from gdpfed.errors import ConfigError, words_of

ENDINGS = (".yaml", ".yml")


def written_out(words: Sequence[str]) -> list[str]:
    """Replace each YAML file on a command line by its settings (key=value); settings given directly win.

    Raises ConfigError: no such file, one that is not YAML, or that holds something else than settings.
    """
    if not any(_is_file(word) for word in words):
        return list(words)
    said = {word.partition("=")[0] for word in words if not _is_file(word)}
    found: list[str] = []
    for word in words:
        more = settings_in(named_path(word)) if _is_file(word) else [word]
        found += [each for each in more if each == word or each.partition("=")[0] not in said]
    return found


def _is_file(word: str) -> bool:
    return "=" not in word and word.endswith(ENDINGS)


def settings_in(path: Path) -> list[str]:
    """Return the settings in a YAML file as words such as ``dataset=csv`` and ``dataset.path='...'``.

    Raises ConfigError: as :func:`written_out`.
    """
    from gdpfed.yaml_files import read_yaml

    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or words_of(error)
        raise ConfigError(f"{path} cannot be read ({reason}): name a file as gdpfed new writes it") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} holds no settings: write group: and below it key: value")
    words: list[str] = []
    defaults = content.get("defaults", [])
    for entry in defaults if isinstance(defaults, list) else [defaults]:
        if entry == "_self_":
            continue
        if not isinstance(entry, Mapping) or not all(isinstance(each, str) for each in entry.values()):
            raise ConfigError(f"{path}: defaults has {entry!r}: write a group: option, as in - dataset: csv")
        words += [f"{group}={option}" for group, option in entry.items()]
    for group, values in content.items():
        if group == "defaults":
            continue
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path}: {group}: {values!r} is not a group: write key: value below it")
        words += [f"{group}.{key}={_in_hydras_words(value)}" for key, value in values.items()]
    return words


def _in_hydras_words(value: Any) -> str:
    """Write a value from YAML in Hydra's syntax for settings on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydras_words, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_in_hydras_words(each)}' for key, each in value.items())}}}"
    if isinstance(value, str):
        from conf.load import hydra_string

        return hydra_string(value)
    return repr(value)
