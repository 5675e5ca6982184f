"""Tests of vectors that are masked outside a session, as on a GPU: same result and checks as for arrays."""

import numpy as np
import pytest

from secagg import ClientSession, LocalProtocolError, Stage, add_masks
from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.packing import pack
from secagg.protocol.transitions import ClientStage
from testing.secagg_sums import POLICY, Joined, make_parameters


class Held:
    """Vector that is masked outside the session; ``act`` changes the packed bytes before their return."""

    def __init__(self, steps, noise=None, act=lambda packed: packed):
        self.steps, self.noise, self.act = steps, noise, act
        self.dimension = len(steps)
        self.noise_squared_norm = None if noise is None else float(noise @ noise)

    def masked(self, parts, masks, suite, bits):
        total = self.steps + (0 if self.noise is None else self.noise)
        for stddev, factor, key in parts:
            total = total + factor * sample(self.dimension, stddev, key)
        residues = total.astype(np.uint32)
        add_masks(residues, masks, suite)
        return self.act(pack(residues, bits))


def saved_at_mask(**changes):
    """Return, as bytes, a client's session that has received all shares and is about to mask."""
    joined = Joined(make_parameters(**{"num_clients": 5, "dimension": 400} | changes))
    joined.exchange_until(Stage.MASK)
    client_id, request = next(iter(joined.server.requests().items()))
    client = joined.clients[client_id]
    client.accept_shares(request)
    return client.to_bytes()


def session_of(saved):
    return ClientSession.from_bytes(saved, POLICY)


def drawn(dimension=400, stddev=1000, seed=0):
    return np.random.default_rng(seed).normal(scale=stddev, size=dimension).round().astype(np.int64)


@pytest.mark.parametrize("suite", ["aes128ctr", "chacha20"])
@pytest.mark.parametrize("levels", [0, 2])
def test_it_is_masked_as_an_array_is(suite, levels):
    saved, steps = (
        saved_at_mask(suite=suite, noise_levels=levels, num_clients=7, dropout_tolerance=2),
        drawn(),
    )
    here = session_of(saved).mask(steps, noise="discrete_gaussian")
    assert session_of(saved).mask(Held(steps), noise="discrete_gaussian") == here


def test_noise_in_it_counts_as_noise_beside_an_array():
    saved, steps = saved_at_mask(), drawn()
    noise = drawn(stddev=session_of(saved).encoding().integer_noise_stddev, seed=1)
    assert session_of(saved).mask(Held(steps, noise)) == session_of(saved).mask(steps, noise=noise)


@pytest.mark.parametrize(
    ("held", "noise", "said"),
    [
        (Held(drawn()), None, "the sum has noise of multiplier 1, and none is given"),
        (Held(drawn(399)), "discrete_gaussian", "a vector of 399 steps is held: give one of 400"),
        (Held(drawn(), drawn()), None, "the noise has a standard deviation of"),
        (Held(drawn(), drawn()), "discrete_gaussian", "give none beside it"),
        (Held(drawn()), drawn(), "give none beside it"),
        (Held(drawn(), act=lambda packed: packed[:-1]), "discrete_gaussian", "bytes for a vector of 400"),
    ],
)
def test_what_is_refused_of_an_array_is_refused_of_it(held, noise, said):
    session = session_of(saved_at_mask())
    with pytest.raises(LocalProtocolError, match=said):
        session.mask(held, noise=noise)
    assert session.stage is ClientStage.ERROR


def test_noise_is_refused_where_the_sum_has_none():
    session = session_of(saved_at_mask(noise_multiplier=0.0))
    with pytest.raises(LocalProtocolError, match="noise was given for a sum without noise"):
        session.mask(Held(drawn(), drawn()))


def test_an_error_of_it_ends_the_session_and_no_vector_leaves():
    def fails(packed):
        raise RuntimeError("the device is lost")

    session = session_of(saved_at_mask())
    with pytest.raises(RuntimeError, match="the device is lost"):
        session.mask(Held(drawn(), act=fails), noise="discrete_gaussian")
    assert session.stage is ClientStage.ERROR
    assert session._state.self_seed == b""
    with pytest.raises(LocalProtocolError, match="begin a new session"):
        session.mask(drawn(), noise="discrete_gaussian")
