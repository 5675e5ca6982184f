"""Loads the stored configuration of a run to resume; raises an error for settings that contradict it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import given_value, load
from conf.schema import Config
from gdpfed.errors import ConfigError, RunError, words_of
from gdpfed.runs.file_formats import CONFIG_FILE, PLAN_FILE, check_json_file
from gdpfed.runs.paths import absolute_path, run_path
from gdpfed.yaml_files import read_yaml

CARRYING_OUT = {
    "run": frozenset(
        {"directory", "resume", "stop_after_round", "timeout_seconds", "minimum_nodes", "device"}
        | {"mlflow", "show_cohorts"}
    ),
    "secagg": frozenset({"keys_ahead", "roster_file", "consortium_key"}),
    "simulation": frozenset({"engine", "workers", "clients_at_once", "graphs", "backend", "ray_address"}),
}
"""How a run is carried out: results do not follow from these, so they may change when it is resumed."""
OF_ONE_PROCESS = frozenset({"run.directory", "run.stop_after_round"})
"""What was said to one process of a run, and does not hold for the next."""


def load_run(overrides: Sequence[str]) -> Config:
    """Load the configuration from settings (key=value) or, with ``run.resume``, from the existing run.

    Of a run that is resumed every setting is read, so none has to be given again. One of
    :data:`CARRYING_OUT` may be given anew, any other only as it was.

    Raises:
        ConfigError: as :func:`conf.load.load`; or no run.
        RunError: a damaged run, one of another format, or a setting that contradicts it.
    """
    resumed = given_value(overrides, "run.resume")
    if resumed is None:
        return load(overrides)
    path = run_path(str(resumed), "", "")
    saved = _saved_settings(path)
    config = load(overrides, begun=saved, forgotten=OF_ONE_PROCESS)
    _refuse_contradiction(path, saved, config)
    return config


def refuse_another_run(path: Path, config: Config) -> None:
    """Raise RunError if a configuration would change the results of the run saved in a directory."""
    _refuse_contradiction(path, _saved_settings(path), config)


def _saved_settings(path: Path) -> Mapping[str, Any]:
    check_json_file(path / PLAN_FILE)
    try:
        saved = read_yaml((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not (path / PLAN_FILE).exists():
            raise ConfigError(
                f"run.resume={path} is not a run, it holds no {CONFIG_FILE}: name the directory of one"
            ) from None
        reason = getattr(error, "strerror", None) or words_of(error)
        raise RunError(
            f"run.resume={path} is not a run, its {CONFIG_FILE} cannot be read ({reason}): name the "
            "directory of one"
        ) from None
    if not isinstance(saved, dict) or not all(
        isinstance(saved.get(each.name), dict) for each in fields(Config)
    ):
        raise RunError(
            f"run.resume={path}: {CONFIG_FILE} is not a complete configuration: restore it from a copy"
        )
    return saved


def _refuse_contradiction(path: Path, saved: Mapping[str, Any], config: Config) -> None:
    """Raise RunError for the first setting that contradicts the saved configuration of the run."""
    for group, section in asdict(config).items():
        kept = saved[group]
        for key, value in section.items():
            if key not in kept:
                raise RunError(
                    f"run.resume={path}: {CONFIG_FILE} has no {group}.{key}: restore it from a copy, or "
                    "resume with the gdpfed that wrote it"
                )
            if key in CARRYING_OUT.get(group, ()):
                continue
            before, now = kept[key], value
            if (group, key) == ("dataset", "path") and isinstance(before, str) and isinstance(now, str):
                before, now = absolute_path(before), absolute_path(now)
            if before == now:
                continue
            raise RunError(
                f"run.resume={path} has {group}.{key}={kept[key]}, not {value}: leave {group}.{key} out to "
                "go on with it, or start a new run"
            )
