"""Write files so that after a crash no file is incomplete; refuse to read or write links and pipes.

Another process may write to the same folder and put a link or a pipe there. A link could lead to another
file, and a pipe would make its reader wait.
"""

import os
import stat
from pathlib import Path

from gdpfed.errors import RunError

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
DRAFT_START, DRAFT_END = ".", ".tmp"


class NoRegularFileError(OSError):
    """Raised for a link, a pipe, a folder or a device in place of a regular file."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            None, "it is not a regular file of its own, but a link, a pipe, a folder or a device"
        )
        self.filename = str(path)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file that has no second hard link; return its descriptor.

    Raises:
        NoRegularFileError: it is not a regular file, or has a second hard link.
        OSError: the file system refuses.
    """
    if path.is_symlink():
        raise NoRegularFileError(path)
    # Without O_NONBLOCK, opening a pipe would wait for a process at its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_MODE)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    raise NoRegularFileError(path)


def read_regular(path: Path) -> bytes:
    """Read a regular file that has no second hard link.

    Raises:
        NoRegularFileError: it is not a regular file, or has a second hard link.
        OSError: the file system refuses.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def create_file(path: Path, data: bytes, mode: int = PRIVATE_MODE) -> None:
    """Write a new file to disk; it has its final permissions from the first byte on.

    Raises OSError: the file exists, or the file system refuses.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Write a file so that a crash leaves either the old or the new content, never a part.

    When this function returns, the new content and the file's name are on the disk. Raises OSError: the file
    system refuses, for example because it is full; the old file is unchanged.
    """
    draft = path.with_name(f"{DRAFT_START}{path.name}{DRAFT_END}")
    draft.unlink(missing_ok=True)
    try:
        create_file(draft, data, mode)
        draft.replace(path)
        # A renamed file survives a crash only if the directory itself is on the disk.
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def holds_files(folder: Path) -> bool:
    """Return whether a folder holds more than drafts, which a process leaves that is killed while it writes.

    Raises OSError: the folder cannot be read.
    """
    names = (each.name for each in folder.iterdir())
    return not all(name.startswith(DRAFT_START) and name.endswith(DRAFT_END) for name in names)


def save_whole(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Write a run's file atomically: readers find the old file or the new one, never a part of one.

    Raises RunError: the file system refuses, for example because it is full; the old file is unchanged.
    """
    try:
        write_whole(path, data, mode=mode)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def save_output(path: Path, data: bytes) -> None:
    """Write a file that the user names, readable by its owner only; raise RunError if it is a link.

    Raises RunError: it is a link or another thing than a regular file, or the file system refuses.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise RunError(f"{path} cannot be written: it is a link or no regular file; name a file of its own")
    save_whole(path, data)
