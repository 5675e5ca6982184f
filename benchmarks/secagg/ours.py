"""Our own side of the comparison: whole rounds in memory, with the time of each part."""

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import noted
from gdpfed.errors import FailedError
from secagg import ClientSession, ServerSession, Stage, SumParameters, sparse_degree, threshold_for
from testing.joined_sessions import POLICY, make_parameters


@dataclass(frozen=True)
class RoundCost:
    """Seconds of the median client in each stage, and seconds of the server in all."""

    client_seconds: dict[Stage, float]
    server_seconds: float

    @property
    def client_total(self) -> float:
        """Seconds of the median clients of all stages together."""
        return sum(self.client_seconds.values())


def parameters_for(num_clients: int, dimension: int, **changes: Any) -> SumParameters:
    """A sum on the complete graph, of which any two thirds recover a secret."""
    ours = {"threshold": threshold_for(num_clients, 2 / 3), "dropout_tolerance": num_clients // 10}
    return make_parameters(num_clients, dimension=dimension, **(ours | changes))


def sparse_parameters(num_clients: int, dimension: int) -> SumParameters:
    """A sum on the sparse graph for shares of 0.1 corrupt and dropped clients."""
    degree, threshold = sparse_degree(num_clients, 0.1, 0.1)
    return parameters_for(num_clients, dimension, num_neighbours=degree, threshold=threshold)


def run_round(parameters: SumParameters) -> RoundCost:
    """A round in which the last tenth of the members vanishes before its masked vector."""
    ids = range(1, parameters.num_clients + 1)
    stayed = parameters.num_clients - parameters.num_clients // 10
    server, clients = ServerSession(parameters, ids), {i: ClientSession(i, POLICY) for i in ids}
    residues = np.arange(parameters.dimension, dtype=np.uint32)
    of_server: list[float] = []
    of_clients: defaultdict[Stage, list[float]] = defaultdict(list)
    while not server.done:
        stage = server.stage
        with noted(of_server):
            requests = server.requests()
        for i, request in requests.items():
            if stage is Stage.MASK and i > stayed:
                continue
            with noted(of_clients[stage]):
                reply = _answer(clients[i], stage, request, residues)
            with noted(of_server):
                server.receive(i, reply)
        with noted(of_server):
            server.close_stage()
    if not np.array_equal(server.result().total, residues * np.uint32(stayed)):
        raise FailedError("the benchmark's own round gave a wrong sum: run the tests of secagg")
    return RoundCost({stage: median(times) for stage, times in of_clients.items()}, sum(of_server))


def peak_vectors(dimension: int) -> float:
    """The most memory a client holds from its residues to its reply, in vectors of 4 d bytes."""
    server = ServerSession(parameters_for(4, dimension), range(4))
    clients, nothing = {i: ClientSession(i, POLICY) for i in range(4)}, np.zeros(0, dtype=np.uint32)
    for stage in (Stage.ADVERTISE, Stage.SHARE):
        for i, request in server.requests().items():
            server.receive(i, _answer(clients[i], stage, request, nothing))
        server.close_stage()
    request = server.requests()[0]
    tracemalloc.start()
    residues = np.ones(dimension, dtype=np.uint32)
    _answer(clients[0], Stage.MASK, request, residues)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (4 * dimension)


def _answer(client: ClientSession, stage: Stage, request: bytes, residues: npt.NDArray[np.uint32]) -> bytes:
    if stage is Stage.MASK:
        client.accept_shares(request)
        return client.mask(residues)
    answers = {Stage.ADVERTISE: client.advertise, Stage.SHARE: client.share, Stage.UNMASK: client.unmask}
    return answers[stage](request)
