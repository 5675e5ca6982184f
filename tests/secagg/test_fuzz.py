"""Tests of decoders on arbitrary bytes: they return a value in canonical form or raise DecodeError."""

import copy
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain

import numpy as np
import pytest

from secagg import ClientSession, DecodeError, RemoteProtocolError, SecAggError, SumParameters
from secagg.protocol.client_state import ClientState
from secagg.protocol.sum_messages import (
    AdvertiseReply,
    AdvertiseRequest,
    CheckReply,
    CheckRequest,
    MaskReply,
    MaskRequest,
    ShareReply,
    ShareRequest,
    UnmaskReply,
    UnmaskRequest,
)
from secagg.protocol.wire import checksum
from testing.secagg_sums import ACTIVE, IDENTITIES, IDS, POLICY, ROSTER, Joined, make_parameters

DIMENSION, LEVELS, BITS = 6, 2, 24


def decoders() -> dict[str, tuple[Callable[[bytes], bytes], bytes]]:
    """Return, by the name of a message, a function that decodes and encodes it, and a valid example."""
    parameters = make_parameters(
        8,
        dropout_tolerance=2,
        threshold=5,
        dimension=DIMENSION,
        mode="active",
        noise_levels=LEVELS,
        modulus_bits=BITS,
    )
    joined = Joined(parameters)
    requests, replies = [], []
    states = [joined.clients[IDS[0]].to_bytes()]

    def note(client_id: int, reply: bytes) -> bytes:
        if client_id == IDS[0]:
            replies.append(reply)
            states.append(joined.clients[IDS[0]].to_bytes())
        return reply

    while not joined.server.done:
        requests.append(joined.server.requests()[IDS[0]])
        joined.exchange(silent=IDS[7:8] if len(requests) == 3 else (), alter=note)
    return {
        "advertise request": (lambda d: AdvertiseRequest.decode(d).encode(), requests[0]),
        "advertise reply": (lambda d: AdvertiseReply.decode(d).encode(), replies[0]),
        "share request": (lambda d: ShareRequest.decode(d).encode(), requests[1]),
        "share reply": (lambda d: ShareReply.decode(d, LEVELS).encode(), replies[1]),
        "mask request": (lambda d: MaskRequest.decode(d, LEVELS).encode(), requests[2]),
        "mask reply": (lambda d: MaskReply.decode(d, DIMENSION, BITS).encode(), replies[2]),
        "check request": (lambda d: CheckRequest.decode(d).encode(), requests[3]),
        "check reply": (lambda d: CheckReply.decode(d).encode(), replies[3]),
        "unmask request": (lambda d: UnmaskRequest.decode(d).encode(), requests[4]),
        "unmask reply": (lambda d: UnmaskReply.decode(d).encode(), replies[4]),
        "parameters": (
            lambda d: SumParameters.from_bytes(d).to_bytes(),
            joined.parameters.to_bytes(),
        ),
        "new state": (lambda d: ClientState.from_bytes(d).to_bytes(), states[0]),
        "shared state": (lambda d: ClientState.from_bytes(d).to_bytes(), states[2]),
        "masked state": (lambda d: ClientState.from_bytes(d).to_bytes(), states[3]),
    }


DECODERS = decoders()
INPUTS_EACH = int(os.environ.get("SECAGG_FUZZ_INPUTS", "7500"))
"""Times 14 decoders, a tenth more of noise, and every single bit: above 100,000 inputs by default."""


def mutations(valid: bytes, count: int) -> Iterator[bytes]:
    """Yield damaged copies of a message: bytes changed, deleted or inserted, mostly with a valid checksum."""
    generator = random.Random(len(valid))
    for number in range(count):
        body = bytearray(valid[:-16])
        for _ in range(generator.randrange(1, 4)):
            at = generator.randrange(len(body) + 1)
            piece = generator.randbytes(generator.randrange(1, 9))
            kind = generator.randrange(4)
            if kind == 0:
                body[at : at + 1] = piece[:1]
            elif kind == 1:
                body[at : at + len(piece)] = b"\xff" * len(piece)
            elif kind == 2:
                del body[at : at + len(piece)]
            else:
                body[at:at] = piece
        yield bytes(body) + (checksum(bytes(body)) if number % 8 else generator.randbytes(16))


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_survives_any_bytes(name: str) -> None:
    again, valid = DECODERS[name]
    assert again(valid) == valid
    generator = random.Random(1)
    noise = (generator.randbytes(generator.randrange(200)) for _ in range(INPUTS_EACH // 10))
    for data in chain(mutations(valid, INPUTS_EACH), noise):
        try:
            encoded = again(data)
        except DecodeError:
            continue
        assert encoded == data


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("mode", ["curious", "active"])
def test_sessions_answer_damage_with_typed_errors_and_go_on(side: str, mode: str) -> None:
    """Damaged messages raise typed errors at every stage, and the sum after them is still exact."""
    changes = ACTIVE if mode == "active" else {"threshold": 4}
    joined = Joined(make_parameters(7, dimension=DIMENSION, dropout_tolerance=2, **changes))
    odd, count = IDS[0], INPUTS_EACH // 50
    while not joined.server.done:
        request = joined.server.requests()[odd]
        client = joined.clients[odd].to_bytes()
        for damaged in mutations(request, count) if side == "client" else ():
            joined.clients[odd] = restored(client)
            with suppress(SecAggError):
                joined.answer(odd, damaged)
        joined.clients[odd] = restored(client)
        reply = joined.answer(odd, request)
        rested = copy.deepcopy(joined.server)
        for damaged in mutations(reply, count) if side == "server" else ():
            with suppress(RemoteProtocolError):
                joined.server.receive(odd, damaged)
                joined.server = copy.deepcopy(rested)
            joined.server._pending.add(odd)
        joined.server = rested
        joined.clients[odd] = restored(client)
        joined.exchange()
    result = joined.server.result()
    assert np.array_equal(result.total, joined.expected(result.survivors))


def restored(saved: bytes) -> ClientSession:
    return ClientSession.from_bytes(saved, POLICY, identity=IDENTITIES[IDS[0]], roster=ROSTER)


@pytest.mark.parametrize("name", DECODERS)
def test_every_single_bit_of_damage_is_seen(name: str) -> None:
    again, valid = DECODERS[name]
    for bit in range(8 * len(valid)):
        damaged = bytearray(valid)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            again(bytes(damaged))


@pytest.mark.parametrize("data", [None, "text", bytearray(b"abc"), 5])
def test_other_types_are_refused(data: object) -> None:
    for again, _ in DECODERS.values():
        with pytest.raises(DecodeError, match="bytes"):
            again(data)  # type: ignore[arg-type]


def test_a_huge_count_allocates_nothing() -> None:
    body = DECODERS["share request"][1][:2] + b"\xff\xff\xff\xff"
    with pytest.raises(DecodeError, match="items"):
        ShareRequest.decode(body + checksum(body))
