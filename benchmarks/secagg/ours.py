"""Measures whole rounds of gdpfed's secure aggregation within one process, stage by stage."""

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import noted
from gdpfed.errors import FailedError
from secagg import (
    ClientSession,
    Contributors,
    EncodingError,
    ImplausibleSum,
    ServerSession,
    Stage,
    SumParameters,
    check_sum,
    sparse_degree,
    threshold_for,
)
from secagg.arithmetic.packing import FULL_BITS
from testing.secagg_sums import POLICY, make_parameters


@dataclass(frozen=True)
class RoundCost:
    """The costs of one secure sum: seconds of the median client in each stage, and seconds of the server."""

    client_seconds: dict[Stage, float]
    server_seconds: float

    @property
    def client_total(self) -> float:
        """Seconds of the median client, summed over the stages."""
        return sum(self.client_seconds.values())


def parameters_for(num_clients: int, dimension: int, **changes: Any) -> SumParameters:
    """Return parameters of a secure sum: complete graph, threshold 2/3, 10 % dropouts, smallest modulus."""
    dropouts = num_clients // 10
    try:
        bits = Contributors(num_clients, dropouts).modulus_bits(noise_multiplier=1.0)
    except EncodingError:
        bits = FULL_BITS
    threshold = threshold_for(num_clients, 2 / 3)
    ours = {"threshold": threshold, "dropout_tolerance": dropouts, "modulus_bits": bits}
    return make_parameters(num_clients, dimension=dimension, **(ours | changes))


def sparse_parameters(num_clients: int, dimension: int) -> SumParameters:
    """Return parameters of a secure sum on the sparse graph, for 10 % corrupt and 10 % dropped clients."""
    degree, threshold = sparse_degree(num_clients, 0.1, 0.1)
    return parameters_for(num_clients, dimension, num_neighbours=degree, threshold=threshold)


def run_round(parameters: SumParameters) -> RoundCost:
    """Run one secure sum in which a tenth of the clients drops out; return the seconds of each stage.

    The clients encode an update, draw noise and pack; the server unpacks and decodes.
    """
    ids = range(1, parameters.num_clients + 1)
    stayed = parameters.num_clients - parameters.num_clients // 10
    server, clients = ServerSession(parameters, ids), {i: ClientSession(i, POLICY) for i in ids}
    update = np.full(parameters.dimension, 0.9 / sqrt(parameters.dimension), dtype=np.float32)
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
                reply = _answer(clients[i], stage, request, update)
            with noted(of_server):
                server.receive(i, reply)
        with noted(of_server):
            server.close_stage()
    result = server.result()
    with noted(of_server):
        encoding = parameters.encoding(result.num_contributors)
        total = encoding.decode(result.total)
    try:
        check_sum(encoding, stayed, 0, total - stayed * update, norms=0.1)
    except ImplausibleSum as error:
        raise FailedError("the benchmark's own round gave a wrong sum: run the tests of secagg") from error
    return RoundCost({stage: median(times) for stage, times in of_clients.items()}, sum(of_server))


def peak_vectors(dimension: int) -> float:
    """Return a client's peak memory while it masks an update, as a multiple of the update's float32 size."""
    server = ServerSession(parameters_for(4, dimension), range(4))
    clients, nothing = {i: ClientSession(i, POLICY) for i in range(4)}, np.zeros(0, dtype=np.float32)
    for stage in (Stage.ADVERTISE, Stage.SHARE):
        for i, request in server.requests().items():
            server.receive(i, _answer(clients[i], stage, request, nothing))
        server.close_stage()
    request = server.requests()[0]
    tracemalloc.start()
    update = np.zeros(dimension, dtype=np.float32)
    _answer(clients[0], Stage.MASK, request, update)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (4 * dimension)


def _answer(client: ClientSession, stage: Stage, request: bytes, update: npt.NDArray[np.float32]) -> bytes:
    if stage is Stage.MASK:
        encoding = client.parameters.encoding(client.accept_shares(request))
        return client.mask(encoding.encode(update), noise="discrete_gaussian")
    answers = {Stage.ADVERTISE: client.advertise, Stage.SHARE: client.share, Stage.UNMASK: client.unmask}
    return answers[stage](request)
