"""The exchanges of one or more sums: four stages with masks, or one without."""

from collections.abc import Mapping, Sequence
from logging import WARNING

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log

from gdpfed.exchange import (
    ADVERTISE,
    MASKED,
    PLAIN,
    SESSION_RECORD,
    SHARE,
    UNMASK,
    UPDATE_RECORD,
)
from gdpfed.methods.base import ClientSum
from secagg import (
    RemoteProtocolError,
    RoundParameters,
    ServerSession,
    ThresholdNotMet,
)
from server_app.exchange import Exchanger

Jobs = Mapping[str, tuple[RoundParameters, Sequence[int]]]


def sum_pairwise(exchanger: Exchanger, jobs: Jobs, training: RecordDict) -> dict[str, ClientSum]:
    """Sum every job under secure aggregation, all jobs in the same four exchanges.

    Args:
        jobs: parameters and cohort by name; no client occurs twice.
        training: what clients need to train, sent with the masked-input request.
    """
    sessions = {name: ServerSession(parameters, ids) for name, (parameters, ids) in jobs.items()}
    failures: dict[str, str] = {}
    for stage in (ADVERTISE, SHARE, MASKED, UNMASK):
        running = {name: s for name, s in sessions.items() if name not in failures}
        if not running:
            break
        extra = training if stage == MASKED else RecordDict()
        _run_stage(exchanger, stage, running, extra)
        for name, session in running.items():
            try:
                session.close_stage()
            except ThresholdNotMet as error:
                failures[name] = str(error)
    return {
        name: ClientSum(name, None, 0, failures[name])
        if name in failures
        else _decoded(name, jobs[name][0], session)
        for name, session in sessions.items()
    }


def _run_stage(
    exchanger: Exchanger, stage: str, sessions: Mapping[str, ServerSession], extra: RecordDict
) -> None:
    """Send each session's requests and hand it the answers; a bad answer loses its sender only."""
    owner: dict[int, str] = {}
    contents: dict[int, RecordDict] = {}
    for name, session in sessions.items():
        for client_id, data in session.requests().items():
            owner[client_id] = name
            contents[client_id] = RecordDict({SESSION_RECORD: ConfigRecord({"data": data}), **extra})
    for client_id, answer in exchanger.exchange(stage, contents).items():
        try:
            sessions[owner[client_id]].receive(client_id, _session_bytes(answer))
        except RemoteProtocolError as error:
            log(WARNING, "client %d left in stage %s: %s", client_id, stage, error)


def _session_bytes(answer: RecordDict) -> bytes:
    """The answer's bytes; nothing where there are none, which every session refuses."""
    record = answer.get(SESSION_RECORD)
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    return data if isinstance(data, bytes) else b""


def _decoded(name: str, parameters: RoundParameters, session: ServerSession) -> ClientSum:
    result = session.result()
    total = parameters.encoding(result.num_contributors).decode(result.total)
    return ClientSum(name, total, len(result.survivors))


def sum_plain(exchanger: Exchanger, jobs: Jobs, training: RecordDict) -> dict[str, ClientSum]:
    """Sum every job without masks in one exchange: the same encoding, noise and tolerance of dropouts."""
    owner, contents = {}, {}
    for name, (parameters, client_ids) in jobs.items():
        record = ConfigRecord({"data": parameters.to_bytes()})
        for client_id in client_ids:
            owner[client_id] = name
            contents[client_id] = RecordDict({SESSION_RECORD: record, **training})
    answers = exchanger.exchange(PLAIN, contents) if contents else {}
    updates: dict[str, list[npt.NDArray[np.uint32]]] = {name: [] for name in jobs}
    for client_id, answer in answers.items():
        name = owner[client_id]
        residues = _residues(answer, jobs[name][0].dimension)
        if residues is None:
            log(WARNING, "client %d left in stage %s: no update of the right size", client_id, PLAIN)
        else:
            updates[name].append(residues)
    return {name: _plain_sum(name, jobs[name][0], updates[name]) for name in jobs}


def _residues(answer: RecordDict, dimension: int) -> npt.NDArray[np.uint32] | None:
    record = answer.get(UPDATE_RECORD)
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes) or len(data) != 4 * dimension:
        return None
    return np.frombuffer(data, dtype="<u4")


def _plain_sum(
    name: str, parameters: RoundParameters, updates: Sequence[npt.NDArray[np.uint32]]
) -> ClientSum:
    need = parameters.num_clients - parameters.dropout_tolerance
    if len(updates) < need:
        return ClientSum(name, None, 0, f"{len(updates)} updates arrived, {need} are needed")
    total = np.zeros(parameters.dimension, dtype=np.uint32)
    for update in updates:
        total += update
    return ClientSum(name, parameters.encoding(parameters.num_clients).decode(total), len(updates))
