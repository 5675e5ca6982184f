"""Sums of a wave, whoever carries the bytes: the server's sessions under masks, and the plain sum."""

import logging
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Jobs
from secagg import RemoteProtocolError, RoundParameters, ServerSession, Stage, ThresholdNotMet

logger = logging.getLogger(__name__)

Exchange = Callable[[Stage, Mapping[int, bytes]], Mapping[int, bytes]]
"""Carries one stage's requests to clients, by client id, and brings back the answers that came."""


def sum_pairwise(
    exchange: Exchange, jobs: Jobs, context: bytes, roster: Mapping[int, bytes]
) -> dict[str, ClientSum]:
    """Sum every job under secure aggregation, all jobs in the same exchanges.

    Args:
        exchange: reaches the clients.
        jobs: parameters and cohort by name; no client occurs twice.
        context: names the training, see `TrainingOrder.context`.
        roster: the public identity key of every client, in active mode.
    """
    sessions = {name: ServerSession(parameters, ids, roster) for name, (parameters, ids) in jobs.items()}
    for session in sessions.values():
        session.bind(context)
    failures: dict[str, str] = {}
    while running := {n: s for n, s in sessions.items() if n not in failures and not s.done}:
        _run_stage(exchange, running)
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


def _run_stage(exchange: Exchange, sessions: Mapping[str, ServerSession]) -> None:
    """Send each session's requests and hand it the answers; a bad answer loses its sender only."""
    stage = next(iter(sessions.values())).stage
    owner: dict[int, ServerSession] = {}
    requests: dict[int, bytes] = {}
    for session in sessions.values():
        own = session.requests()
        owner |= dict.fromkeys(own, session)
        requests |= own
    for client_id, answer in exchange(stage, requests).items():
        try:
            owner[client_id].receive(client_id, answer)
        except RemoteProtocolError as error:
            logger.warning("client %d left in stage %s: %s", client_id, stage, error)


def _decoded(name: str, parameters: RoundParameters, session: ServerSession) -> ClientSum:
    result = session.result()
    total = parameters.encoding(result.num_contributors).decode(result.total)
    return ClientSum(name, total, len(result.survivors), upload_bytes=parameters.upload_bytes_per_coordinate)


def plain_sum(
    name: str, parameters: RoundParameters, total: npt.NDArray[np.uint32], num_updates: int
) -> ClientSum:
    """The sum of residues that arrived without masks: the same encoding and tolerance of dropouts."""
    need = parameters.num_clients - parameters.dropout_tolerance
    if num_updates < need:
        return ClientSum(name, None, 0, f"{num_updates} updates arrived, {need} are needed")
    encoding = parameters.encoding(parameters.num_clients)
    return ClientSum(name, encoding.decode(total), num_updates, upload_bytes=4.0)
