"""Turn settings (key=value) into a checked :class:`~conf.schema.Config`."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.errors import ConfigError, not_known, words_of
from conf.option_files import (
    chosen_options,
    groups,
    method_config,
    methods_of,
    option_directories,
    set_client_count,
)
from conf.per_client import set_numbers, taken, user_path
from conf.schema import CHOOSABLE, Config
from conf.suggestions import as_one_run, suggestion
from conf.value_text import key_twice, other_number, unpaired_sign

PATHS = (
    "dataset.path",
    "dataset.columns",
    "dataset.test_path",
    "dataset.weights",
    "run.directory",
    "run.resume",
    "secagg.roster_file",
    "secagg.consortium_key",
    "run.mlflow",
    "run.mailbox",
)

_IN_QUOTES = "in a shell put the whole setting in quotes, as in 'privacy.budgets=[1, 3, 6]'"
_IN_BRACES = "in a shell put the whole setting in quotes, as in 'privacy.client_budgets={bonn: 1, fulda: 6}'"
_UNREAD = re.compile(r"Value '(?P<value>.*?)'.* could not be converted to (?P<kind>\w+)")
_NO_LIST = re.compile(r"Error merging override (\S+).* is not a ListConfig", re.DOTALL)
_NO_NULL = re.compile(
    r"Error merging override (([^=]+)=.*?) (?:field .* is not Optional|Invalid type assigned: NoneType)"
)
_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}


def _compose(overrides: Sequence[str]) -> DictConfig:
    """Let Hydra choose the YAML files of options, and set single values in the result."""
    chosen = [override for override in overrides if override.partition("=")[0] in groups()]
    options = dict(override.split("=", 1) for override in chosen)
    tree = chosen_options(options, tuple(option_directories()), methods_of(options.get("method")))
    values = OverridesParser.create().parse_overrides([each for each in overrides if each not in chosen])
    models = [value.value() for value in values if value.key_or_group == "dataset.model"]
    if models and models[-1] != tree.dataset.model:
        # An option file's model_options are those of its model.
        tree.dataset.model_options = None
    elif tree.dataset.model_options is not None:
        # Which options there are is for the model to say.
        OmegaConf.set_struct(tree.dataset.model_options, False)
    for override in values:
        _set_value(tree, override)
    return tree


def _set_value(tree: DictConfig, override: Override) -> None:
    if override.is_sweep_override():
        several = "stands for several runs: 'gdpfed simulate --multirun' trains them"
        key, _, value = str(override.input_line).partition("=")
        raise ConfigError(f"{override.input_line} {several}{as_one_run(key, value, tree)}")
    if override.package is not None:
        raise ConfigError(f"'{override.input_line}' is not an override of the form key=value")
    try:
        OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException as error:
        raise HydraException(f"Error merging override {override.input_line}") from error


def compose_options(choices: Sequence[str]) -> DictConfig:
    """Return the unchecked, unresolved configuration for choices such as ``["dataset=fmnist"]``.

    Raises ConfigError: a choice that there is not.
    """
    _check_form(choices)
    for choice in choices:
        if choice.partition("=")[0] not in groups():
            raise ConfigError(f"'{choice}' chooses no option: the groups are {', '.join(groups())}")
    return _compose(choices)


def options(group: str) -> dict[str, Path]:
    """Return the YAML files of a settings group, by the name that chooses the file, as in ``dataset=<name>``.

    Raises ConfigError: two files for one option.
    """
    found: dict[str, Path] = {}
    for path in chain(*((directory / group).glob("*.yaml") for directory in option_directories())):
        if path.stem in found:
            raise ConfigError(f"{group}={path.stem} is {found[path.stem]} and {path}: rename one of them")
        found[path.stem] = path
    return dict(sorted(found.items()))


def _known_keys(overrides: Sequence[str]) -> list[str]:
    """Return the names of all settings, such as ``run.seed``, that exist under the chosen options."""
    chosen = dict(o.split("=", 1) for o in overrides if o.partition("=")[0] in groups())
    choices = [f"{group}={option}" for group, option in chosen.items()]
    tree = OmegaConf.to_container(_compose(choices), resolve=False)
    sections = cast("dict[str, dict[str, object]]", tree)
    return [f"{group}.{key}" for group, section in sections.items() for key in section]


def hydra_string(text: str) -> str:
    """Quote a text as a value for Hydra's command-line grammar, where backslashes escape only a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def with_quoted_path(override: str) -> str:
    """Quote the path in a setting (key=value), since Hydra's grammar gives ~ and commas a meaning.

    Raises ConfigError: the home directory of nobody.
    """
    key, equals, value = override.partition("=")
    if key not in PATHS or not value or value == "null" or value[0] in "'\"":
        return override
    user_path(key, value)
    return f"{key}{equals}{hydra_string(value)}"


def _check_form(overrides: Sequence[str]) -> None:
    """Raise ConfigError for settings (key=value) that Hydra accepts but a run does not support."""
    refuse_twice([each for each in overrides if each.partition("=")[0] == "method"])
    for override in overrides:
        key, equals, value = override.partition("=")
        if not (equals and key and value) or key.startswith(("+", "~")):
            raise ConfigError(f"'{override}' is not an override of the form key=value")
        if (twice := key_twice(value)) is not None:
            raise ConfigError(f"'{override}' says the key '{twice}' twice: say it once")
        if key not in PATHS and (word := other_number(value)) is not None:
            raise ConfigError(f"'{override}' has {word!r} for a number: write it in the digits 0 to 9 alone")
        if "${" in override:
            raise ConfigError(f"'{override}' refers to another value: write what it stands for")
        if key in groups() and value not in options(key):
            if key == "method":
                # A package's method that cannot be used says why.
                methods_of(value)
            several = "; 'gdpfed simulate --multirun' takes several" if "," in value else ""
            raise ConfigError(f"{not_known(f'{key}={value}', options(key))}{several}")
        if key not in PATHS and (sign := unpaired_sign(value)) is not None:
            remedy = _IN_BRACES if "{" in sign or "}" in sign else _IN_QUOTES
            raise ConfigError(f"{override} {sign}: {remedy}")
        if key == "dataset.name":
            raise ConfigError(f"{override} cannot be changed by itself: choose dataset={value}")


def _explain(overrides: Sequence[str], error: Exception) -> str:
    """Turn an error of Hydra into one line that names the wrong setting and says what is accepted."""
    known = _known_keys(overrides)
    for key in (override.partition("=")[0] for override in overrides):
        if key not in known and key not in groups():
            return f"setting '{key}' is not known{suggestion(key, known)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read: a text with signs needs quotes of its own, and {_IN_QUOTES}"
    cause = error.__cause__
    if (found := _NO_LIST.search(f"{error} {cause}")) is not None:
        key, _, value = found[1].partition("=")
        return f"{key}={value} is not a list: write {key}=[{value}]"
    if (found := _NO_NULL.search(f"{error} {cause}")) is not None:
        return f"{found[1]} has null in place of a value: give one, or leave {found[2]} out for its default"
    unread = _UNREAD.search(f"{error} {cause}")
    if unread is not None:
        # Of 1e3, say, the error has 1000.0: then the setting is known by its key.
        found = re.search(r"full_key: (\S+)", f"{error} {cause}")
        named = "" if found is None else f"{found[1]}="
        given = [
            each
            for each in overrides
            if each.endswith(f"={unread['value']}") or (named and each.startswith(named))
        ]
        value = given[-1] if given else unread["value"]
        if not given and found is not None:
            # An entry of a list, whose key ends with its index: privacy.group_edges[1].
            value = f"{found[1].partition('[')[0]}: {value}"
        return f"{value} is not {_KINDS.get(unread['kind'], unread['kind'])}"
    lines = [str(error), str(cause) if cause else ""]
    return ": ".join(" ".join(text.partition("full_key")[0].split()) for text in lines if text)


def given_value(overrides: Sequence[str], key: str) -> Any:
    """Return the last value that settings (key=value) give to a key, or None if no setting has this key.

    Raises ConfigError: a value that Hydra cannot read.
    """
    words = [with_quoted_path(override) for override in overrides if override.partition("=")[0] == key]
    try:
        return OverridesParser.create().parse_override(words[-1]).value() if words else None
    except HydraException as error:
        raise ConfigError(f"'{words[-1]}': {words_of(error)}") from None


def _go_on(
    composed: DictConfig, overrides: Sequence[str], begun: Mapping[str, Any], forgotten: Collection[str]
) -> None:
    """Set each setting to its value in the resumed run, unless the user gives the setting anew."""
    given = {".".join(override.partition("=")[0].split(".")[:2]) for override in overrides}
    for group, settings in begun.items():
        replaced = _replaced(group, composed, settings) if group in given else ()
        for key, value in settings.items():
            name = f"{group}.{key}"
            if name in given or name in forgotten or key in replaced:
                continue
            if _refers(value):
                raise ConfigError(
                    f"the run's {name} is {value}, which refers to another value or to a variable: a run "
                    "never writes that, so its files were changed; restore them from a copy"
                )
            if key not in composed.get(group, {}):
                raise ConfigError(
                    f"setting '{name}' of the run is not known here: resume it with the gdpfed that began it"
                )
            OmegaConf.update(composed, name, value, merge=False)


def _refers(value: Any) -> bool:
    """Whether a setting's value contains a reference ``${...}`` to another setting, at any depth."""
    if isinstance(value, Mapping):
        return any(_refers(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(map(_refers, value))
    return isinstance(value, str) and "${" in value


def _replaced(group: str, composed: DictConfig, settings: Mapping[str, Any]) -> Collection[str]:
    """Return a resumed run's settings that no longer hold because another option, say a method, is chosen."""
    if "name" in composed[group]:
        return () if composed[group].name == settings.get("name") else settings.keys()
    trees = [_compose([f"{group}={option}"])[group] for option in options(group)]
    return [key for key in settings if any(tree.get(key) != trees[0].get(key) for tree in trees)]


def load(
    overrides: Sequence[str] = (), *, begun: Mapping[str, Any] | None = None, forgotten: Collection[str] = ()
) -> Config:
    """Load a run's checked configuration from YAML files and settings such as ``["dataset=fmnist"]``.

    `overrides`: what is set. `begun`: the settings of a run that goes on, by group and key: they stand in the
    place of all that the overrides do not name. `forgotten`: dotted keys that are not taken from it. Raises
    InputError: an unknown key or option, a wrong type, or a value out of range, and what would be accepted.
    """
    _check_form(overrides)
    overrides = [with_quoted_path(override) for override in overrides]
    if begun is not None and given_value(overrides, "method") is None:
        overrides = [f"method={begun.get('method', {}).get('name')}", *overrides]
    read, per_client = taken(overrides)
    try:
        composed = _compose(read)
        if begun is not None:
            _go_on(composed, overrides, begun, forgotten)
        set_client_count(composed.dataset)
        config = cast("Config", OmegaConf.to_object(composed))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(overrides, error)) from None
    except yaml.YAMLError as error:
        # Such as a key that is said twice.
        raise ConfigError(f"an option file is not YAML: {words_of(error)}") from None
    name = config.method.name
    renamed = any(override.startswith("method.name=") for override in overrides)
    if renamed or name not in options("method") or method_config(name) is not type(config.method):
        raise ConfigError(f"method.name={name} cannot be changed by itself: choose method={name}")
    set_numbers(config, per_client)
    if begun is None:
        _note_what_is_open(config, overrides)
    config.validate()
    return config


def _note_what_is_open(config: Config, overrides: Sequence[str]) -> None:
    """If the method chooses settings itself, tell it which ones the user has not set."""
    if getattr(config.method, "chosen", ()) is None:
        named = {override.partition("=")[0].rpartition(".")[2] for override in overrides}
        config.method.chosen = [key for key in CHOOSABLE if key.rpartition(".")[2] not in named]


def refuse_twice(words: Sequence[str]) -> None:
    """Raise ConfigError if a setting is given twice with different values, as only the last would count.

    `words`: overrides as they were given, before any is added.
    """
    said: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        if (before := said.setdefault(key, word)) != word:
            raise ConfigError(f"{before} and {word} are both given: choose one")


def split(overrides: str) -> list[str]:
    """Split the settings in Flower's run configuration, which are one string, by the rules of a shell."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"overrides={overrides!r} cannot be split into words: {error}") from None


def to_yaml(config: Config) -> str:
    """Write a complete configuration as YAML, byte for byte as OmegaConf writes it."""
    return yaml.dump(
        asdict(config), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )


class _Dumper(yaml.SafeDumper):
    """A YAML writer that quotes each text that OmegaConf would read as a number or as true or false."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        quoted = text.lower() in _TRUTHS or _is_number(text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_Dumper.add_representer(str, _Dumper.represent_str)
_TRUTHS = ("y", "yes", "n", "no", "true", "false", "on", "off")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
