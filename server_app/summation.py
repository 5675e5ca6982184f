"""The exchanges of one or more sums: four stages with masks (five against a lying server), or one without."""

from collections.abc import Mapping
from functools import partial
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
from gdpfed.rounds.sums import plain_sum, sum_pairwise
from secagg import Stage
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


def sum_masked(
    exchanger: Exchanger,
    jobs: Jobs,
    training: Contents,
    context: bytes,
    roster: Mapping[int, bytes],
    which_round: RecordDict,
) -> dict[str, ClientSum]:
    """Sum every job under secure aggregation.

    Args:
        training: what each client needs to train, sent with the masked-input request.
        context: names the training, see `TrainingOrder.context`.
        roster: the public identity key of every client, in active mode.
        which_round: run and round, for the ledgers that clients keep themselves.
    """
    announced = RecordDict({**roster_content(roster), **which_round})
    extras = {
        Stage.ADVERTISE: dict.fromkeys(training, announced),
        Stage.MASK: {client: RecordDict({**each, **which_round}) for client, each in training.items()},
    }
    return sum_pairwise(partial(_exchange_stage, exchanger, extras), jobs, context, roster)


def roster_content(roster: Mapping[int, bytes]) -> RecordDict:
    """The roster as a record; nothing where there is none."""
    if not roster:
        return RecordDict()
    ids = sorted(roster)
    record = ConfigRecord({"clients": ids, "keys": [roster[client_id] for client_id in ids]})
    return RecordDict({ROSTER_RECORD: record})


def _exchange_stage(
    exchanger: Exchanger, extras: Mapping[Stage, Contents], stage: Stage, requests: Mapping[int, bytes]
) -> dict[int, bytes]:
    extra = extras.get(stage, {})
    contents = {
        client_id: RecordDict({SESSION_RECORD: ConfigRecord({"data": data}), **extra.get(client_id, {})})
        for client_id, data in requests.items()
    }
    answers = exchanger.exchange(MESSAGE_TYPES[stage], contents)
    return {client_id: _session_bytes(answer) for client_id, answer in answers.items()}


def _session_bytes(answer: RecordDict) -> bytes:
    """The answer's bytes; nothing where there are none, which every session refuses."""
    record = answer.get(SESSION_RECORD)
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    return data if isinstance(data, bytes) else b""


def sum_plain(exchanger: Exchanger, jobs: Jobs, training: Contents) -> dict[str, ClientSum]:
    """Sum every job without masks in one exchange: the same encoding, noise and tolerance of dropouts."""
    owner, contents = {}, {}
    for name, (parameters, client_ids) in jobs.items():
        record = ConfigRecord({"data": parameters.to_bytes()})
        for client_id in client_ids:
            owner[client_id] = name
            contents[client_id] = RecordDict({SESSION_RECORD: record, **training[client_id]})
    answers = exchanger.exchange(PLAIN, contents) if contents else {}
    totals = {name: np.zeros(parameters.dimension, np.uint32) for name, (parameters, _) in jobs.items()}
    arrived = dict.fromkeys(jobs, 0)
    for client_id, answer in answers.items():
        name = owner[client_id]
        residues = _residues(answer, jobs[name][0].dimension)
        if residues is None:
            log(WARNING, "client %d left in stage %s: no update of the right size", client_id, PLAIN)
        else:
            totals[name] += residues
            arrived[name] += 1
    return {
        name: plain_sum(name, parameters, totals[name], arrived[name])
        for name, (parameters, _) in jobs.items()
    }


def _residues(answer: RecordDict, dimension: int) -> npt.NDArray[np.uint32] | None:
    record = answer.get(UPDATE_RECORD)
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes) or len(data) != 4 * dimension:
        return None
    return np.frombuffer(data, dtype="<u4")
