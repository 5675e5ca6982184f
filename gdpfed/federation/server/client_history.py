"""The server's record of its clients' runs, from which a node notices that its ledger is an old copy.

A node compares its ledger with the hash in the ledger's lock file. If both files are old copies, it notices
nothing. The server has received the updates, so with the terms it sends each client its earlier runs on this
server, and the node compares them with its ledger (`gdpfed.federation.node.told_history`). The server
identifies a client by its key in the consortium's roster, or without a roster by its number.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from gdpfed.clients.messages import HISTORY_RECORD, MOST_TOLD_RUNS, TOLD_ROUNDS, TOLD_RUNS
from gdpfed.errors import RunError
from gdpfed.federation.server.questions import Records
from gdpfed.files import PRIVATE_MODE, read_regular, save_whole
from gdpfed.json_files import WRONG_FORM, read_json

HISTORY_FILE = "client_history.json"
VERSION = 1

Rounds = dict[str, dict[str, int]]
"""The number of rounds in which an update was received, by client and by the run's name, oldest run first."""


class ClientHistory:
    """The server's file with the past runs of its clients, opened for one run.

    Args:
        folder: the folder of the server's run directories; the file is in it, readable by its owner only.
        run: the name by which clients know this run.
        keys: the public key of every client; None without a consortium's roster.
    """

    def __init__(self, folder: Path, run: str, keys: Mapping[int, str] | None) -> None:
        self.path = folder / HISTORY_FILE
        self._run = run
        self._keys = keys or {}
        self._counted: set[tuple[int, int]] = set()

    def told(self, clients: Collection[int]) -> dict[int, Records]:
        """Return what to tell each client about its own newest runs, as message records.

        Raises RunError: the file cannot be used.
        """
        rounds = self._read()
        own = {client: rounds.get(self._name(client), {}) for client in clients}
        return {
            client: {HISTORY_RECORD: {TOLD_RUNS: list(runs), TOLD_ROUNDS: list(runs.values())}}
            for client, runs in own.items()
            if runs
        }

    def begun(self, clients: Collection[int]) -> None:
        """Note in the server's file that these clients have recorded this run's cost in their ledgers."""
        self._add(dict.fromkeys(clients, 0), begins=True)

    def received(self, clients: Collection[int], round_index: int) -> None:
        """Note in the server's file that the updates of these clients in a round have arrived.

        Raises RunError: the file cannot be used.
        """
        fresh = {(client, round_index) for client in clients} - self._counted
        self._counted |= fresh
        self._add({client: 1 for client, _ in fresh}, begins=False)

    def _add(self, more: Mapping[int, int], *, begins: bool) -> None:
        if not more or not (begins or self.path.exists()):
            return
        with FileLock(self.path.with_name(f".{HISTORY_FILE}.lock"), mode=PRIVATE_MODE):
            rounds = self._read()
            for client, count in more.items():
                runs = rounds.setdefault(self._name(client), {})
                if begins or self._run in runs:
                    runs[self._run] = runs.get(self._run, 0) + count
                for oldest in list(runs)[:-MOST_TOLD_RUNS]:
                    del runs[oldest]
            body = {"version": VERSION, "clients": {name: runs for name, runs in rounds.items() if runs}}
            save_whole(self.path, json.dumps(body, indent=1).encode() + b"\n")

    def _name(self, client: int) -> str:
        return self._keys.get(client, f"client {client}")

    def _read(self) -> Rounds:
        """Read the file with clients' past runs; return an empty mapping if there is no file."""
        try:
            body = read_json(read_regular(self.path))
            if body["version"] != VERSION:
                raise RunError(
                    f"{self.path} has version {body['version']!r}, and this gdpfed reads {VERSION}: use the "
                    "version that wrote it"
                )
            return {str(name): _runs(runs) for name, runs in body["clients"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror}; let this user read it") from None
        except WRONG_FORM as error:
            raise RunError(
                f"{self.path}, which says what clients have sent, is damaged ({type(error).__name__}): put "
                "it back, or remove it, and nodes are told of no earlier run"
            ) from None


def _runs(runs: Mapping[str, Any]) -> dict[str, int]:
    if any(type(count) is not int or count < 0 for count in runs.values()):
        raise ValueError(runs)
    return dict(runs)
