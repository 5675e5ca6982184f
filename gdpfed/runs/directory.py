"""The files of one run: created after all checks have passed, continued on resume."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.load import to_yaml
from conf.schema import Config
from gdpfed.errors import RunError, words_of
from gdpfed.files import save_whole
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.cut import Cut
from gdpfed.learning.model_folder import save_declaration, save_model
from gdpfed.learning.task import Task
from gdpfed.methods.base import Method
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.runs.charged_mark import ChargedMark
from gdpfed.runs.file_formats import (
    ASSIGNMENT_FILE,
    CHECKPOINT_FILE,
    COLUMNS,
    CONFIG_FILE,
    COUNTS_FILE,
    CUT_FILE,
    EVENTS_FOLDER,
    IDENTITIES,
    LEDGER_FILE,
    MODEL_CARD_FILE,
    PARTIES,
    PLAN_FILE,
    ROUNDS_FILE,
    SEAL_FILE,
    SEALED,
    SEALED_AT_END,
    SEALED_IF_THERE,
    SETTINGS_KEY,
    SETTINGS_OF,
    read_versioned,
    save_result,
    versioned,
)
from gdpfed.runs.known_data import forget_data, save_data
from gdpfed.runs.paths import OWNERS_ALONE, require_unused
from gdpfed.runs.resume import refuse_another_run
from gdpfed.runs.round_log import RoundLogEntry, read_rounds


@dataclass(frozen=True)
class Enrolment:
    """A run's clients (public keys, names) and its tables' columns, which stay the same when it is resumed.

    Attributes:
        identities: the public key of every client in hexadecimal; None without a roster.
        parties: the clients' names in the order of client ids; empty if they have no names.
        columns: how tables are read; None if the data are not tables.
    """

    identities: Mapping[int, str] | None = None
    parties: tuple[str, ...] = ()
    columns: Columns | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return identities, parties and hash of the columns as a dictionary for JSON; omit missing ones."""
        values: dict[str, Any] = {}
        if self.identities is not None:
            values[IDENTITIES] = {str(client): key for client, key in self.identities.items()}
        if self.parties:
            values[PARTIES] = list(self.parties)
        if self.columns is not None:
            values[COLUMNS] = self.columns.digest
        return values


class RunDirectory:
    """Writes the files of one run so that each file is complete at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger_was: bytes | None = None
        self._mark: ChargedMark | None = None

    @classmethod
    def make(cls, path: Path) -> "RunDirectory":
        """Make a run's directory, readable only by its owner, since its files reveal who was sampled.

        Raises RunError if the directory is not empty or cannot be made.
        """
        require_unused(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(OWNERS_ALONE)
        except OSError as error:
            raise RunError(
                f"run.directory={path} cannot be made: {error.strerror}; name another directory"
            ) from None
        return cls(path)

    def begin(self, config: Config, method: Method, name: str, enrolment: Enrolment, task: Task) -> None:
        """Write what is known of a new run before its first round; the directory is held by this process.

        `task`: the model and the data. Raises RunError if another process has meanwhile written a run here.
        """
        require_unused(self.path)
        self._mark = ChargedMark(self.path, name)
        save_whole(self.path / CONFIG_FILE, to_yaml(config).encode())
        described, settings = method.describe(), asdict(config)
        chosen = {group: settings[group] for group in SETTINGS_OF} | {"run": {"seed": config.run.seed}}
        plain = json.loads(json.dumps(chosen), parse_constant=str)
        save_whole(self.path / PLAN_FILE, _json(versioned({**described, SETTINGS_KEY: plain})))
        save_whole(self.path / ASSIGNMENT_FILE, _json(_assignment(method.plan, name, enrolment)))
        save_data(self.path, task)
        # The seal is shown to others: a salt keeps them from guessing the counts by the hash of this file.
        save_result(self.path / CUT_FILE, {"salt": secrets.token_hex(16), **Cut.of(task.load()).to_dict()})
        save_whole(self.path / ROUNDS_FILE, b"")
        if enrolment.columns is not None:
            save_declaration(self.path, enrolment.columns)

    @classmethod
    def resume(cls, path: Path, config: Config) -> "RunDirectory":
        """Open the directory of an unfinished run that had the same configuration.

        Raises RunError if there is no run, or if it is damaged, of another format or of another
        configuration, of which the error names the first difference.
        """
        refuse_another_run(path, config)
        return cls(path)

    def load_name(self, plan: PrivacyPlan, enrolment: Enrolment) -> str:
        """Read the run's name from the file that assigns clients to groups.

        Raises RunError if the file is missing, damaged or of another format, or if it has other groups than
        the plan, other keys or names of clients, or another declaration of columns.
        """
        path = self.path / ASSIGNMENT_FILE
        try:
            saved = read_versioned(path)
            name = saved["run"]
        except (OSError, *WRONG_FORM) as error:
            raise self._refusal(
                f"{ASSIGNMENT_FILE} cannot be read ({error}): restore it from a copy"
            ) from None
        now = _assignment(plan, name, enrolment)
        before, after = saved.pop(IDENTITIES, None), now.pop(IDENTITIES, None)
        if before != after:
            if not isinstance(before, dict) or after is None:
                began = "without" if before is None else "with"
                raise RunError(
                    f"run.resume={self.path} began {began} a roster of the clients' keys: resume it {began} "
                    "secagg.roster_file"
                )
            changed = [client for client in after | before if after.get(client) != before.get(client)]
            raise self._refusal(
                f"client {changed[0]} had the key {before.get(changed[0])} when the run began, and the "
                f"roster has {after.get(changed[0])}: resume with the roster of then, or start a new run"
            )
        for key, called in ((COLUMNS, "the declared columns"), (PARTIES, "the parties' names")):
            if saved.pop(key, None) != now.pop(key, None):
                raise self._refusal(
                    f"{called} changed since the run began: bring back the former ones, or start a new run"
                )
        if versioned(saved) != now:
            raise self._refusal(
                f"{ASSIGNMENT_FILE} has clients in other groups than this plan: restore it from a copy"
            )
        self._mark = ChargedMark(self.path, str(name))
        return str(name)

    def load_ledger(self, plan: PrivacyPlan, subject: str, kinds: Sequence[type]) -> Ledger:
        """Read the run's privacy ledger as it was after the last recorded cost.

        Raises:
            RunError: the ledger is missing or unreadable, or has fewer charges than the run.
            PrivacyError: the ledger is damaged or belongs to another plan.
        """
        path = self.path / LEDGER_FILE
        try:
            self._ledger_was = path.read_bytes()
            data = read_json(self._ledger_was)
        except (OSError, ValueError) as error:
            raise self._refusal(
                f"{LEDGER_FILE} cannot be read ({error}), and only it says what has been spent: restore it "
                "from a copy or start a new run"
            ) from None
        ledger = Ledger.from_dict(plan, data, subject, kinds)
        if self._mark is not None and plan.private:
            self._mark.check(ledger)
        return ledger

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run against all other processes, until the ``with`` block ends.

        Raises RunError if another process holds the run, or has continued it since the ledger was read.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"{self.path}: another process is at this run: wait for its end, or end it"
                ) from None
            was = self._ledger_was
            if was is not None and was != (self.path / LEDGER_FILE).read_bytes():
                raise self._refusal("another process has meanwhile continued this run: resume again")
            yield
        finally:
            os.close(folder)

    def seal(self) -> None:
        """Write a file of hashes of the run's files (its seal), when the run ends or pauses."""
        events = (f"{EVENTS_FOLDER}/{each.name}" for each in (self.path / EVENTS_FOLDER).glob("*"))
        names = (*SEALED, *SEALED_AT_END, *SEALED_IF_THERE, CHECKPOINT_FILE, *sorted(events))
        present = [name for name in names if (self.path / name).is_file()]
        hashes = {name: sha256((self.path / name).read_bytes()).hexdigest() for name in present}
        save_whole(self.path / SEAL_FILE, _json(versioned({"sha256": hashes})))

    def save_ledger(self, ledger: Ledger) -> None:
        """Save the ledger, and delete the file hashes and the model card, which are outdated then.

        Raises RunError if another process went on with the run, or with a copy of it, since this one read it.
        """
        mark = self._mark if ledger.plan.private else None
        with nullcontext() if mark is None else mark.raised_to(ledger):
            for name in (SEAL_FILE, MODEL_CARD_FILE):
                (self.path / name).unlink(missing_ok=True)
            save_whole(self.path / LEDGER_FILE, _json(ledger.to_dict()))

    def save_counts(self, counts: npt.NDArray[np.float64]) -> None:
        """Write the class counts that clients released, shape (n, B)."""
        save_whole(self.path / COUNTS_FILE, _json(versioned({"counts": counts.tolist()})))

    def load_counts(self, num_clients: int) -> npt.NDArray[np.float64]:
        """Read the class counts that clients released, shape (n, B).

        Raises RunError if they are missing, damaged, of another format or of another number of clients.
        """
        path = self.path / COUNTS_FILE
        try:
            counts = np.asarray(read_versioned(path)["counts"], dtype=np.float64)
        except (OSError, *WRONG_FORM) as error:
            raise self._refusal(
                f"{COUNTS_FILE} cannot be read ({error}); each client releases its class counts once: "
                "restore it from a copy or start a new run"
            ) from None
        if counts.ndim != 2 or len(counts) != num_clients or not np.isfinite(counts).all():
            raise self._refusal(
                f"{COUNTS_FILE} has shape {counts.shape}, for {num_clients} clients: restore it from a copy"
            )
        return counts

    def completed_records(self, completed_rounds: int) -> list[RoundLogEntry]:
        """Return the log entries up to the last checkpoint.

        Raises RunError if the log lacks rounds, is damaged or of another format, or changed since the pause.
        """
        try:
            records = [r for r in read_rounds(self.path) if r.round <= completed_rounds]
            seal = self.path / SEAL_FILE
            sealed = read_versioned(seal)["sha256"][ROUNDS_FILE] if seal.exists() else None
        except WRONG_FORM as error:
            raise self._refusal(words_of(error)) from None
        if len(records) != completed_rounds:
            raise self._refusal(
                f"{ROUNDS_FILE} holds {len(records)} of the {completed_rounds} rounds of the checkpoint: "
                "restore it from a copy"
            )
        if sealed not in (None, sha256((self.path / ROUNDS_FILE).read_bytes()).hexdigest()):
            raise self._refusal(f"{ROUNDS_FILE} is not what the run wrote: restore it from a copy")
        return records

    def keep_rounds(self, completed_rounds: int) -> None:
        """Drop the log entries of rounds after the last checkpoint."""
        lines = [f"{record.to_json()}\n" for record in self.completed_records(completed_rounds)]
        save_whole(self.path / ROUNDS_FILE, "".join(lines).encode())

    def append_round(self, record: RoundLogEntry) -> None:
        """Add the entry of one round to the run's log.

        Raises RunError if the file system refuses, for example because it is full.
        """
        path = self.path / ROUNDS_FILE
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{record.to_json()}\n")
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from None

    def finish(self, task: Task, theta: npt.NDArray[np.float32]) -> None:
        """Write the final model, and delete the checkpoint and the sampling key in it."""
        save_model(self.path, task, theta)
        forget_data(self.path)
        (self.path / CHECKPOINT_FILE).unlink(missing_ok=True)

    def _refusal(self, words: str) -> RunError:
        return RunError(f"run.resume={self.path}: {words}")


def _assignment(plan: PrivacyPlan, name: str, enrolment: Enrolment) -> dict[str, Any]:
    """Return the run's name, the clients of every group as ranges, and the clients' identities."""
    groups = []
    for clients in (group.clients for group in plan.groups):
        if isinstance(clients, range) and clients.step == 1:
            groups.append([[clients.start, clients.stop]])
            continue
        ids = np.asarray(clients, dtype=np.int64)
        pieces = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
        groups.append([[int(piece[0]), int(piece[-1]) + 1] for piece in pieces])
    return versioned({"run": name, "clients": groups, **enrolment.to_dict()})


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
