"""The file in which a SuperNode, Flower's process on a node, notes whether it can reach its server.

The file lies in the SuperNode's own folder. No app and no guard sees it, and it has no secret.
"""

import json
import math
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gdpfed.errors import AuditError
from gdpfed.files import read_regular, write_whole
from gdpfed.json_files import read_json

CONNECTION_FILE = "connection.json"
HEALTHY, UNHEALTHY = "healthy", "unhealthy"
SILENT_SECONDS = 120.0
"""A SuperNode writes the file every half a minute; one that has not for so long has ended."""


@dataclass(frozen=True)
class ConnectionState:
    """The state of a node's connection to its server, as Flower's process on the node last observed it.

    Attributes:
        reason: what failed, and what to do; empty where the server answers.
        since: when that began, in seconds since 1970.
        seen: when the SuperNode last wrote it, in seconds since 1970.
    """

    reason: str
    since: float
    seen: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the state of the connection from the file that the node's SuperNode wrote.

        Raises:
            AuditError: there is none, or it is another file.
        """
        try:
            found = read_json(read_regular(path))
            made = cls(str(found["reason"]), float(found["since"]), float(found["seen"]))
            if not math.isfinite(made.since) or not math.isfinite(made.seen):
                raise ValueError("the file holds a time that is not finite")
        except OSError as error:
            raise AuditError(
                f"--connection {path} cannot be read: {error.strerror}; name {CONNECTION_FILE} in the folder "
                "seen/ of the node's SuperNode, which writes it once it runs"
            ) from None
        except (ValueError, TypeError, KeyError):
            raise AuditError(
                f"--connection {path} is not the file of a SuperNode: name {CONNECTION_FILE} in its folder "
                "seen/"
            ) from None
        return made

    def write(self, path: Path) -> None:
        """Write the state of the connection to a file; raise OSError if that fails."""
        write_whole(path, json.dumps(asdict(self)).encode() + b"\n")

    def found(self, now: float | None = None) -> tuple[str, str]:
        """Return ``healthy`` and an empty text, or ``unhealthy`` and the reason."""
        silent = (time.time() if now is None else now) - self.seen
        if self.reason:
            return UNHEALTHY, self.reason
        if silent > SILENT_SECONDS:
            return UNHEALTHY, (
                f"the SuperNode has written nothing for {silent:.0f} s: see whether it runs, and start it"
            )
        return HEALTHY, ""

    def to_dict(self) -> dict[str, Any]:
        """Return the state of the connection as a dictionary that can be written as JSON."""
        state, reason = self.found()
        return {"state": state, "since": _iso(self.since), "seen": _iso(self.seen), "reason": reason}

    @property
    def line(self) -> str:
        """Describe the connection in one line: its state, since when, and why."""
        state, reason = self.found()
        return f"connection: {state} since {_iso(self.since)}{f': {reason}' if reason else ''}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat()
