"""Checks of the clients' replies, which the server makes before it takes them."""

from collections.abc import Collection
from typing import NoReturn

from secagg.errors import RemoteProtocolError
from secagg.identity import is_signed, keys_statement, survivors_statement
from secagg.keys import is_sound_public_key
from secagg.messages import (
    AdvertiseReply,
    CheckReply,
    MaskReply,
    ShareReply,
    UnmaskReply,
    hash_parameters,
)
from secagg.parameters import ACTIVE
from secagg.server_state import ServerState
from secagg.stages import Stage

_Bound = ShareReply | MaskReply | CheckReply | UnmaskReply


def take_reply(state: ServerState, stage: Stage, client_id: int, data: bytes) -> None:
    """Decode a reply, check it, and keep what it holds.

    Raises:
        DecodeError: malformed.
        RemoteProtocolError: it does not fit this sum, stage or sender.
    """
    parameters = state.parameters
    if stage is Stage.ADVERTISE:
        _take_keys(state, client_id, AdvertiseReply.decode(data))
    elif stage is Stage.SHARE:
        _take_shares(state, client_id, ShareReply.decode(data, parameters.noise_levels))
    elif stage is Stage.MASK:
        reply = MaskReply.decode(data, parameters.dimension, parameters.modulus_bits)
        _check_bound(state, stage, client_id, reply)
        if reply.context != state.context:
            _refuse(stage, client_id, "its vector was made from something else, such as another model")
        state.total += reply.vector
    elif stage is Stage.CHECK:
        _take_signature(state, client_id, CheckReply.decode(data))
    else:
        _take_unmasking(state, client_id, UnmaskReply.decode(data))


def _take_keys(state: ServerState, client_id: int, reply: AdvertiseReply) -> None:
    stage = Stage.ADVERTISE
    _check_sender(stage, client_id, reply.sender)
    hashed = hash_parameters(state.parameters)
    if reply.parameters_hash != hashed:
        _refuse(stage, client_id, "an answer to other parameters")
    if state.parameters.mode == ACTIVE:
        statement = keys_statement(hashed, client_id, reply.keys.to_bytes())
        if not is_signed(state.roster.get(client_id), reply.signature, statement):
            _refuse(stage, client_id, "its keys are not signed by its identity")
        state.signatures[client_id] = reply.signature
    elif reply.signature:
        _refuse(stage, client_id, "a signature where none is asked for")
    for key in (reply.keys.mask_key, reply.keys.seal_key):
        if key in state.taken_keys or not is_sound_public_key(key):
            state.signatures.pop(client_id, None)
            _refuse(stage, client_id, f"public key {key.hex()} is unsound or repeats")
        state.taken_keys.add(key)
    state.members[client_id] = reply.keys.to_bytes()


def _take_shares(state: ServerState, client_id: int, reply: ShareReply) -> None:
    _check_bound(state, Stage.SHARE, client_id, reply)
    _check_ids(Stage.SHARE, client_id, reply.sealed, state.graph.neighbours(client_id))
    state.sealed[client_id] = reply.sealed
    state.noise_commitments[client_id] = reply.noise_commitment


def _take_signature(state: ServerState, client_id: int, reply: CheckReply) -> None:
    _check_bound(state, Stage.CHECK, client_id, reply)
    statement = survivors_statement(state.sid, state.contributors, state.survivors)
    if not is_signed(state.roster.get(client_id), reply.signature, statement):
        _refuse(Stage.CHECK, client_id, "its signature does not fit the survivors")
    state.survivor_signatures[client_id] = reply.signature


def _take_unmasking(state: ServerState, client_id: int, reply: UnmaskReply) -> None:
    stage = Stage.UNMASK
    _check_bound(state, stage, client_id, reply)
    near = state.graph.neighbours(client_id)
    survivors, lost = near & set(state.survivors), near & set(state.lost)
    with_noise = state.parameters.noise_share_at(len(state.contributors), len(state.lost))
    _check_ids(stage, client_id, reply.seed_shares, survivors)
    _check_ids(stage, client_id, reply.key_shares, lost)
    _check_ids(stage, client_id, reply.noise_shares, survivors if with_noise else frozenset())
    state.unmask_replies[client_id] = reply


def _check_sender(stage: Stage, client_id: int, named: int) -> None:
    if named != client_id:
        _refuse(stage, client_id, f"an answer made by client {named}")


def _check_bound(state: ServerState, stage: Stage, client_id: int, reply: _Bound) -> None:
    _check_sender(stage, client_id, reply.sender)
    if reply.sid != state.sid:
        _refuse(stage, client_id, f"sid {reply.sid.hex()[:16]} where {state.sid.hex()[:16]} belongs")


def _check_ids(stage: Stage, client_id: int, got: Collection[int], expected: frozenset[int]) -> None:
    odd = set(got) ^ expected
    if odd:
        _refuse(stage, client_id, f"shares with client {min(odd)} missing or not asked for")


def _refuse(stage: Stage, client_id: int, reason: str) -> NoReturn:
    raise RemoteProtocolError(stage, client_id, reason)
