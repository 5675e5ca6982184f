"""One process at a time trains into an output directory."""

from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from gdpfed.errors import ExperimentError

LOCK_FILE = ".lock"


def the_only_one(output: Path) -> AbstractContextManager[object]:
    """Hold the directory, made if need be; it is free again once this process ends, however it ends.

    Raises:
        ExperimentError: another process holds it, or it cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        return FileLock(output / LOCK_FILE).acquire(blocking=False)
    except Timeout:
        raise ExperimentError(
            f"--output {output} is in use by another reproduce: wait for it, or choose another"
        ) from None
    except OSError as error:
        raise ExperimentError(f"--output {output} cannot be a directory: {error.strerror}") from None
