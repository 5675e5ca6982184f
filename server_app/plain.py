"""Sums without secure aggregation: one exchange, and the server sees every update.

Clients send their clipped updates without noise, and the server adds that of the whole sum.
"""

from collections.abc import Mapping, Sequence
from logging import WARNING
from math import isinf

import numpy as np
import numpy.typing as npt
from flwr.app import RecordDict
from flwr.common.logger import log

from gdpfed.clients.messages import PLAIN
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.plain import plain_sum, sum_noise_steps
from gdpfed.rounds.prepared import PreparedSum
from server_app.exchange import Exchanger
from server_app.stage_records import answered_bytes, stage_record


def sum_plain(
    exchanger: Exchanger, sums: Sequence[PreparedSum], training: Mapping[int, RecordDict], run_name: str
) -> dict[str, ClientSum]:
    """Every sum without masks in one exchange: the same encoding, law of the noise and dropouts.

    Here the server sees whose update is none within its bound, and leaves it out.
    """
    owner: dict[int, PreparedSum] = {}
    contents: dict[int, RecordDict] = {}
    for each in sums:
        record = stage_record(each.parameters.to_bytes(), run_name, each.order.round_index)
        for client_id in each.clients:
            owner[client_id] = each
            contents[client_id] = RecordDict({PLAIN: record, **training[client_id]})
    answers = exchanger.exchange(contents) if contents else {}
    totals = {each.name: np.zeros(each.parameters.dimension, np.uint32) for each in sums}
    arrived: dict[str, list[int]] = {name: [] for name in totals}
    for client_id, data in answered_bytes(answers, PLAIN).items():
        asked = owner[client_id]
        update = _update(asked, client_id, data)
        if update is None:
            log(WARNING, "client %d left in stage %s: no update within its bound", client_id, PLAIN)
        else:
            totals[asked.name] += update
            arrived[asked.name].append(client_id)
    return {each.name: _noised(each, totals[each.name], arrived[each.name]) for each in sums}


def _update(asked: PreparedSum, client_id: int, data: bytes) -> npt.NDArray[np.uint32] | None:
    """One client's residues; None where they are no update of its own bound."""
    encoding, norm = asked.parameters.encoding(len(asked.clients)), asked.part(client_id).clipping_norm
    own = encoding if isinf(norm) else encoding.clipped_to(norm)
    if len(data) != 4 * encoding.dimension:
        return None
    residues = np.frombuffer(data, dtype="<u4").astype(np.uint32)
    return residues if own.is_encoded(residues) else None


def _noised(each: PreparedSum, total: npt.NDArray[np.uint32], members: Sequence[int]) -> ClientSum:
    noise = sum_noise_steps(each.order, each.parameters)
    return plain_sum(each.name, each.parameters, total + noise.astype(np.uint32), members)
