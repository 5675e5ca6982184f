"""Sums without secure aggregation, for comparison: one exchange, and the server sees every update."""

from collections.abc import Mapping, Sequence
from logging import WARNING

import numpy as np
from flwr.app import RecordDict
from flwr.common.logger import log

from gdpfed.clients.messages import PLAIN
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import PreparedSum
from gdpfed.rounds.plain import plain_sum
from server_app.exchange import Exchanger
from server_app.stage_records import answered_bytes, stage_record


def sum_plain(
    exchanger: Exchanger, sums: Sequence[PreparedSum], training: Mapping[int, RecordDict], run_name: str
) -> dict[str, ClientSum]:
    """Every sum without masks in one exchange: the same encoding, noise and tolerance of dropouts."""
    owner, contents = {}, {}
    for each in sums:
        record = stage_record(each.parameters.to_bytes(), run_name, each.order.round_index)
        for client_id in each.clients:
            owner[client_id] = each.name
            contents[client_id] = RecordDict({PLAIN: record, **training[client_id]})
    answers = exchanger.exchange(contents) if contents else {}
    totals = {each.name: np.zeros(each.parameters.dimension, np.uint32) for each in sums}
    arrived = dict.fromkeys(totals, 0)
    for client_id, data in answered_bytes(answers, PLAIN).items():
        name = owner[client_id]
        if len(data) != totals[name].nbytes:
            log(WARNING, "client %d left in stage %s: no update of the right size", client_id, PLAIN)
        else:
            totals[name] += np.frombuffer(data, dtype="<u4")
            arrived[name] += 1
    return {
        each.name: plain_sum(each.name, each.parameters, totals[each.name], arrived[each.name])
        for each in sums
    }
