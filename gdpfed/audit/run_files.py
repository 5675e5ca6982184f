"""Read a run's JSON and YAML files for an audit, without trusting their content."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdpfed.decimal_numbers import counted
from gdpfed.errors import AuditError, ReportError, words_of
from gdpfed.json_files import read_json
from gdpfed.runs.file_formats import (
    ASSIGNMENT_FILE,
    AT_CHANCE_FILE,
    COLUMNS_FILE,
    CONFIG_FILE,
    COUNTS_FILE,
    CUT_FILE,
    END_FILE,
    HELD_OUT_FILE,
    LEDGER_FILE,
    MODEL_CARD_FILE,
    NORMS_FILE,
    PARTS_FILE,
    PLAN_FILE,
    REWARDS_FILE,
    ROUNDS_FILE,
    SEAL_FILE,
    VOTE_FILE,
)
from gdpfed.yaml_files import read_yaml

# The one format that is audited; the audit has this number of its own, as it has all others.
FORMAT_VERSION = 4
OF_METHODS = ("weighting", "game", "totals", "settings")


@dataclass(frozen=True)
class RunFiles:
    """The content of a run's files as an audit reads it: plan, ledger, log and configuration.

    Attributes:
        config, plan, ledger: as they were saved, a version aside.
        clients: the ids of every group, each as the runs [start, stop) that it was saved as.
        rounds: one mapping a line.
        counts: class counts that clients have released, one row a client; None where none have.
        name: by which clients know the run.
        seal: the hashes of files as the run left them; None where it has left none.
        held_out: counts over held-out records; None where none were released.
        declared_parties: at how many clients a person may be by the run's columns; 0 where none are declared.
        vote: votes over settings; None where there were none.
        norms: a histogram of the norms of updates; None where there is none.
        columns: by which the run's tables are read; None where they are none.
        parties: what clients are called, in order; empty where they have no names.
        parts: results by party; None where there are none.
        rewards: what clients have earned that choose their budgets; None of other runs.
        card: the model card; None where there is none yet.
        chance: what there is to say of a result at chance; None of another.
        end: why the run ended early, and figures of a model that an extension chose; None where none is said.
        cut: what was cut or left out of the data, of which only the version is checked; None of older runs.
    """

    config: dict[str, Any]
    plan: dict[str, Any]
    ledger: dict[str, Any]
    clients: list[list[tuple[int, int]]]
    rounds: list[dict[str, Any]]
    counts: np.ndarray[Any, np.dtype[np.float64]] | None = None
    seal: dict[str, str] | None = None
    name: str = ""
    held_out: dict[str, Any] | None = None
    declared_parties: int = 0
    vote: dict[str, Any] | None = None
    norms: dict[str, Any] | None = None
    columns: dict[str, Any] | None = None
    parties: tuple[str, ...] = ()
    parts: dict[str, Any] | None = None
    rewards: dict[str, Any] | None = None
    card: str | None = None
    chance: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    cut: dict[str, Any] | None = None

    @classmethod
    def read(cls, directory: Path) -> "RunFiles":
        """Read a run directory for an audit.

        Raises ReportError: it is not a run. AuditError: a file is missing, cannot be read, or is of another
        format.
        """
        if not directory.is_dir():
            raise ReportError(f"{directory} is not a run directory: name one, such as runs/NAME")
        if not (directory / PLAN_FILE).exists():
            runs = sorted(each.parent for each in directory.glob(f"*/{PLAN_FILE}"))
            if runs:
                raise ReportError(
                    f"{directory} holds {counted(len(runs), 'run')}: name one, such as {runs[0]}"
                )
            raise ReportError(f"{directory} holds no run: there is no {PLAN_FILE} in it")
        plan = _versioned(directory / PLAN_FILE, _mapping(directory / PLAN_FILE))
        assignment = _versioned(directory / ASSIGNMENT_FILE, _mapping(directory / ASSIGNMENT_FILE))
        columns, declared = directory / COLUMNS_FILE, "columns" in assignment
        try:
            clients = [[(int(a), int(b)) for a, b in group] for group in assignment["clients"]]
        except (KeyError, TypeError, ValueError) as error:
            raise AuditError(
                f"{directory / ASSIGNMENT_FILE} is not an assignment of clients: {error}; restore it "
                "from a copy"
            ) from None
        return cls(
            config=_mapping(directory / CONFIG_FILE),
            plan=plan,
            ledger=_versioned(directory / LEDGER_FILE, _mapping(directory / LEDGER_FILE)),
            clients=clients,
            rounds=_round_records(directory / ROUNDS_FILE, sealed=(directory / SEAL_FILE).exists()),
            counts=_class_counts(directory / COUNTS_FILE),
            seal=_sealed_hashes(directory / SEAL_FILE),
            name=str(assignment.get("run", "")),
            held_out=_if_there(directory / HELD_OUT_FILE),
            vote=_if_there(directory / VOTE_FILE),
            norms=_if_there(directory / NORMS_FILE),
            declared_parties=_declared_parties(columns) if declared and columns.exists() else 0,
            columns=_mapping(columns) if declared else None,
            parties=tuple(map(str, assignment.get("parties", ()))),
            parts=_if_there(directory / PARTS_FILE),
            rewards=_if_there(directory / REWARDS_FILE),
            chance=_if_there(directory / AT_CHANCE_FILE),
            end=_if_there(directory / END_FILE),
            cut=_if_there(directory / CUT_FILE),
            card=_text(directory / MODEL_CARD_FILE) if (directory / MODEL_CARD_FILE).exists() else None,
        )

    def members(self, group: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The client ids of a group, int64."""
        return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in self.clients[group]])

    def fingerprint(self) -> str:
        """Hash the plan (numbers to six digits) and the client ids of every group with SHA-256.

        How the method weighs the sums, which game it comes of, and what was set, is left out.
        One run of ids enters as the text ``range(start, stop)``, several as little-endian int64; each
        after its length in eight bytes.
        """
        plan = {key: value for key, value in self.plan.items() if key not in OF_METHODS}
        digest = hashlib.sha256(json.dumps(_six_digits(plan), sort_keys=True).encode())
        for group, runs in enumerate(self.clients):
            if len(runs) == 1:
                ids = f"range({runs[0][0]}, {runs[0][1]})".encode()
            else:
                ids = self.members(group).astype("<i8").tobytes()
            digest.update(len(ids).to_bytes(8, "little") + ids)
        return digest.hexdigest()


def _if_there(path: Path) -> dict[str, Any] | None:
    return _versioned(path, _mapping(path)) if path.exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AuditError(f"{path} cannot be read: {words_of(error)}; restore it from a copy") from None


def _mapping(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        data = read_yaml(text) if path.suffix == ".yaml" else read_json(text)
    except (ValueError, RecursionError) as error:
        raise AuditError(f"{path} cannot be read: {words_of(error)}; restore it from a copy") from None
    if not isinstance(data, dict):
        raise AuditError(f"{path} holds a {type(data).__name__}, not a mapping: restore it from a copy")
    return data


def _versioned(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return a file's content without its format version; raise AuditError for another version."""
    version = data.get("version")
    if version != FORMAT_VERSION:
        named = "no format version" if version is None else f"format version {version}"
        raise AuditError(
            f"{path} has {named}, and this audit reads version {FORMAT_VERSION}: "
            "use the gdpfed that wrote the run"
        )
    return {key: value for key, value in data.items() if key != "version"}


def _declared_parties(path: Path) -> int:
    """Return at how many parties columns.yaml says that a person may be: 1 by default, 0 without persons."""
    person = _mapping(path).get("person")
    try:
        return int(person.get("parties", 1)) if isinstance(person, dict) else int(person is not None)
    except (TypeError, ValueError) as error:
        raise AuditError(
            f"{path} does not say at how many parties a person may be: {error}; restore it from a copy"
        ) from None


def _sealed_hashes(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    hashes = _versioned(path, _mapping(path)).get("sha256")
    if not isinstance(hashes, dict) or not all(isinstance(each, str) for each in hashes.values()):
        raise AuditError(f"{path} holds no hashes of files: restore it from a copy")
    return hashes


def _class_counts(path: Path) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    if not path.exists():
        return None
    try:
        return np.asarray(_versioned(path, _mapping(path))["counts"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise AuditError(
            f"{path} holds no class counts ({type(error).__name__}: {error}): restore it from a copy"
        ) from None


def _round_records(path: Path, *, sealed: bool) -> list[dict[str, Any]]:
    """Read the rounds of a log; a last line that is not whole is one that a run was writing when it ended.

    A run that has sealed its files writes nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from None
    if sealed and lines and not lines[-1].endswith("\n"):
        raise AuditError(
            f"{path} ends within a line, and the run has ended or paused: restore it from a copy"
        )
    records = []
    for number, line in enumerate((each for each in lines if each.endswith("\n")), start=1):
        try:
            record = read_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise AuditError(f"{path} line {number} is not a record of a round: restore the file from a copy")
        records.append(_versioned(path, record))
    return records


def _six_digits(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return [_six_digits(item) for item in value]
    if isinstance(value, dict):
        return {key: _six_digits(item) for key, item in value.items()}
    return value
