"""A client's privacy ledger on its own disk: always written as a whole, and locked for one process at a time.

Beside it lies its lock, and in this the hash of the ledger that was written last. So a ledger that is gone,
or that is a copy from before, is seen: each forgets what was spent. Who puts back ledger and lock together
is seen where the operator names a second folder: the ledger is written there first, and both must be one. The
lock says whether there is such a copy, so that an empty folder is not taken for a new one.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import ENOSPC
from hashlib import sha256
from itertools import combinations, zip_longest
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any, BinaryIO

from gdpfed.errors import PrivacyError
from gdpfed.federation import log
from gdpfed.federation.node.node_config import OWN_SETTINGS, NodeConfigError
from gdpfed.federation.node.node_file import DATA, HEARD, JOURNAL, LOCK, OLDER, ROSTER, SESSIONS, NodeFile
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.privacy.ledgers.charged_run import FILLED, SENT, TAKEN_BACK, filled_rounds
from gdpfed.privacy.ledgers.client import FORMAT_VERSION, ClientLedger
from gdpfed.privacy.ledgers.terms import Terms

COPY_FILE = "ledger.copy"
FILES_WRITTEN = ("ledger", "ledger-copy", "session-file", "identity-file")
MARK_BYTES = 256
ANEW = (
    "if there is none, remove {lock} and lower the budget by what is lost: the node then goes on from this "
    "file, or from zero without a file"
)


class LedgerError(NodeConfigError):
    """Raised if the node's ledger cannot be relied on; the node then takes part in no run."""


def check_places(config: Mapping[str, Any]) -> None:
    """Raise NodeConfigError if two of a node's settings name one file, so that one would overwrite the other.

    `config`: settings with allowed values.
    """
    given = {key: OWN_SETTINGS[key].read(config[key]) for key in FILES_WRITTEN if key in config}
    if "ledger-copy" in given:
        given["ledger-copy"] /= COPY_FILE
    beside = [(key, LOCK) for key in ("ledger", "session-file") if key in given]
    for owner, _ in beside[:1]:
        locked = (ROSTER, DATA, *(() if "session-file" in given else (SESSIONS,)))
        ends = (JOURNAL, JOURNAL + OLDER, HEARD, *locked, *(f"{end}{LOCK}" for end in locked))
        beside += [(owner, end) for end in ends]
    given |= {f"the {key}'s {end}": Path(f"{given[key]}{end}") for key, end in beside}
    places = {key: os.path.realpath(path) for key, path in given.items()}
    for (one, place), (other, same) in combinations(places.items(), 2):
        if place == same:
            raise NodeConfigError(f"{one} and {other} are one file, {place}: give each a file of its own")


@dataclass
class LedgerFile:
    """A client's ledger file, locked by this process; changes to the ledger take effect when saved.

    `size`: in bytes, as it was read.
    """

    path: Path
    ledger: ClientLedger
    lock: BinaryIO
    copy: Path | None = None
    size: int = 0
    _written: str = ""
    _has_copy: bool = False

    def save(self) -> None:
        """Write the ledger to disk and wait until it is stored.

        Raises:
            LedgerError: the file system refused.
        """
        body = self.ledger.to_dict()
        digest = _digest(body)
        try:
            data = json.dumps({"ledger": body, "sha256": digest}, indent=1, allow_nan=False) + "\n"
        except ValueError:
            raise LedgerError(
                f"ledger={self.path} would hold a number that is not finite, and could not be read again: "
                "this run is not joined"
            ) from None
        # Should it break off in between, the ledger is the old one or the new one, and both are known.
        self._mark(self._written or digest, digest)
        if self.copy is not None:
            _copy_in(self.copy).write(data.encode())
        _file(self.path).write(data.encode())
        self._mark(digest)
        self._written = digest

    def load(self) -> None:
        """Read and check the ledger; make a new one only if there has never been one.

        Raises:
            LedgerError: it is damaged, lost, not the one that was written last, or another than its copy.
        """
        known = self._known()
        data = _file(self.path).read()
        copied = None if self.copy is None else _copy_in(self.copy).read()
        # The mark of a ledger without runs: nothing was spent, and no first write was finished if it is gone.
        unspent = data is None and set(known) == {_digest(ClientLedger().to_dict())}
        if self.copy is not None and copied is not None and copied != data:
            # A write that broke off in between is known by its mark, and what was to be written counts.
            both = [each for each in (data, copied) if each is not None]
            if (data is None and not unspent) or {self._digest_of(each) for each in both} != set(known):
                raise self._another(self.copy)
            data = copied
            _file(self.path).write(data)
        if data is None:
            if known and not unspent:
                raise self._lost("is gone, and with it what was spent: ")
            log(WARNING, "ledger=%s is new: this client has spent nothing yet", self.path)
            self.save()
            return
        self.size, digest = len(data), self._digest_of(data)
        if known and digest not in known:
            raise self._lost("is not the one that was written last, and lacks what was spent since: ")
        self._written = digest
        if self.copy is not None and copied is None:
            if self._has_copy:
                raise self._no_copy(self.copy)
            log(WARNING, "ledger=%s has no copy in %s yet: one is made", self.path, self.copy)
            _copy_in(self.copy).write(data)
        if known != [digest] or (self.copy is not None and not self._has_copy):
            self._mark(digest)

    def _digest_of(self, data: bytes) -> str:
        return _digest(self._body(data))

    def _another(self, copy: Path) -> LedgerError:
        return LedgerError(
            f"ledger={self.path} differs from its copy in {copy}: one of them is older, and lacks what was "
            "spent since; put the newer one in both places, or go on from all that either of them holds: "
            f"gdpfed node accept-ledger {self.path} --copy {copy}"
        )

    def _no_copy(self, copy: Path) -> LedgerError:
        return LedgerError(
            f"ledger={self.path} had a copy, and {copy} holds none: mount its disk, or put the copy back; if "
            "it is lost for good, and no older ledger was put back, go on without it with: "
            f"gdpfed node accept-ledger {self.path} --copy {copy}"
        )

    def _lost(self, what: str) -> LedgerError:
        lock = self.path.name + LOCK
        return LedgerError(f"ledger={self.path} {what}put its newest copy back; {ANEW.format(lock=lock)}")

    def _body(self, data: bytes) -> Any:
        try:
            read = read_json(data)
            if not isinstance(read, dict) or set(read) != {"ledger", "sha256"}:
                raise PrivacyError("the ledger file is not a mapping of ledger and sha256")
            if read["sha256"] != _digest(read["ledger"]):
                raise PrivacyError("the checksum in the ledger file does not fit its content")
            self.ledger = ClientLedger.from_dict(read["ledger"])
        except (ValueError, RecursionError) as error:
            # The server may read the text of a LedgerError, and what is in a ledger is not for it.
            log(ERROR, "ledger=%s is damaged: %s", self.path, error)
            raise LedgerError(
                f"ledger={self.path} is damaged (this client's log says how): put its newest undamaged copy "
                "back"
            ) from None
        return read["ledger"]

    def _known(self) -> list[str]:
        """Read from the lock file the hashes that the ledger on disk may have; empty if there was no ledger.

        The lock also says whether the ledger had a copy when it was written.
        """
        self.lock.seek(0)
        data = self.lock.read(MARK_BYTES + 1)
        if not data:
            return []
        try:
            said = read_json(data)
            known, self._has_copy = said["ledger"], "copy" in said
            if not known or not all(isinstance(each, str) for each in known):
                raise ValueError(known)
        except WRONG_FORM:
            lock = self.path.name + LOCK
            raise LedgerError(
                f"ledger={self.path} has a damaged lock, which says what was written last: put the newest "
                f"copy back, remove {lock}, and lower the budget by what is lost"
            ) from None
        return list(known)

    def _mark(self, *digests: str) -> None:
        """Write the possible hashes of the ledger on disk to the lock file, in a single write.

        Beside them stands whether the ledger has a copy.
        """
        said = {"ledger": digests} | ({} if self.copy is None else {"copy": True})
        line = json.dumps(said).encode().ljust(MARK_BYTES - 1) + b"\n"
        handle = self.lock.fileno()
        was_empty = os.fstat(handle).st_size == 0
        try:
            if os.pwrite(handle, line, 0) < len(line):
                if was_empty:
                    # Else the part of a mark would stand for a ledger that was never written.
                    os.truncate(handle, 0)
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(handle)
        except OSError as error:
            raise LedgerError(
                f"ledger={self.path} cannot be written: {error.strerror}; free space, or let this node's "
                "user write it"
            ) from None


@contextmanager
def locked_ledger(path: Path, copy: Path | None = None) -> Iterator[LedgerFile]:
    """Open and lock a client's ledger file; a new file is made if there has never been one.

    Args:
        path: of the file.
        copy: the folder in which it is written a second time; None for no such.

    Raises:
        LedgerError: it is damaged, lost, a copy from before, in other hands, or its directory does not exist.
    """
    with _file(path).locked() as lock:
        file = LedgerFile(path, ClientLedger(), lock, copy)
        file.load()
        yield file


def accept_ledger(path: Path, copy: Path) -> ClientLedger:
    """Merge a ledger and its copy: keep every run, round and step that either of them holds.

    Raises:
        LedgerError: the copy's path is not a folder, neither can be read, neither is the one written last, a
            run has cost something under other terms in each, both together break a run's terms, or one
            cannot be written.
    """
    if not copy.is_dir():
        raise LedgerError(f"{copy} is not a folder: name that of {COPY_FILE}, or make it")
    files = (_file(path), _copy_in(copy))
    unread = LedgerError(f"neither ledger={path} nor its copy in {copy} can be read: put one back")
    if not any(each.path.exists() for each in files):
        raise unread
    with files[0].locked() as lock:
        file, bodies = LedgerFile(path, ClientLedger(), lock, copy), []
        for each in files:
            # Of a damaged one nothing is taken; the other one may be whole.
            with suppress(LedgerError):
                data = each.read()
                bodies += [] if data is None else [file._body(data)]
        if not bodies:
            raise unread
        known = file._known()
        if known and not {_digest(body) for body in bodies} & set(known):
            raise file._lost(f"and its copy in {copy} are both older than what was written last: ")
        try:
            file.ledger = ClientLedger.from_dict(larger_spend(bodies))
        except PrivacyError as error:
            raise LedgerError(
                f"ledger={path} and its copy in {copy} have each spent what the other lacks, and both "
                f"together break a run's terms ({error}): put the one that was written last in both places, "
                "and lower the budget by what that run cost in the other"
            ) from None
        file.save()
        return file.ledger


def larger_spend(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several ledgers into one that has every run, round and step of any of them.

    Raises:
        LedgerError: a run has cost something under one's terms, and under other terms of another.
    """
    runs: dict[str, dict[str, Any]] = {}
    for entry in (run for body in bodies for run in body["runs"]):
        known = runs.get(entry["terms"]["run"])
        # One that has cost nothing may have been forgotten since, and begun again under other terms.
        if known is None or _is_free(known):
            runs[entry["terms"]["run"]] = dict(entry)
            continue
        if _is_free(entry):
            continue
        known["terms"] = _terms_of_both(known, entry)
        mine, its = _steps_by_round(known), _steps_by_round(entry)
        # A round may have several updates: each counts with the more steps of the two.
        both = [
            (index, max(steps))
            for index in {**mine, **its}
            for steps in zip_longest(mine.get(index, []), its.get(index, []), fillvalue=0)
        ]
        # As many updates of its own as either says: the others were zeros.
        own = _own_updates(known) | _own_updates(entry)
        filled = sorted((Counter(index for index, _ in both) - own).elements())
        back = {tuple(each) for one in (known, entry) for each in one.get(TAKEN_BACK, ())}
        known |= {"rounds": [index for index, _ in both], "steps": [steps for _, steps in both]}
        known |= {name: True for name in SENT.values() if name in entry}
        known |= {TAKEN_BACK: sorted(map(list, back))} if back else {}
        known |= {FILLED: filled} if filled or FILLED in known else {}
    return {**bodies[0], "runs": list(runs.values())}


def _is_free(entry: Mapping[str, Any]) -> bool:
    """Whether a ledger's entry is for a run that has cost no privacy."""
    if entry["rounds"]:
        return False
    return ClientLedger.from_dict({"version": FORMAT_VERSION, "runs": [entry]}).runs[0].is_free


def _terms_of_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return two ledger entries' common terms; only the first round may differ: the earlier one is taken.

    Raises:
        LedgerError: the terms are others, so that neither stands for what both have cost.
    """
    if one["terms"] == other["terms"]:
        return dict(one["terms"])
    mine, its = (Terms.from_scalars(entry["terms"]) for entry in (one, other))
    first = min(mine.first_round, its.first_round)
    if replace(mine, first_round=first) != replace(its, first_round=first):
        raise LedgerError(
            f"run {mine.run} has other terms in the ledger than in its copy, and a cost under both: put the "
            "newer file in both places, and lower the budget by the cost of the run in the older one"
        )
    return replace(mine, first_round=first).to_scalars()


def _own_updates(entry: Mapping[str, Any]) -> Counter[int]:
    """Return how many updates the client sent in each round of a run, without updates that are all zeros."""
    return Counter(entry["rounds"]) - Counter(filled_rounds(entry))


def _steps_by_round(entry: Mapping[str, Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, steps in sorted(zip(entry["rounds"], entry["steps"], strict=True), reverse=True):
        found.setdefault(index, []).append(steps)
    return dict(reversed(found.items()))


def _file(path: Path) -> NodeFile:
    return NodeFile(path, "ledger", LedgerError)


def _copy_in(folder: Path) -> NodeFile:
    return NodeFile(folder / COPY_FILE, "ledger-copy", LedgerError)


def _digest(body: Any) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
