"""A client's ledger on its own disk: never half written, and used by one process at a time."""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from client_app.settings import NodeConfigError
from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.runs.write_whole import PRIVATE_MODE, write_whole

LOCK_SECONDS = 30.0
POLL_SECONDS = 0.05
OPENED = b"The ledger beside this file has been opened: if it is gone, it was lost.\n"


class LedgerError(NodeConfigError):
    """A ledger that cannot be relied on; the client then takes part in nothing."""


@dataclass
class LedgerFile:
    """A ledger while its lock is held; changes count once they are saved."""

    path: Path
    ledger: ClientLedger

    def save(self) -> None:
        """Write it to the disk and wait until it is there.

        Raises:
            LedgerError: the file system refused.
        """
        body = self.ledger.to_dict()
        data = json.dumps({"ledger": body, "sha256": _digest(body)}, indent=1) + "\n"
        try:
            write_whole(self.path, data.encode(), mode=PRIVATE_MODE)
        except OSError as error:
            raise LedgerError(f"ledger={self.path} cannot be written: {error.strerror}") from None


@contextmanager
def locked_ledger(path: Path) -> Iterator[LedgerFile]:
    """The ledger of a file, locked against other processes; a new one where there never was one.

    Raises:
        LedgerError: it is damaged, lost, in other hands, or its directory does not exist.
    """
    try:
        lock = path.with_name(f"{path.name}.lock").open("a+b")
    except OSError as error:
        raise LedgerError(
            f"ledger={path} cannot be opened ({error.strerror}): name a file in an existing directory"
        ) from None
    with lock:
        _wait_for(lock, path)
        lock.seek(0)
        file = LedgerFile(path, _load(path, opened=lock.read() == OPENED))
        if not path.exists():
            file.save()
            lock.write(OPENED)
            lock.flush()
        yield file


def _wait_for(lock: BinaryIO, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"ledger={path} has been locked by another process for {LOCK_SECONDS:g} seconds: "
                    "give every node a ledger of its own"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return


def _load(path: Path, *, opened: bool) -> ClientLedger:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or set(data) != {"ledger", "sha256"}:
            raise PrivacyError("it is no mapping of ledger and sha256")
        if data["sha256"] != _digest(data["ledger"]):
            raise PrivacyError("its checksum is another one")
        return ClientLedger.from_dict(data["ledger"])
    except FileNotFoundError:
        if opened:
            raise LedgerError(
                f"ledger={path} is gone, and with it what was spent: restore it from a copy; without one "
                f"remove {path.name}.lock to begin at zero"
            ) from None
        return ClientLedger()
    except (OSError, ValueError) as error:
        raise LedgerError(f"ledger={path} is damaged ({error}): restore it from a copy") from None


def _digest(body: Any) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
