"""Measures how long Flower's own SecAgg+ functions take for each part of a secure aggregation round.

Client stages are its mod's `_share_keys` and `_collect_masked_vectors` with real keys. The server's
unmasking is the arithmetic of `SecAggPlusWorkflow.unmask_stage` in its own functions, a few secrets
and masks of each kind measured and multiplied by how many there are.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from importlib import import_module
from typing import Any

import numpy as np
from flwr.common import bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from benchmarks.harness import seconds

# The package has a function of the module's name, which an import statement would find instead.
mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
MODULUS = 2**32
CLIPPING_RANGE, TARGET_RANGE = 8.0, 2**22


def mask_seconds(dimension: int) -> float:
    """Measure how long Flower's SecAgg+ takes to make one mask and add it."""
    vector = [np.zeros(dimension, dtype=np.int64)]
    return seconds(
        lambda: parameters_addition(vector, pseudo_rand_gen(b"s" * 32, MODULUS, [(dimension,)])), 3
    )


def shamir_seconds(holders: int, threshold: int, secret: bytes) -> tuple[float, float]:
    """Measure how long Flower's SecAgg+ takes to split one secret, and to recover it."""
    shares = create_shares(secret, threshold, holders)
    split = seconds(lambda: create_shares(secret, threshold, holders))
    return split, seconds(lambda: combine_shares(shares[:threshold]))


def client_seconds(num_clients: int, threshold: int, dimension: int) -> tuple[float, float]:
    """Measure how long one client of Flower's SecAgg+ takes to share keys, and to mask its vector."""
    state, configs = _client(num_clients, threshold)
    keys: Any = {str(node): list(pair) for node, pair in state.public_keys_dict.items()}
    sharing = seconds(lambda: mod._share_keys(state, keys))
    update = ndarrays_to_parameters([np.zeros(dimension, dtype=np.float32)])
    masking = seconds(lambda: mod._collect_masked_vectors(state, configs, 1, update))
    return sharing, masking


def server_seconds(num_clients: int, threshold: int, dimension: int, dropped: int) -> float:
    """Measure how long Flower's server takes to add vectors, recover secrets and remove masks."""
    stayed = num_clients - dropped
    vector = [np.zeros(dimension, dtype=np.int64)]
    sent = ndarray_to_bytes(vector[0])
    adding = seconds(lambda: parameters_addition(vector, [bytes_to_ndarray(sent)]), 3) * stayed
    adding += seconds(lambda: dequantize(parameters_mod(vector, MODULUS), CLIPPING_RANGE, TARGET_RANGE))
    private, public = generate_key_pairs()
    recovering = 0.0
    for secret, count in ((os.urandom(32), stayed), (private_key_to_bytes(private), dropped)):
        shares = create_shares(secret, threshold, num_clients)[:stayed]
        recovering += count * seconds(lambda shares=shares: combine_shares(shares))  # type: ignore[misc]
    private_bytes, public_bytes = private_key_to_bytes(private), public_key_to_bytes(public)
    agreeing = seconds(
        lambda: generate_shared_key(bytes_to_private_key(private_bytes), bytes_to_public_key(public_bytes)), 3
    )
    masks = stayed + dropped * stayed
    return adding + recovering + dropped * stayed * agreeing + masks * mask_seconds(dimension)


def _client(num_clients: int, threshold: int) -> tuple[Any, Any]:
    """Return a Flower client's state after setup, and the messages that the server forwards to it."""
    state = mod.SecAggPlusState()
    state.nid, state.sample_num, state.share_num, state.threshold = 0, num_clients, num_clients, threshold
    state.clipping_range, state.target_range, state.mod_range = CLIPPING_RANGE, TARGET_RANGE, MODULUS
    state.max_weight = 1000.0
    state.rd_seed_share_dict, state.sk1_share_dict, state.ss2_dict = {}, {}, {}
    own = [generate_key_pairs(), generate_key_pairs()]
    (state.sk1, state.pk1), (state.sk2, state.pk2) = (
        (private_key_to_bytes(sk), public_key_to_bytes(pk)) for sk, pk in own
    )
    state.public_keys_dict = {0: (state.pk1, state.pk2)}
    ciphertexts = []
    for node in range(1, num_clients):
        (_, first), (second_private, second) = generate_key_pairs(), generate_key_pairs()
        state.public_keys_dict[node] = (public_key_to_bytes(first), public_key_to_bytes(second))
        shared = generate_shared_key(second_private, own[1][1])
        ciphertexts.append(encrypt(shared, share_keys_plaintext_concat(node, 0, bytes(52), bytes(324))))
    return state, {Key.CIPHERTEXT_LIST: ciphertexts, Key.SOURCE_LIST: list(range(1, num_clients))}
