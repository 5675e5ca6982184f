"""Tests of ChaCha20 masks by a GPU's kernel, or interpreted on a CPU: same bytes as a CPU's own masks."""

import importlib
import sys

import numpy as np
import pytest
import torch

from gdpfed.clients.device.masks import DeviceMasks
from gdpfed.errors import PrivacyError
from secagg.crypto import prg

pytest.importorskip("triton", reason="torch comes without Triton here")

KERNEL = "gdpfed.clients.device.chacha20_kernel"
SEGMENT = 96
# RFC 8439, appendix A.1: key, counter, the last byte of the nonce, the keystream.
RFC_BLOCKS = [
    (
        bytes(32),
        0,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        0,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        0,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        0,
        2,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def on_cpu():
    """Return a test parameter for the kernel interpreted on a CPU, which is skipped where there is a GPU."""
    return pytest.param(
        "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel runs on a GPU here")
    )


def on_gpu():
    return pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    )


@pytest.fixture(params=[on_cpu(), on_gpu()])
def device(request, monkeypatch):
    """Import the kernel for a GPU, or for a CPU that interprets it, yield the device, and clean up."""
    if request.param == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    kept = sys.modules.pop(KERNEL, None)
    importlib.import_module(KERNEL)
    yield torch.device(request.param)
    del sys.modules[KERNEL]
    if kept is not None:
        sys.modules[KERNEL] = kept


def drawn(length, num_masks, seed=0):
    numbers = np.random.default_rng(seed)
    vector = numbers.integers(2**32, size=length, dtype=np.uint32)
    masks = [(numbers.bytes(32), 1 - 2 * (number % 2)) for number in range(num_masks)]
    return vector, masks


def on_device(vector, device):
    return torch.from_numpy(vector.view(np.int32).copy()).to(device)


def words_of(tensor):
    return tensor.cpu().numpy().view(np.uint32)


@pytest.mark.parametrize("key", sorted({key for key, *_ in RFC_BLOCKS}), ids=bytes.hex)
def test_the_kernel_gives_the_blocks_of_rfc_8439(device, key):
    vector = torch.zeros(192, dtype=torch.int32, device=device)
    DeviceMasks(device, segment_words=64, blocks=16).add(vector, [(key, 1)])
    for _, counter, nonce, stream in (each for each in RFC_BLOCKS if each[0] == key):
        first = 64 * nonce + 16 * counter
        assert words_of(vector)[first : first + 16].tobytes().hex() == stream


@pytest.mark.parametrize(("length", "num_masks"), [(3, 1), (3 * SEGMENT + 37, 2)])
def test_masks_are_those_of_a_cpu_byte_by_byte(device, length, num_masks, monkeypatch):
    monkeypatch.setattr(prg, "SEGMENT_WORDS", SEGMENT)
    vector, masks = drawn(length, num_masks)
    there = on_device(vector, device)
    DeviceMasks(device, SEGMENT, blocks=32).add(there, masks)
    prg.add_masks(vector, masks, "chacha20", num_threads=1)
    assert np.array_equal(words_of(there), vector)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("num_masks", [1, 16, 120])
def test_a_gpu_masks_a_vector_of_several_segments(num_masks):
    vector, masks = drawn(2 * prg.SEGMENT_WORDS + 12_345, num_masks)
    there = on_device(vector, "cuda")
    DeviceMasks(torch.device("cuda")).add(there, masks)
    prg.add_masks(vector, masks, "chacha20")
    assert np.array_equal(words_of(there), vector)


def test_a_keystream_is_that_of_a_cpu(device):
    key = bytes(range(32))
    words = DeviceMasks(device, 32, blocks=16).keystream(key, 270)
    assert words_of(words).tobytes() == prg.cipher_stream("chacha20", key).update(bytes(4 * 270))


@pytest.mark.parametrize(
    ("vector", "masks", "said"),
    [
        (torch.zeros(4, dtype=torch.int64), [], "contiguous int32"),
        (torch.zeros(8, dtype=torch.int32)[::2], [], "contiguous int32"),
        (torch.zeros(4, dtype=torch.int32), [(bytes(16), 1)], "32 bytes"),
        (torch.zeros(4, dtype=torch.int32), [(bytes(32), 2)], r"\+1 or -1"),
    ],
)
def test_what_is_no_vector_or_mask_is_refused(vector, masks, said):
    with pytest.raises(ValueError, match=said):
        DeviceMasks(torch.device("cpu")).add(vector, masks)


class Kernel:
    """Stand-in for the kernel; it stores the keys, and calls `act` on the vector in place of masking."""

    def __init__(self, act):
        self.act, self.keys = act, torch.ones(1)

    def __getitem__(self, grid):
        def launch(vector, keys, *others, **sizes):
            self.keys = keys
            self.act(vector)

        return launch


def fails(vector):
    raise RuntimeError("an illegal memory access was encountered")


@pytest.mark.parametrize("act", [lambda vector: None, lambda vector: vector.add_(1)])
def test_a_device_that_masks_otherwise_is_found_out(act):
    adder = DeviceMasks(torch.device("cpu"))
    adder._kernel = Kernel(act)
    with pytest.raises(PrivacyError, match="has not masked as a CPU does"):
        adder.add(torch.zeros(100, dtype=torch.int32), [(bytes(32), 1)])


@pytest.mark.parametrize("act", [lambda vector: None, lambda vector: vector.add_(1)])
def test_a_device_that_draws_other_bits_for_noise_is_found_out(act):
    masks = DeviceMasks(torch.device("cpu"))
    masks._kernel = Kernel(act)
    with pytest.raises(PrivacyError, match="has not drawn the random bits of noise that a CPU draws"):
        masks.keystream(bytes(32), 100)


def test_a_block_that_was_left_out_is_found_where_it_is_looked_at(monkeypatch):
    monkeypatch.setattr("gdpfed.clients.device.masks.os.urandom", lambda size: bytes(size))
    vector, masks = drawn(100, 3)
    adder = DeviceMasks(torch.device("cpu"))

    def all_but_the_first(there):
        whole = words_of(there).copy()
        prg.add_masks(whole, masks, "chacha20")
        there[16:] = on_device(whole, "cpu")[16:]

    adder._kernel = Kernel(all_but_the_first)
    with pytest.raises(PrivacyError):
        adder.add(on_device(vector, "cpu"), masks)


@pytest.mark.parametrize("act", [lambda vector: None, fails])
def test_keys_on_a_device_are_wiped_whatever_happens(act):
    adder = DeviceMasks(torch.device("cpu"))
    adder._kernel = kernel = Kernel(act)
    with pytest.raises((PrivacyError, RuntimeError)):
        adder.add(torch.zeros(100, dtype=torch.int32), [(bytes([7]) * 32, 1)])
    assert not kernel.keys.any()
