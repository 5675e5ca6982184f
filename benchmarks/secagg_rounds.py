"""Our own side of the comparison: whole rounds in memory, with the time of each part."""

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from secagg import ClientPolicy, ClientSession, RoundParameters, ServerSession, Stage, threshold_for

POLICY = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5)


@dataclass
class RoundCost:
    """Seconds a client (median of all) in each stage, and seconds of the server in all."""

    client_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: float = 0.0

    @property
    def client_total(self) -> float:
        return sum(self.client_seconds.values())


def parameters_for(num_clients: int, dimension: int, **changes: Any) -> RoundParameters:
    values: dict[str, Any] = {
        "label": "benchmark",
        "num_clients": num_clients,
        "threshold": threshold_for(num_clients, 2 / 3),
        "dropout_tolerance": num_clients // 10,
        "dimension": dimension,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return RoundParameters(**(values | changes))


def run_round(parameters: RoundParameters, dropped: int) -> RoundCost:
    """A round in which the last `dropped` members vanish before their masked vector."""
    ids = list(range(1, parameters.num_clients + 1))
    server = ServerSession(parameters, ids)
    clients = {i: ClientSession(i, POLICY) for i in ids}
    residues = np.arange(parameters.dimension, dtype=np.uint32)
    cost, spent = RoundCost(), defaultdict[str, list[float]](list)
    while not server.done:
        began = perf_counter()
        requests = server.requests()
        cost.server_seconds += perf_counter() - began
        stage = server.stage
        for client_id, request in requests.items():
            if stage is Stage.MASK and client_id > parameters.num_clients - dropped:
                continue
            began = perf_counter()
            reply = _answer(clients[client_id], stage, request, residues)
            spent[stage].append(perf_counter() - began)
            began = perf_counter()
            server.receive(client_id, reply)
            cost.server_seconds += perf_counter() - began
        began = perf_counter()
        server.close_stage()
        cost.server_seconds += perf_counter() - began
    expected = residues * np.uint32(parameters.num_clients - dropped)
    if not np.array_equal(server.result().total, expected):
        raise RuntimeError("the benchmark's own round gave a wrong sum")
    cost.client_seconds = {stage: float(np.median(times)) for stage, times in spent.items()}
    return cost


def peak_vectors(dimension: int) -> float:
    """The most memory a client holds from its residues to its reply, in vectors of 4 d bytes."""
    parameters = parameters_for(4, dimension, dropout_tolerance=0)
    server = ServerSession(parameters, range(4))
    clients = {i: ClientSession(i, POLICY) for i in range(4)}
    for stage in (Stage.ADVERTISE, Stage.SHARE):
        for client_id, request in server.requests().items():
            server.receive(client_id, _answer(clients[client_id], stage, request, None))
        server.close_stage()
    request = server.requests()[0]
    tracemalloc.start()
    residues = np.ones(dimension, dtype=np.uint32)
    _answer(clients[0], Stage.MASK, request, residues)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (4 * dimension)


def _answer(client: ClientSession, stage: Stage, request: bytes, residues: Any) -> bytes:
    if stage is Stage.ADVERTISE:
        return client.advertise(request)
    if stage is Stage.SHARE:
        return client.share(request)
    if stage is Stage.UNMASK:
        return client.unmask(request)
    client.accept_shares(request)
    return client.mask(residues)
