"""Tests of secrecy: masked vectors look uniform, and no secret is in a repr or kept after the end."""

import pickle
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg import ClientStage, RemoteProtocolError, Stage, ThresholdNotMet, keystream
from secagg.crypto.prg import KEY_BYTES, SEGMENT_WORDS, add_masks
from secagg.protocol.sum_messages import MaskReply
from testing.secagg_sums import ACTIVE, IDS, Joined, make_parameters


def chi_square_of_bytes(words: np.ndarray) -> float:
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_masked_vector_is_uniform() -> None:
    """The 10**6 bytes of a masked constant vector pass a chi-square test (255 degrees of freedom).

    The chi-square statistic has mean 255 and standard deviation 22.6; 400 is 6.4 of them away
    (probability 1e-8). The keys are fixed, so the outcome is too.
    """
    joined = Joined(make_parameters(3, dropout_tolerance=0, dimension=250_000))
    joined.vectors = {i: np.full(250_000, 7, dtype=np.int64) for i in joined.vectors}
    joined.exchange_until(Stage.UNMASK)
    for message in joined.masked.values():
        vector = MaskReply.decode(message, 250_000).vector()
        assert chi_square_of_bytes(np.array(vector)) < 400
        assert len(np.unique(vector)) > 249_900


def test_two_masked_vectors_do_not_correlate() -> None:
    """The masked vectors of two clients do not correlate: over 250,000 words, the bound is 0.012."""
    joined = Joined(make_parameters(3, dropout_tolerance=0, dimension=250_000))
    joined.exchange_until(Stage.UNMASK)
    a, b, c = (MaskReply.decode(m, 250_000).vector().astype(float) for m in joined.masked.values())
    for one, two in ((a, b), (a, c), (b, c)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.012


def linear_complexity(bits: list[int]) -> int:
    """Return the linear complexity of bits, by Berlekamp-Massey over GF(2) with polynomials as integers."""
    connection, previous, length, gap, past = 1, 1, 0, 1, 0
    for position, bit in enumerate(bits):
        past = past << 1 | bit
        if (connection & past).bit_count() & 1:
            updated = connection ^ previous << gap
            if 2 * length <= position:
                length, previous, gap = position + 1 - length, connection, 0
            connection = updated
        gap += 1
    return length


def test_lowest_bits_have_no_linear_structure() -> None:
    """The lowest bits of N mask words have the linear complexity of random bits, which is about N / 2.

    The same test fails a Mersenne Twister, whose state has 19,937 bits: that generator, seeded
    with 32 bits, masks the vectors of a widely used implementation.
    """
    length = 42_000
    mask = np.zeros(length, dtype=np.uint32)
    add_masks(mask, [(bytes(range(16)), 1)])
    assert abs(linear_complexity((mask & 1).tolist()) - length / 2) < 20
    # 32-bit outputs of MT19937 as they come.
    twister = np.random.RandomState(1).randint(0, 2**32, length, dtype=np.uint32)
    assert linear_complexity((twister & 1).tolist()) <= 19_937


def test_no_secret_in_repr() -> None:
    joined = Joined(make_parameters())
    client = joined.clients[IDS[0]]
    while not joined.server.done:
        state = vars(client._state)
        shown = repr(client) + repr(client._state) + repr(vars(client))
        for name in OWN_SECRETS:
            secret = state[name]
            assert not secret or (secret.hex() not in shown and repr(secret) not in shown)
        joined.exchange()
        assert "\\x" not in repr(joined.server)


MODES: dict[str, dict[str, Any]] = {
    "complete": {},
    "active": ACTIVE,
    "noise removed": {"noise_levels": 1, "modulus_bits": 30},
}
OWN_SECRETS = ("mask_private_key", "seal_private_key", "self_seed", "base_noise_seed", "noise_seed")


@pytest.mark.parametrize("end", ["closed", "failed", "erased"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_secret_is_kept_after_the_end(end: str, mode: str) -> None:
    joined = Joined(make_parameters(**MODES[mode]))
    client = joined.clients[IDS[0]]
    secrets: set[bytes] = set()
    joined.exchange()
    state = client._state
    secrets |= {getattr(state, name) for name in OWN_SECRETS}
    assert all(secret in client.to_bytes() for secret in secrets)
    joined.exchange()
    secrets |= set(state.seal_secrets.values())
    assert len(secrets) == len(OWN_SECRETS) + len(joined.clients) - 1
    client.accept_shares(joined.server.requests()[IDS[0]])
    secrets |= {share for both in state.held_shares.values() for share in (both[:36], both[36:72])}
    finish(joined, end)
    kept = client.to_bytes() + pickle.dumps(vars(client._state))
    kept += pickle.dumps(vars(joined.server._state)) if end == "closed" else b""
    assert not [secret for secret in secrets if secret.hex() in repr(joined.server) + repr(client)]
    assert not [secret for secret in secrets if secret in kept]


def finish(joined: Joined, end: str) -> None:
    client = joined.clients[IDS[0]]
    if end == "erased":
        client.erase()
        return
    if end == "failed":
        with pytest.raises(RemoteProtocolError):
            client.unmask(b"")
        return
    joined.server.receive(IDS[0], joined.mask(client))
    for client_id, request in joined.server.requests().items():
        joined.server.receive(client_id, joined.answer(client_id, request))
    joined.server.close_stage()
    joined.run()
    assert client.stage is ClientStage.CLOSED


def test_masked_session_holds_only_shares_of_others() -> None:
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.UNMASK)
    state = joined.clients[IDS[0]]._state
    assert state.mask_private_key == state.seal_private_key == state.self_seed == b""
    assert state.held_shares


def test_errors_can_be_pickled() -> None:
    for error in (RemoteProtocolError("mask", 3, "reason"), ThresholdNotMet("share", 2, 4)):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_keystream_continues() -> None:
    read, whole = keystream(b"k" * 32), keystream(b"k" * 32)(100)
    assert read(33) + read(67) == whole


@pytest.mark.parametrize("count", [0, 11, 3 * 2**18 + 77])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("suite", KEY_BYTES)
def test_keystream_writes_the_same_bytes_into_a_buffer(
    suite: str, count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.crypto.prg._PART_BYTES", 100_000)
    monkeypatch.setattr("secagg.crypto.prg._KEYSTREAM_THREADS", threads)
    start = b"\xff" * 16 if suite != "chacha20" else bytes(16)  # The counter begins again at 0.
    read, whole = (keystream(b"k" * KEY_BYTES[suite], suite, start) for _ in range(2))
    first, buffer, few = read(21), np.zeros(count, dtype=np.uint8), np.zeros(40, dtype=np.uint8)
    read.into(buffer.data)
    middle = read(3)
    read.into(few.data)
    assert first + buffer.tobytes() + middle + few.tobytes() + read(2) == whole(count + 66)


@pytest.mark.parametrize("suite", KEY_BYTES)
@pytest.mark.parametrize("length", [1, SEGMENT_WORDS, 2 * SEGMENT_WORDS + 17])
@pytest.mark.parametrize("threads", [2, 3])
def test_more_threads_make_the_same_mask(suite: str, length: int, threads: int) -> None:
    keys = [bytes([i]) * KEY_BYTES[suite] for i in range(3)]
    one, many = np.zeros(length, dtype=np.uint32), np.zeros(length, dtype=np.uint32)
    add_masks(one, [(keys[0], 1), (keys[1], -1), (keys[2], 1)], suite, num_threads=1)
    add_masks(many, [(keys[0], 1), (keys[1], -1), (keys[2], 1)], suite, num_threads=threads)
    assert np.array_equal(one, many)


@pytest.mark.parametrize("suite", ["aes128ctr", "aes256ctr"])
def test_masks_are_counter_blocks_of_the_plain_cipher(suite: str) -> None:
    """Masks are AES encryptions of counters: segment number (96 bits), then 2 + block number (32 bits)."""
    key = bytes(range(KEY_BYTES[suite]))
    mask = np.zeros(SEGMENT_WORDS + 9, dtype=np.uint32)
    add_masks(mask, [(key, 1)], suite)
    block_cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - the bare cipher
    for word in (0, 3, 4, 4 * 4095 + 1, SEGMENT_WORDS - 1, SEGMENT_WORDS, SEGMENT_WORDS + 8):
        segment, inside = divmod(word, SEGMENT_WORDS)
        counter = segment.to_bytes(12, "big") + (2 + inside // 4).to_bytes(4, "big")
        block = block_cipher.update(counter)
        assert int(mask[word]) == int.from_bytes(block[inside % 4 * 4 :][:4], "little")


@pytest.mark.parametrize("suite", KEY_BYTES)
@pytest.mark.parametrize("length", [0, 1, 7, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_masks_match_the_keystream_and_cancel(suite: str, length: int, offset: int) -> None:
    key = bytes(range(KEY_BYTES[suite]))
    vector = np.zeros(length + offset, dtype=np.uint32)[offset:]
    add_masks(vector, [(key, 1)], suite)
    whole = np.zeros(length, dtype=np.uint32)
    add_masks(whole, [(key, 1)], suite)
    assert np.array_equal(vector, whole)
    add_masks(vector, [(key, -1), (key[::-1], 1), (key[::-1], -1)], suite)
    assert not vector.any()


def test_masks_refuse_other_arrays() -> None:
    vectors: list[Any] = [np.zeros(4), np.zeros((2, 2), np.uint32), np.zeros(8, np.uint32)[::2]]
    for vector in vectors:
        with pytest.raises(ValueError, match="uint32"):
            add_masks(vector, [])
    with pytest.raises(ValueError, match="sign"):
        add_masks(np.zeros(4, np.uint32), [(bytes(16), 2)])
    with pytest.raises(ValueError, match="16 bytes"):
        add_masks(np.zeros(4, np.uint32), [(bytes(32), 1)])
    with pytest.raises(ValueError, match="not known"):
        add_masks(np.zeros(4, np.uint32), [(bytes(32), 1)], "rot13")
