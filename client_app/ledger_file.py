"""A client's ledger on its own disk: never half written, and used by one process at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from client_app.node_config import LEDGER_KEY, NodeConfigError
from client_app.node_file import NodeFile
from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.client import ClientLedger

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
        _file(self.path).write(data.encode())


@contextmanager
def locked_ledger(path: Path) -> Iterator[LedgerFile]:
    """The ledger of a file, locked against other processes; a new one where there never was one.

    Raises:
        LedgerError: it is damaged, lost, in other hands, or its directory does not exist.
    """
    with _file(path).locked() as lock:
        lock.seek(0)
        file = LedgerFile(path, _load(path, opened=lock.read() == OPENED))
        if not path.exists():
            file.save()
            lock.write(OPENED)
            lock.flush()
        yield file


def _file(path: Path) -> NodeFile:
    return NodeFile(path, LEDGER_KEY, LedgerError)


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
        # The server may read the text of a LedgerError, and what is in a ledger is not for it.
        log(ERROR, "ledger=%s is damaged: %s", path, error)
        raise LedgerError(
            f"ledger={path} is damaged (this client's log says how): restore it from a copy"
        ) from None


def _digest(body: Any) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
