"""Tests of packing residues of b bits into messages, and of choosing b."""

import math

import numpy as np
import pytest

from secagg import Contributors, DecodeError, Encoding, EncodingError, Stage
from secagg.arithmetic.noise_levels import NAMED_VARIANCES, NOISE_TAIL
from secagg.arithmetic.packing import add_packed, pack, packed_bytes, unpack
from testing.secagg_sums import IDS, Joined, make_parameters

# The longest ones are packed in two batches and more, and one is added in two.
LENGTHS = [(length, bits) for bits in range(8, 33) for length in (1, 63, 64, 65, 5000)]


@pytest.mark.parametrize(("length", "bits"), [*LENGTHS, (140_000, 13), (530_000, 28), (140_000, 32)])
def test_unpack_inverts_pack(bits: int, length: int) -> None:
    residues = np.random.default_rng(bits).integers(0, 2**32, length, dtype=np.uint32)
    packed = bytes(pack(residues, bits))
    assert len(packed) == packed_bytes(length, bits)
    low = residues & np.uint32(2**bits - 1)
    assert np.array_equal(unpack(memoryview(packed), length, bits), low)
    total = residues[::-1].copy()
    add_packed(total, [packed, packed], bits)
    assert not ((total - residues[::-1] - 2 * low) & np.uint32(2**bits - 1)).any()


def test_packed_bits_one_by_one() -> None:
    """Residue i takes bits i * b to (i + 1) * b - 1 of the bytes, read as one little-endian number."""
    residues = np.array([2**20 - 1, 0, 0x12345, 7], dtype=np.uint32)
    number = int.from_bytes(bytes(pack(residues, 20)), "little")
    assert [number >> (20 * i) & (2**20 - 1) for i in range(4)] == residues.tolist()
    assert number >> 80 == 0


def test_padding_must_be_zero() -> None:
    packed = bytearray(bytes(pack(np.ones(65, dtype=np.uint32), 24)))
    packed[-1] = 1
    with pytest.raises(DecodeError, match="padding"):
        unpack(memoryview(bytes(packed)), 65, 24)
    total = np.zeros(65, dtype=np.uint32)
    with pytest.raises(DecodeError, match="padding"):
        add_packed(total, [pack(total, 24), bytes(packed)], 24)
    assert not total.any()
    with pytest.raises(DecodeError, match="does not fill"):
        unpack(memoryview(bytes(packed[:-1])), 65, 24)


@pytest.mark.parametrize("bits", [20, 24, 29])
def test_sum_on_fewer_bits(bits: int) -> None:
    joined = Joined(make_parameters(modulus_bits=bits, dimension=1000))
    result = joined.run({Stage.MASK: IDS[1:2]})
    assert np.array_equal(result.total, joined.expected(result.survivors))
    size = len(joined.masked[IDS[0]])
    assert size < 1000 * bits / 8 + 64 * 4 + 100
    assert joined.parameters.upload_bytes_per_coordinate == packed_bytes(1000, bits) / 1000


@pytest.mark.parametrize("bits", [20, 24, 32])
def test_decode_gives_the_signed_value_back(bits: int) -> None:
    encoding = make_parameters(modulus_bits=bits, dimension=5, noise_multiplier=3.0).encoding(6)
    half = 2 ** (bits - 1)
    steps = np.array([0, 1, -1, half - 1, -half], dtype=np.int64)
    residues = encoding.to_residues(steps) & np.uint32(2**bits - 1)
    assert np.array_equal(encoding.decode(residues), steps * encoding.grid)
    assert np.array_equal(encoding.decode(encoding.to_residues(steps)), steps * encoding.grid)


@pytest.mark.parametrize("num_clients", [10, 120, 300])
@pytest.mark.parametrize("noise_stddev", list(NAMED_VARIANCES))
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_chosen_bits_are_the_fewest(num_clients: int, noise_stddev: float, sigma: float) -> None:
    contributors = Contributors(num_clients, num_clients // 10)
    bits = contributors.modulus_bits(sigma, noise_stddev)

    def stddev_with(bits: int) -> float:
        encoding = Encoding.for_sum(
            contributors, dimension=10, clipping_norm=1.0, noise_multiplier=sigma, modulus_bits=bits
        )
        return encoding.integer_noise_stddev

    exact = math.sqrt(NAMED_VARIANCES[noise_stddev])
    assert stddev_with(bits) == exact
    if noise_stddev != 481.7:
        assert stddev_with(bits - 1) < exact


def test_a_wrap_is_less_likely_than_asked() -> None:
    """A sum of 11,200,000 coordinates wraps around with a probability below 2**-40."""
    for num_clients in (10, 120, 300):
        for bits in (24, 28, 32):
            encoding = Encoding.for_sum(
                Contributors(num_clients),
                dimension=11_200_000,
                clipping_norm=1.0,
                noise_multiplier=1.0,
                modulus_bits=bits,
            )
            room = 2 ** (bits - 1) - num_clients * (1.0 / encoding.grid + 0.5)
            tail = room / (encoding.integer_noise_stddev * math.sqrt(num_clients))
            assert tail > NOISE_TAIL
            assert math.log2(2 * 11_200_000) - tail**2 / 2 / math.log(2) < -40


def test_too_many_bits_are_refused() -> None:
    with pytest.raises(EncodingError, match="need 37 bits"):
        Contributors(5000).modulus_bits(0.5)
    with pytest.raises(EncodingError, match="positive noise"):
        Contributors(10).modulus_bits(0.0)
