"""The server's record of its clients' runs, from which a node notices that its ledger is an old copy.

A node compares its ledger with the hash in the ledger's lock file. If both files are old copies, it notices
nothing. The server has received the updates, so with the terms it sends each client its earlier runs on this
server, and the node compares them with its ledger (`gdpfed.federation.node.told_history`). The server
identifies a client by its key in the consortium's roster, or without a roster by its number. It shows each
client the secret that it gave it when the run began, since a client answers nobody else about a run. Secrets
follow from a key in the file, so a client whose answer was lost is told the same again.
"""

import hmac
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from filelock import FileLock

from gdpfed.clients.messages import (
    HISTORY_RECORD,
    MOST_TOLD_RUNS,
    SECRET,
    TOLD_ROUNDS,
    TOLD_RUNS,
    TOLD_SECRETS,
)
from gdpfed.errors import RunError
from gdpfed.federation.server.questions import Records
from gdpfed.files import PRIVATE_MODE, read_regular, save_whole
from gdpfed.json_files import WRONG_FORM, read_json

HISTORY_FILE = "client_history.json"
SECRET_BYTES = 16
VERSION = 3
READ_VERSIONS = (1, 2, VERSION)
"""In version 1 a run is its number of rounds, without a secret; before 3 secrets follow from no key."""


@dataclass(frozen=True)
class ClientsRun:
    """A client's part in one run: how many rounds have its update, and the secret that the server told it."""

    rounds: int
    secret: str


Runs = dict[str, ClientsRun]
"""By the run's name, oldest run first."""


class ClientHistory:
    """The server's file with its clients' past runs, opened for one run; `secrets` are those of this run.

    Args:
        folder: the folder of the server's run directories; the file is in it, readable by its owner only.
        run: the name by which clients know this run.
        keys: the public key of every client; None without a consortium's roster.
    """

    def __init__(self, folder: Path, run: str, keys: Mapping[int, str] | None) -> None:
        self.path = folder / HISTORY_FILE
        self._run = run
        self._keys = keys or {}
        self.secrets: dict[int, str] = {}
        self._counted: set[tuple[int, int]] = set()

    def told(self, clients: Collection[int]) -> dict[int, Records]:
        """Return message records that tell each client about its own newest runs and about this run.

        Raises RunError: the file cannot be used.
        """
        key, known = self._keyed() if clients else ("", {})
        return {client: {HISTORY_RECORD: self._of(client, key, known)} for client in clients}

    def _of(self, client: int, key: str, known: Mapping[str, Runs]) -> dict[str, Any]:
        runs = known.get(self._name(client), {})
        secret = runs[self._run].secret if self._run in runs else self._new_secret(client, key)
        self.secrets[client] = secret
        return {
            TOLD_RUNS: list(runs),
            TOLD_ROUNDS: [each.rounds for each in runs.values()],
            TOLD_SECRETS: [each.secret for each in runs.values()],
            SECRET: secret,
        }

    def _new_secret(self, client: int, key: str) -> str:
        """Return this run's secret for a client: HMAC-SHA256 of run and client names under the file's key."""
        names = json.dumps([self._run, self._name(client)])
        return hmac.digest(key.encode(), names.encode(), "sha256")[:SECRET_BYTES].hex()

    def _keyed(self) -> tuple[str, dict[str, Runs]]:
        """Return the file's key and its runs; write a new key into a file that has none."""
        with self._locked():
            key, known = self._read()
            if not key:
                key = token_hex(SECRET_BYTES)
                self._save(key, known)
        return key, known

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
        with self._locked():
            key, known = self._read()
            key = key or token_hex(SECRET_BYTES)
            for client, count in more.items():
                runs = known.setdefault(self._name(client), {})
                if begins and self._run not in runs:
                    runs[self._run] = ClientsRun(0, self._new_secret(client, key))
                if self._run in runs:
                    runs[self._run] = replace(runs[self._run], rounds=runs[self._run].rounds + count)
                for oldest in list(runs)[:-MOST_TOLD_RUNS]:
                    del runs[oldest]
            self._save(key, known)

    def _locked(self) -> FileLock:
        return FileLock(self.path.with_name(f".{HISTORY_FILE}.lock"), mode=PRIVATE_MODE)

    def _save(self, key: str, known: Mapping[str, Runs]) -> None:
        kept = {
            name: {run: asdict(each) for run, each in runs.items()} for name, runs in known.items() if runs
        }
        body = {"version": VERSION, "key": key, "clients": kept}
        save_whole(self.path, json.dumps(body, indent=1).encode() + b"\n")

    def _name(self, client: int) -> str:
        return self._keys.get(client, f"client {client}")

    def _read(self) -> tuple[str, dict[str, Runs]]:
        """Return the file's key ("" in old files) and clients' past runs; both empty if there is no file."""
        try:
            body = read_json(read_regular(self.path))
            if body["version"] not in READ_VERSIONS:
                raise RunError(
                    f"{self.path} has version {body['version']!r}, and this gdpfed reads "
                    f"{', '.join(map(str, READ_VERSIONS))}: use the version that wrote it"
                )
            runs_of = {str(name): _checked_runs(runs) for name, runs in body["clients"].items()}
            return str(body["key"]) if body["version"] == VERSION else "", runs_of
        except FileNotFoundError:
            return "", {}
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror}; let this user read it") from None
        except WRONG_FORM as error:
            raise RunError(
                f"{self.path}, which says what clients have sent, is damaged ({type(error).__name__}): "
                "restore it from a copy, or remove it: nodes then hear of no earlier run"
            ) from None


def _checked_runs(runs: Mapping[str, Any]) -> Runs:
    read = {
        str(name): ClientsRun(each, "") if type(each) is int else ClientsRun(each["rounds"], each["secret"])
        for name, each in runs.items()
    }
    for each in read.values():
        if type(each.rounds) is not int or each.rounds < 0 or not isinstance(each.secret, str):
            raise ValueError(runs)
    return read
