"""A node's journal for its operator, a file beside the ledger: what was begun or refused, and when.

A line has no more of a refusal than its server was told, so nothing of the node's data and no cost of other
runs. Where a node has answered with zeros, since its examples could not be used, its server was told nothing,
and the line has the kind of the error. The file is bounded: at :data:`MOST_BYTES` it becomes the older of
two, and the one before that is gone.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from logging import WARNING
from pathlib import Path

from gdpfed.errors import PrivacyError
from gdpfed.federation import log
from gdpfed.federation.node.join_checks import DataRefusedError
from gdpfed.federation.node.ledger_file import LedgerError
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_file import HEARD, JOURNAL, OLDER
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.federation.node.stand_ins import StandInError
from gdpfed.files import open_regular, read_regular
from secagg import EncodingError, SecAggError

MOST_BYTES = 1 << 18
BEGUN, ACCEPTED = "begun", "accepted"
DATA, OTHER = "data", "other"
ZEROS = "zeros"
CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (DataRefusedError, DATA),
    (EncodingError, DATA),
    (LedgerError, "ledger"),
    (NodeConfigError, "settings"),
    (PrivacyError, "budget"),
    (StandInError, "edge"),
    (SecAggError, "protocol"),
)
"""Why a node refuses, by the kind of the error; the first that fits. Any other may come of the data."""


@dataclass(frozen=True)
class JournalEntry:
    """One line of a node's journal: what the server asked, whether the node refused, and when.

    Attributes:
        time: seconds since 1970.
        asked: the query or the stage.
        run: as the message names it, the name that the ledger knows; empty where it names none.
        flower_run: by which ``flwr list`` knows it.
        cause: one of :data:`CAUSES`, or of what else failed; ``zeros`` where examples could not be used and
            the node answered all the same; ``begun`` or ``accepted`` where nothing was refused.
        reason: what the server was told, or of zeros was not; empty where nothing was refused.
    """

    time: float
    asked: str
    run: str
    flower_run: str
    cause: str
    reason: str = ""


def cause_of(error: Exception) -> str:
    """Return the cause that the journal gives for a refusal, by the type of the error."""
    return next((cause for kind, cause in CAUSES if isinstance(error, kind)), OTHER)


def note(settings: NodeSettings, entry: JournalEntry) -> None:
    """Add a line to the journal; if that fails, log a warning and continue."""
    path = settings.kept_beside(JOURNAL)
    if path is None:
        return
    line = json.dumps(asdict(entry)).encode() + b"\n"
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # In one go: two processes of a node never share a line.
            os.write(descriptor, line)
            full = os.fstat(descriptor).st_size > MOST_BYTES
        finally:
            os.close(descriptor)
        if full:
            path.replace(_older(path))
    except (OSError, ValueError) as error:
        log(WARNING, "%s cannot be written, and lacks this line: %s", path, error)


def hear(settings: NodeSettings) -> None:
    """Record that the server asked this node now; it asks all nodes, so this does not reveal the sample."""
    path = settings.kept_beside(HEARD)
    if path is None:
        return
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        log(WARNING, "%s cannot be written: %s", path, error)


def read_journal(ledger: Path) -> list[JournalEntry]:
    """Read the journal beside a ledger, oldest line first, skipping damaged lines.

    Raises NodeConfigError: the file cannot be read.
    """
    path = ledger.with_name(ledger.name + JOURNAL)
    entries = []
    for file in (_older(path), path):
        try:
            lines = read_regular(file).decode(errors="replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NodeConfigError(
                f"{file} cannot be read: {error.strerror}; let this node's user read it"
            ) from None
        for line in lines:
            try:
                entries.append(JournalEntry(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return entries


def heard_at(ledger: Path) -> float | None:
    """Return when the server last asked this node, in seconds since 1970, or None if it never did."""
    try:
        return ledger.with_name(ledger.name + HEARD).stat().st_mtime
    except OSError:
        return None


def now() -> float:
    """Return the time in whole seconds since 1970; the journal has no finer times."""
    return float(int(time.time()))


def _older(path: Path) -> Path:
    return path.with_name(path.name + OLDER)
