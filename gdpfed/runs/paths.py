"""Where the directory of a run is, and whether a new run can have it."""

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from gdpfed.errors import RunError

RUNS = "runs"


def user_path(text: str) -> Path:
    """The absolute path that a setting names; a leading ``~`` is a home directory."""
    return Path(text).expanduser().absolute()


def run_path(chosen: str | None, dataset: str, method: str) -> Path:
    """The absolute directory of a run: the chosen one, or a new one under ``runs/`` here, named by time."""
    if chosen is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        chosen = f"{RUNS}/{stamp}-{dataset}-{method}"
    return user_path(chosen)


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
