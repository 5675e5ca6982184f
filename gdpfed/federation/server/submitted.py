"""The files that the submitter of a run may name: those below the folders that the operator allows."""

import os
from collections.abc import Sequence
from pathlib import Path

from conf.load import PATHS, given_value
from conf.per_client import file_of, taken
from gdpfed.errors import ConfigError

FOLDERS = "GDPFED_FOLDERS"
"""The environment variable with the folders and files, separated as in PATH; without it all are allowed."""


def check_paths(overrides: Sequence[str]) -> None:
    """Refuse overrides that name a file elsewhere, links followed; an address of a server is no file.

    Raises:
        ConfigError: names the setting, its value and the folders.
    """
    listed = os.environ.get(FOLDERS)
    if listed is None:
        return
    allowed = [Path(folder).resolve() for folder in listed.split(os.pathsep) if folder]
    left, per_client = taken(overrides)
    named = {key: given_value(left, key) for key in PATHS}
    named |= {key: file_of(key, value) for key, value in per_client.items()}
    for key, value in named.items():
        if value is None or (key == "run.mlflow" and str(value).startswith(("http://", "https://"))):
            continue
        path = Path(str(value)).expanduser().resolve()
        if not any(path.is_relative_to(folder) for folder in allowed):
            raise ConfigError(
                f"{key}={value} lies outside of {listed}, all that this server's operator ({FOLDERS}) lets a "
                "run name: choose a place below one of them"
            )
