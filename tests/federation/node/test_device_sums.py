"""Tests of a client's part in a sum on a device (a GPU or a stand-in): its bytes are those of a CPU."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from gdpfed.clients.device import choice
from gdpfed.clients.device.choice import device_sum, tried_masks
from gdpfed.clients.device.discrete import sample_on
from gdpfed.clients.device.masks import DeviceMasks
from gdpfed.clients.device.packing import packed_words
from gdpfed.clients.device.sums import DeviceSum
from gdpfed.clients.keyed_noise import AES, CHACHA20, KeyedNoise
from gdpfed.clients.noise import keyed_steps
from gdpfed.clients.rounding import noise_as_steps
from gdpfed.clients.update import contribution_steps
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import on_device
from gdpfed.federation.node.contribution import Contributor, masked_update
from gdpfed.federation.node.on_device import DevicePart, device_part
from gdpfed.learning.training.secret_draws import gaussian_of_words
from secagg import EncodingError, LocalProtocolError
from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.noise_levels import INTEGER_NOISE_STDDEVS
from secagg.arithmetic.packing import pack
from secagg.protocol.transitions import ClientStage
from testing.device_stand_in import masks_on_cpu
from tests.federation.node.test_contribution import ORDER, THETA, parameters
from tests.secagg.test_held_vector import saved_at_mask, session_of

CPU = torch.device("cpu")
NUMBERS = {"dimension": len(THETA), "suite": "chacha20"}


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        ),
    ]
)
def there(request):
    """Return a `DeviceSum` on a GPU, or on a CPU that stands in for a device."""
    on_gpu = request.param == "cuda"
    return DeviceSum(DeviceMasks(torch.device("cuda")) if on_gpu else masks_on_cpu())


def share_of(session, suite=CHACHA20, seed=7):
    return KeyedNoise(bytes([seed]) * 32, session.parameters.client_noise_stddev(5), suite)


@pytest.mark.parametrize("bits", [8, 13, 18, 31, 32])
@pytest.mark.parametrize("dimension", [1, 64, 1000])
def test_residues_are_packed_as_on_a_cpu(there, bits, dimension):
    residues = np.random.default_rng(bits).integers(2**32, size=dimension, dtype=np.uint32)
    words = packed_words(torch.from_numpy(residues.view(np.int32)).to(there.device), bits)
    assert words.cpu().numpy().tobytes() == bytes(pack(residues, bits))


@pytest.mark.parametrize("suite", [AES, CHACHA20])
@pytest.mark.parametrize("dimension", [649, 650])
def test_noise_is_that_of_a_cpu_from_the_same_keys(there, suite, dimension):
    encoding = replace(parameters(noise_multiplier=1.0, dimension=dimension), correction_multiplier=0.5)
    encoding = encoding.encoding(10)
    new, back = KeyedNoise(bytes(32), 0.1, suite), KeyedNoise(bytes([1]) * 32, 0.04, suite)
    here = keyed_steps(encoding, [new], [back], CPU)
    assert np.array_equal(there.noise(encoding, [new], [back]).cpu().numpy(), here)
    other = keyed_steps(encoding, [replace(new, suite=AES if suite == CHACHA20 else CHACHA20)], [back], CPU)
    assert np.mean(other == here) < 0.01


@pytest.mark.parametrize("stddev", INTEGER_NOISE_STDDEVS)
def test_discrete_noise_is_the_integers_of_a_cpu(there, stddev):
    dimension = 40_001
    drawn = sample_on(there.device, dimension, stddev, bytes(range(32)))
    assert drawn.dtype == torch.int64
    assert np.array_equal(drawn.cpu().numpy(), sample(dimension, stddev, bytes(range(32))))


@pytest.mark.parametrize("dimension", [20_000, 20_001])
def test_what_a_device_computes_otherwise_in_the_last_places_rounds_as_on_a_cpu(dimension, monkeypatch):
    def nearly(words, dimension, stddev):
        return gaussian_of_words(words, dimension, stddev) + 1e-3 * encoding.grid

    there = DeviceSum(masks_on_cpu())
    encoding = parameters(noise_multiplier=1.0, dimension=dimension, correction_multiplier=0.5).encoding(10)
    new, back = KeyedNoise(bytes(32), 0.1, CHACHA20), KeyedNoise(bytes([1]) * 32, 0.04, AES)
    here = keyed_steps(encoding, [new], [back], CPU)
    monkeypatch.setattr("gdpfed.clients.device.sums.gaussian_of_words", nearly)
    noise = partial(there.noise, encoding, [new], [])
    alone = keyed_steps(encoding, [new], [], CPU)
    assert np.count_nonzero(noise().numpy() != alone) > 5
    monkeypatch.setattr("gdpfed.clients.rounding.EDGE", 2e-3)
    assert np.array_equal(noise().numpy(), alone)
    assert np.array_equal(there.noise(encoding, [new], [back]).numpy(), here)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9])
def test_noise_of_another_law_is_refused_on_the_device_too(value):
    encoding = parameters(noise_multiplier=1.0).encoding(10)
    with pytest.raises(EncodingError, match="is outside"):
        noise_as_steps(torch.full((650,), value).double(), encoding, lambda places: torch.zeros(0))


@pytest.mark.parametrize("norm", [float("inf"), 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 10.0, 1e200, float("nan")])
def test_an_update_is_weighed_clipped_and_rounded_as_on_a_cpu(there, norm, scale):
    order, encoding = replace(ORDER, weight=0.5), parameters(clipping_norm=norm).encoding(10)
    numbers = np.random.default_rng(0).normal(size=len(THETA))
    update = scale * torch.from_numpy(numbers)
    kept = update.clone()
    here = contribution_steps(order, update, encoding)
    sent = there.contribution(order, update.to(there.device), encoding).cpu().numpy()
    assert np.abs(sent - here).max() <= 1
    assert np.mean(sent == here) > 0.99
    assert int(sent @ sent) * encoding.grid**2 <= norm**2 or np.isinf(norm)
    assert torch.equal(update.nan_to_num(), kept.nan_to_num())


@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian", None])
def test_a_node_sends_the_bytes_that_it_sends_from_a_cpu(there, noise, monkeypatch):
    order = replace(ORDER, noise=noise or "gaussian")
    saved = saved_at_mask(**NUMBERS, noise_multiplier=1.0 if noise else 0.0)
    who = Contributor(0, "run")

    def sent():
        session = session_of(saved)
        return masked_update(order, THETA, session, 5, who, share_of(session), [])

    here = sent()
    monkeypatch.setattr("gdpfed.learning.task.choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("gdpfed.clients.works.choose_device", lambda name: CPU)
    monkeypatch.setattr(on_device, "device_sum", lambda device, suite: there)
    monkeypatch.setattr(there, "contribution", lambda *asked: torch.from_numpy(contribution_steps(*asked)))
    assert sent() == here


def test_zeros_go_the_same_way_where_examples_cannot_be_used(monkeypatch):
    there = DeviceSum(masks_on_cpu())
    told: list[BaseException] = []

    def fails(*asked, **how):
        raise ValueError("a column of this client's table")

    monkeypatch.setattr("gdpfed.clients.update.update_of", fails)
    session = session_of(saved_at_mask(**NUMBERS))
    steps = DevicePart(there, session).steps(ORDER, THETA, Contributor(0, "run", unusable=told.append))
    assert isinstance(steps, torch.Tensor)
    assert len(steps) == len(THETA)
    assert not steps.any()
    assert len(told) == 1


def vector_on(kernel, saved):
    there, session = DeviceSum(masks_on_cpu()), session_of(saved)
    there.masks._kernel = kernel
    return session, there.vector(torch.arange(len(THETA)))


def half_masked(error):
    """Return a kernel that changes the first half of a vector and then raises an error."""

    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, vector, *others, **sizes):
            vector[: len(vector) // 2] += 12345
            raise error

    return Kernel()


def test_an_error_of_the_device_ends_the_session_and_sends_nothing():
    session, vector = vector_on(half_masked(RuntimeError("an illegal access")), saved_at_mask(**NUMBERS))
    with pytest.raises(RuntimeError, match="an illegal access"):
        session.mask(vector, noise="discrete_gaussian")
    assert session.stage is ClientStage.ERROR
    with pytest.raises(LocalProtocolError):
        session.mask(np.arange(len(THETA)), noise="discrete_gaussian")


def test_a_device_that_does_nothing_sends_nothing():
    class Idle:
        def __getitem__(self, grid):
            return lambda *given, **sizes: None

    session, vector = vector_on(Idle(), saved_at_mask(**NUMBERS))
    with pytest.raises(PrivacyError, match="has not masked as a CPU does"):
        session.mask(vector, noise="discrete_gaussian")
    assert session.stage is ClientStage.ERROR


def test_a_cpu_masks_what_does_not_fit_on_the_device():
    saved = saved_at_mask(**NUMBERS)
    session, vector = vector_on(half_masked(torch.cuda.OutOfMemoryError("64 MiB")), saved)
    here = session_of(saved).mask(np.arange(len(THETA)), noise="discrete_gaussian")
    assert session.mask(vector, noise="discrete_gaussian") == here


def test_a_cpu_draws_and_rounds_what_does_not_fit_on_the_device(monkeypatch):
    def short(*asked, **how):
        raise torch.cuda.OutOfMemoryError("64 MiB")

    there, encoding = DeviceSum(masks_on_cpu()), parameters(noise_multiplier=1.0).encoding(10)
    share, update = KeyedNoise(bytes(32), 0.1, CHACHA20), torch.full((len(THETA),), 3.0).double()
    monkeypatch.setattr("gdpfed.clients.device.sums.gaussian_of_words", short)
    monkeypatch.setattr("gdpfed.clients.device.sums.clipped_steps", short)
    assert np.array_equal(there.noise(encoding, [share], []), keyed_steps(encoding, [share], [], CPU))
    rounded = there.contribution(ORDER, update, encoding)
    assert np.array_equal(rounded, contribution_steps(ORDER, update, encoding))


def test_another_cipher_is_masked_by_the_cpu_and_a_line_says_which_one_would_not(monkeypatch):
    said = []
    monkeypatch.setattr(on_device, "log", lambda level, form, *words: said.append(form % words))
    session = session_of(saved_at_mask(dimension=50, suite="aes128ctr"))
    assert device_part(torch.device("cuda"), session) is None
    assert said == ["the CPU masks with aes128ctr: secagg.suite=chacha20 does it on cuda"]


@pytest.mark.parametrize("lacks", ["Triton", "the right words"])
def test_a_device_that_cannot_mask_leaves_it_to_the_cpu(lacks, monkeypatch):
    def masks(device):
        if lacks == "Triton":
            raise ImportError("No module named 'triton'")
        made = masks_on_cpu()
        made._kernel = type("Idle", (), {"__getitem__": lambda self, grid: lambda *given, **sizes: None})()
        return made

    monkeypatch.setattr(choice, "DeviceMasks", masks)
    tried_masks.cache_clear()
    why = device_sum(CPU, "chacha20")
    tried_masks.cache_clear()
    named = "No module named 'triton'" if lacks == "Triton" else "PrivacyError: cpu has not masked"
    assert isinstance(why, str)
    assert why.startswith("the CPU masks, since cpu does not: ")
    assert named in why


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_taken_where_it_masks():
    found = device_sum(torch.device("cuda"), "chacha20")
    assert isinstance(found, DeviceSum), found
