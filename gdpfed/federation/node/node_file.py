"""A file on a node's own disk: written as a whole, readable by its owner only, locked for one process."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.files import NoRegularFileError, open_regular, read_regular, write_whole

LOCK_SECONDS = 30.0
POLL_SECONDS = 0.05
LOCK, OLDER = ".lock", ".old"
SESSIONS, ROSTER, DATA, JOURNAL, HEARD = ".sessions", ".roster", ".data", ".journal", ".heard"
"""What is added to the name of a node's ledger, or else of its session file, for the files beside it."""


@dataclass(frozen=True)
class NodeFile:
    """A file of a node, the setting that gives its path, and the exception to raise if it cannot be used.

    Attributes:
        path: of the file; its lock is another file beside it.
        setting: the node's setting that says where it is.
        error: the kind of error that is raised.
    """

    path: Path
    setting: str
    error: type[NodeConfigError]

    @property
    def name(self) -> str:
        """The file's name in error messages: the node setting that gives its path, and the path."""
        return f"{self.setting}={self.path}"

    def read(self) -> bytes | None:
        """Read the node's file, or return None if there is no file.

        Raises:
            NodeConfigError: it is not a regular file with one name, or the file system refused.
        """
        try:
            return read_regular(self.path)
        except FileNotFoundError:
            return None
        except NoRegularFileError as error:
            raise self.error(f"{self.name} cannot be used: {error.strerror}; name the file itself") from None
        except OSError as error:
            raise self.error(
                f"{self.name} cannot be read: {error.strerror}; let this node's user read it"
            ) from None

    def write(self, data: bytes) -> None:
        """Write the node's file as a whole, and wait until it is on disk.

        Raises:
            NodeConfigError: the file system refused; the old file is untouched.
        """
        try:
            write_whole(self.path, data)
        except OSError as error:
            raise self.error(
                f"{self.name} cannot be written: {error.strerror}; let this node's user write it, or "
                "free space"
            ) from None

    @contextmanager
    def locked(self) -> Iterator[BinaryIO]:
        """In a ``with`` block, lock this file against other processes; yield the lock file beside it.

        Raises:
            NodeConfigError: another process has it, or its directory does not exist.
        """
        beside = self.path.with_name(self.path.name + LOCK)
        try:
            lock = os.fdopen(open_regular(beside, os.O_RDWR | os.O_CREAT), "r+b")
        except NoRegularFileError as error:
            raise self.error(f"{beside} cannot be used: {error.strerror}; remove it") from None
        except OSError as error:
            raise self.error(
                f"{self.name} cannot be opened ({error.strerror}): name a file in an existing directory"
            ) from None
        with lock:
            self._wait_for(lock)
            yield lock

    def _wait_for(self, lock: BinaryIO) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self.error(
                        f"{self.name} has been locked by another process for {LOCK_SECONDS:g} seconds: "
                        f"give every node a {self.setting} of its own"
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return
