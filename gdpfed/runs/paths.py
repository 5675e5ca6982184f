"""Where a run's files are: the directory of a new or resumed run, and the paths that settings name."""

import atexit
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from conf.load import PATHS, given_value, hydra_string
from conf.per_client import file_of, taken
from conf.schema import Config
from gdpfed.errors import ConfigError, RunError
from gdpfed.files import holds_files

RUNS = "runs"
OWNERS_ALONE = 0o700


def absolute_path(text: str) -> Path:
    """Return the absolute path that a setting names; a leading ``~`` is the home directory."""
    return Path(text).expanduser().absolute()


def as_of_run(config: Config, directory: Path) -> Config:
    """Return a run's settings with absolute data paths; relative ones are searched in folders above the run.

    That folder is not written down: it is the nearest one above the run's directory that holds the path.
    """
    found: dict[str, Any] = {}
    for key in ("path", "test_path", "columns", "weights"):
        value = getattr(config.dataset, key)
        if value is not None and not Path(value).expanduser().is_absolute():
            places = (folder / value for folder in directory.absolute().parents)
            found[key] = next((str(place) for place in places if place.exists()), value)
    return replace(config, dataset=replace(config.dataset, **found))


def run_path(chosen: str | None, dataset: str, method: str, folder: Path = Path()) -> Path:
    """Return a run's absolute directory: the chosen one, or a new one below ``runs/`` named by time.

    ``folder`` is what holds ``runs/``, the working directory if it is not given.
    """
    if chosen is not None:
        return absolute_path(chosen)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    names = _numbered(folder.absolute() / RUNS / f"{stamp}-{dataset}-{method}")
    return next(path for path in names if not path.exists())


def reserved(path: Path) -> Path:
    """Make an unused directory for a run: NAME, or NAME-2, NAME-3, ...

    Runs that begin in one second have each its own. One that stays empty is removed when the process ends,
    and so is the folder around it, if it was made for it.

    Raises RunError: it cannot be made.
    """
    parent = path.parent
    try:
        if not parent.exists():
            parent.mkdir(parents=True, exist_ok=True)
            atexit.register(_remove_if_empty, parent)
        for made in _numbered(path):
            with suppress(FileExistsError):
                made.mkdir(mode=OWNERS_ALONE)
                break
    except OSError as error:
        raise RunError(
            f"run.directory={path} cannot be made: {error.strerror}; name another directory"
        ) from None
    atexit.register(_remove_if_empty, made)
    return made


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def require_unused(path: Path, *, setting: str = "run.directory") -> None:
    """Raise RunError if a new run cannot use a directory: it is not empty, or it cannot be made or written.

    `path`: of the directory. `setting`: that names it. Raises RunError: it holds something, it is no
    directory, or it cannot be made or written.
    """
    try:
        if path.is_dir() and holds_files(path):
            others = ", or continue with run.resume" if setting == "run.directory" else ""
            raise RunError(f"{setting}={path} is not empty: name another one{others}")
        nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    except OSError as error:
        raise RunError(f"{setting}={path} cannot be made: {error.strerror}; name another directory") from None
    if not nearest.is_dir():
        raise RunError(f"{setting}={path} cannot be made: {nearest} is not a directory")
    try:
        # Some file systems take no file whatever their permissions say.
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise RunError(
            f"{setting}={path} cannot be made: {nearest} is not yours to write in ({error.strerror}): name "
            "another directory"
        ) from None


FOLDERS = "GDPFED_FOLDERS"
"""The environment variable with the folders and files, separated as in PATH; without it all are allowed."""


ADDRESSES = ("http://", "https://")
PARTITION_OPTIONS = "dataset.partition_options"
"""The setting whose entry ``path`` names the file of owners, for dataset.partition=owners."""


def named_paths(overrides: Sequence[str]) -> dict[str, str]:
    """Return the paths and web addresses in command-line settings, as a dictionary by the setting's name."""
    left, per_client = taken(overrides)
    named = {key: given_value(left, key) for key in PATHS}
    named |= {key: file_of(key, value) for key, value in per_client.items()}
    if isinstance(options := given_value(left, PARTITION_OPTIONS), dict):
        named[f"{PARTITION_OPTIONS}.path"] = options.get("path")
    return {key: str(value) for key, value in named.items() if value is not None}


def below(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return settings (key=value) in which relative paths are placed below a folder."""
    moved = list(overrides)
    for key, value in named_paths(overrides).items():
        path = Path(value).expanduser()
        stays = key == "run.mlflow" or key.startswith(("secagg.", PARTITION_OPTIONS))
        if not stays and not path.is_absolute():
            moved.append(f"{key}={hydra_string(str(folder / path))}")
    return moved


def check_paths(overrides: Sequence[str]) -> None:
    """Raise ConfigError if settings (key=value) name files outside of the allowed folders."""
    listed = os.environ.get(FOLDERS)
    if listed is None:
        return
    allowed = [Path(folder).resolve() for folder in listed.split(os.pathsep) if folder]
    for key, value in named_paths(overrides).items():
        if key == "run.mlflow" and value.startswith(ADDRESSES):
            continue
        path = Path(value).expanduser().resolve()
        if not any(path.is_relative_to(folder) for folder in allowed):
            raise ConfigError(
                f"{key}={value} lies outside of {listed}, all that this server's operator ({FOLDERS}) lets a "
                "run name: choose a place below one of them"
            )
