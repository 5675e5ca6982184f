"""The exchanges of one or more sums: four stages with masks (five against a lying server), or one without."""

from collections.abc import Mapping, Sequence
from logging import WARNING

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log

from gdpfed.exchange import (
    ADVERTISE,
    CHECK,
    MASKED,
    PLAIN,
    ROSTER_RECORD,
    SESSION_RECORD,
    SHARE,
    UNMASK,
    UPDATE_RECORD,
)
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Jobs
from secagg import (
    RemoteProtocolError,
    RoundParameters,
    ServerSession,
    Stage,
    ThresholdNotMet,
)
from server_app.exchange import Exchanger

MESSAGE_TYPES = {
    Stage.ADVERTISE: ADVERTISE,
    Stage.SHARE: SHARE,
    Stage.MASK: MASKED,
    Stage.CHECK: CHECK,
    Stage.UNMASK: UNMASK,
}

Contents = Mapping[int, RecordDict]
"""What a message holds beside the session's bytes, by client."""


def sum_pairwise(
    exchanger: Exchanger,
    jobs: Jobs,
    training: Contents,
    context: bytes,
    roster: Mapping[int, bytes],
) -> dict[str, ClientSum]:
    """Sum every job under secure aggregation, all jobs in the same exchanges.

    Args:
        jobs: parameters and cohort by name; no client occurs twice.
        training: what each client needs to train, sent with the masked-input request.
        context: names the training, see `TrainingOrder.context`.
        roster: the public identity key of every client, in active mode.
    """
    sessions = {name: ServerSession(parameters, ids, roster) for name, (parameters, ids) in jobs.items()}
    for session in sessions.values():
        session.bind(context)
    extras = {Stage.MASK: training, Stage.ADVERTISE: dict.fromkeys(training, roster_content(roster))}
    failures: dict[str, str] = {}
    while running := {n: s for n, s in sessions.items() if n not in failures and not s.done}:
        stage = next(iter(running.values())).stage
        _run_stage(exchanger, stage, running, extras.get(stage, {}))
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


def roster_content(roster: Mapping[int, bytes]) -> RecordDict:
    """The roster as a record; nothing where there is none."""
    if not roster:
        return RecordDict()
    ids = sorted(roster)
    record = ConfigRecord({"clients": ids, "keys": [roster[client_id] for client_id in ids]})
    return RecordDict({ROSTER_RECORD: record})


def _run_stage(
    exchanger: Exchanger, stage: Stage, sessions: Mapping[str, ServerSession], extra: Contents
) -> None:
    """Send each session's requests and hand it the answers; a bad answer loses its sender only."""
    owner: dict[int, str] = {}
    contents: dict[int, RecordDict] = {}
    for name, session in sessions.items():
        for client_id, data in session.requests().items():
            owner[client_id] = name
            record = ConfigRecord({"data": data})
            contents[client_id] = RecordDict({SESSION_RECORD: record, **extra.get(client_id, {})})
    for client_id, answer in exchanger.exchange(MESSAGE_TYPES[stage], contents).items():
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
    return ClientSum(name, total, len(result.survivors), upload_bytes=parameters.upload_bytes_per_coordinate)


def sum_plain(exchanger: Exchanger, jobs: Jobs, training: Contents) -> dict[str, ClientSum]:
    """Sum every job without masks in one exchange: the same encoding, noise and tolerance of dropouts."""
    owner, contents = {}, {}
    for name, (parameters, client_ids) in jobs.items():
        record = ConfigRecord({"data": parameters.to_bytes()})
        for client_id in client_ids:
            owner[client_id] = name
            contents[client_id] = RecordDict({SESSION_RECORD: record, **training[client_id]})
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
    return ClientSum(
        name, parameters.encoding(parameters.num_clients).decode(total), len(updates), upload_bytes=4.0
    )
