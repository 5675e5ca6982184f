"""Check a run's directory before a run is created or resumed."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from conf.schema import Config
from gdpfed.errors import RunError
from gdpfed.runs.records import PLAN_FILE, user_path


def require_unused(path: Path, *, setting: str = "run.directory") -> None:
    """Refuse a directory that no new run can have; nothing is left in it.

    Args:
        path: of the directory.
        setting: that names it.

    Raises:
        RunError: it holds something, it is no directory, or it cannot be made or written.
    """
    try:
        if path.is_dir() and any(path.iterdir()):
            others = ", or continue with run.resume" if setting == "run.directory" else ""
            raise RunError(f"{setting}={path} is not empty: name another one{others}")
        nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    except OSError as error:
        raise RunError(f"{setting}={path} cannot be made: {error.strerror}") from None
    if not nearest.is_dir():
        raise RunError(f"{setting}={path} cannot be made: {nearest} is no directory")
    try:
        # Some file systems take no file whatever their permissions say.
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError:
        raise RunError(f"{setting}={path} cannot be made: {nearest} is not yours to write in") from None


def with_saved_delta(config: Config) -> Config:
    """The configuration with the delta that a run to continue was planned with, unless it names one.

    By default delta follows from the number of clients, and the rule was another one for earlier runs.
    """
    if config.run.resume is None or config.privacy.delta is not None:
        return config
    try:
        plan = json.loads((user_path(config.run.resume) / PLAN_FILE).read_text(encoding="utf-8"))
        delta = float(plan["delta"])
    except (OSError, ValueError, KeyError, TypeError):
        return config  # Whoever opens the directory says what is wrong with it.
    return replace(config, privacy=replace(config.privacy, delta=delta))
