"""Sums without secure aggregation, for comparison: one exchange, and the server sees every update."""

from collections.abc import Mapping
from logging import WARNING

import numpy as np
from flwr.app import RecordDict
from flwr.common.logger import log

from gdpfed.clients.messages import PLAIN
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Jobs
from gdpfed.rounds.plain import plain_sum
from server_app.exchange import Exchanger
from server_app.stage_records import answered_bytes, stage_record


def sum_plain(
    exchanger: Exchanger, jobs: Jobs, training: Mapping[int, RecordDict], run_name: str, round_index: int
) -> dict[str, ClientSum]:
    """Sum every job without masks in one exchange: the same encoding, noise and tolerance of dropouts."""
    owner, contents = {}, {}
    for name, (parameters, client_ids) in jobs.items():
        record = stage_record(parameters.to_bytes(), run_name, round_index)
        for client_id in client_ids:
            owner[client_id] = name
            contents[client_id] = RecordDict({PLAIN: record, **training[client_id]})
    answers = exchanger.exchange(contents) if contents else {}
    totals = {name: np.zeros(parameters.dimension, np.uint32) for name, (parameters, _) in jobs.items()}
    arrived = dict.fromkeys(jobs, 0)
    for client_id, data in answered_bytes(answers, PLAIN).items():
        name = owner[client_id]
        if len(data) != totals[name].nbytes:
            log(WARNING, "client %d left in stage %s: no update of the right size", client_id, PLAIN)
        else:
            totals[name] += np.frombuffer(data, dtype="<u4")
            arrived[name] += 1
    return {
        name: plain_sum(name, parameters, totals[name], arrived[name])
        for name, (parameters, _) in jobs.items()
    }
