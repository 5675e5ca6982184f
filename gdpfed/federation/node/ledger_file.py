"""A client's ledger on its own disk: never half written, and used by one process at a time.

Beside it lies its lock, and in this the hash of the ledger that was written last. So a ledger that is gone,
or that is a copy from before, is seen: each forgets what was spent. Who puts back ledger and lock together
is not seen.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any, BinaryIO

from gdpfed.errors import PrivacyError
from gdpfed.federation import log
from gdpfed.federation.node.node_config import LEDGER_KEY, NodeConfigError
from gdpfed.federation.node.node_file import NodeFile
from gdpfed.privacy.ledgers.client import ClientLedger

MARK_BYTES = 256
ANEW = (
    "to go on from what the file says, or from zero without one, remove {lock}; and lower the budget by what "
    "is lost"
)


class LedgerError(NodeConfigError):
    """A ledger that cannot be relied on; the client then takes part in nothing."""


@dataclass
class LedgerFile:
    """A ledger while its lock is held; changes count once they are saved."""

    path: Path
    ledger: ClientLedger
    lock: BinaryIO
    _written: str = ""

    def save(self) -> None:
        """Write it to the disk and wait until it is there.

        Raises:
            LedgerError: the file system refused.
        """
        body = self.ledger.to_dict()
        digest = _digest(body)
        data = json.dumps({"ledger": body, "sha256": digest}, indent=1) + "\n"
        # Should it break off in between, the ledger is the old one or the new one, and both are known.
        self._mark(self._written or digest, digest)
        _file(self.path).write(data.encode())
        self._mark(digest)
        self._written = digest

    def load(self) -> None:
        """Read it, and take note of it beside it; a new one where there never was one.

        Raises:
            LedgerError: it is damaged, lost, or not the one that was written last.
        """
        known = self._known()
        data = _file(self.path).read()
        if data is None:
            if known:
                raise self._lost("is gone, and with it what was spent: ")
            log(WARNING, "ledger=%s is new: this client has spent nothing yet", self.path)
            self.save()
            return
        body = self._body(data)
        digest = _digest(body)
        if known and digest not in known:
            raise self._lost("is not the one that was written last: a copy forgets what was spent since; ")
        self._written = digest
        if known != [digest]:
            self._mark(digest)

    def _lost(self, what: str) -> LedgerError:
        lock = f"{self.path.name}.lock"
        return LedgerError(f"ledger={self.path} {what}put the last one back, or, {ANEW.format(lock=lock)}")

    def _body(self, data: bytes) -> Any:
        try:
            read = json.loads(data)
            if not isinstance(read, dict) or set(read) != {"ledger", "sha256"}:
                raise PrivacyError("it is no mapping of ledger and sha256")
            if read["sha256"] != _digest(read["ledger"]):
                raise PrivacyError("its checksum is another one")
            self.ledger = ClientLedger.from_dict(read["ledger"])
        except (ValueError, RecursionError) as error:
            # The server may read the text of a LedgerError, and what is in a ledger is not for it.
            log(ERROR, "ledger=%s is damaged: %s", self.path, error)
            raise LedgerError(
                f"ledger={self.path} is damaged (this client's log says how): put the last one back"
            ) from None
        return read["ledger"]

    def _known(self) -> list[str]:
        """The hashes of the ledgers that may lie here; none where the ledger has never been opened."""
        self.lock.seek(0)
        data = self.lock.read(MARK_BYTES + 1)
        if not data:
            return []
        try:
            known = json.loads(data)["ledger"]
            if not known or not all(isinstance(each, str) for each in known):
                raise ValueError(known)
        except (ValueError, KeyError, TypeError):
            raise self._lost("has a damaged lock, which says what was written last: ") from None
        return list(known)

    def _mark(self, *digests: str) -> None:
        """Write down which ledgers may lie here, in one go at the same place."""
        line = json.dumps({"ledger": digests}).encode().ljust(MARK_BYTES - 1) + b"\n"
        try:
            os.pwrite(self.lock.fileno(), line, 0)
            os.fsync(self.lock.fileno())
        except OSError as error:
            raise LedgerError(f"ledger={self.path} cannot be written: {error.strerror}") from None


@contextmanager
def locked_ledger(path: Path) -> Iterator[LedgerFile]:
    """The ledger of a file, locked against other processes; a new one where there never was one.

    Raises:
        LedgerError: it is damaged, lost, a copy from before, in other hands, or its directory does not exist.
    """
    with _file(path).locked() as lock:
        file = LedgerFile(path, ClientLedger(), lock)
        file.load()
        yield file


def _file(path: Path) -> NodeFile:
    return NodeFile(path, LEDGER_KEY, LedgerError)


def _digest(body: Any) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
