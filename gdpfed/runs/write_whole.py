"""Files that are whole or absent, whatever happens while they are written."""

import os
from pathlib import Path

from gdpfed.errors import RunError

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644


def write_whole(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Write a file so that a crash at any time leaves the old one or the new one, never a part.

    When this returns the new one is on the disk, its name included.

    Raises:
        OSError: the file system refused, as when it is full; the old file is untouched.
    """
    draft = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_directory(path.parent)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def save_whole(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Write a file of a run so that it is whole at any time.

    Raises:
        RunError: the file system refused, as when it is full; the old file is untouched.
    """
    try:
        write_whole(path, data, mode=mode)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def _sync_directory(directory: Path) -> None:
    """A rename is durable once its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
