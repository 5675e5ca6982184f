"""Checks of the clients' replies, which the server makes before it takes them."""

from collections.abc import Collection
from typing import NoReturn

from secagg.crypto.keys import is_sound_public_key
from secagg.crypto.signatures import is_signed, keys_statement, survivors_statement
from secagg.protocol.parameters import ACTIVE
from secagg.protocol.server_state import ServerState
from secagg.protocol.sum_messages import (
    AdvertiseReply,
    CheckReply,
    MaskReply,
    ShareReply,
    UnmaskReply,
    hash_parameters,
)
from secagg.protocol.transitions import Stage
from secagg.sum_errors import Cause, RemoteProtocolError

_Bound = ShareReply | MaskReply | CheckReply | UnmaskReply


def take_reply(state: ServerState, stage: Stage, member: int, data: bytes) -> None:
    """Decode a reply, check it, and keep what it holds.

    Raises:
        DecodeError: malformed.
        RemoteProtocolError: it does not fit this sum, stage or sender.
    """
    parameters = state.parameters
    if stage is Stage.ADVERTISE:
        _take_keys(state, member, AdvertiseReply.decode(data))
    elif stage is Stage.SHARE:
        _take_shares(state, member, ShareReply.decode(data, parameters.noise_levels))
    elif stage is Stage.MASK:
        reply = MaskReply.decode(data, parameters.dimension, parameters.modulus_bits)
        _check_bound(state, stage, member, reply)
        if reply.context != state.context:
            reason = "its vector was made from something else, such as another model"
            _refuse(stage, member, reason, Cause.OTHER_WORK)
        stray = set(reply.complaints) - (state.graph.neighbours(member) & set(state.contributors))
        if stray:
            _refuse(
                stage, member, f"a complaint about member {min(stray)}, no neighbour of it", Cause.MEMBERS
            )
        state.masked[member] = reply
    elif stage is Stage.CHECK:
        _take_signature(state, member, CheckReply.decode(data))
    else:
        _take_unmasking(state, member, UnmaskReply.decode(data, parameters.suite))


def _take_keys(state: ServerState, member: int, reply: AdvertiseReply) -> None:
    stage = Stage.ADVERTISE
    _check_sender(stage, member, reply.sender)
    hashed = hash_parameters(state.parameters)
    if reply.parameters_hash != hashed:
        _refuse(stage, member, "an answer to other parameters", Cause.OTHER_SUM)
    if state.parameters.mode == ACTIVE:
        statement = keys_statement(state.roster.digest, hashed, member, reply.keys.to_bytes())
        if not is_signed(state.roster.get(member), reply.signature, statement):
            _refuse(stage, member, "its keys are not signed by its identity", Cause.SIGNATURE)
        state.signatures[member] = reply.signature
    elif reply.signature:
        _refuse(stage, member, "a signature where none is asked for", Cause.SIGNATURE)
    if reply.keys.corrects != (member in state.correctors):
        state.signatures.pop(member, None)
        _refuse(stage, member, "an update in place of none, or none in place of one", Cause.OTHER_WORK)
    for key in (reply.keys.mask_key, reply.keys.seal_key):
        if key in state.taken_keys or not is_sound_public_key(key):
            state.signatures.pop(member, None)
            _refuse(stage, member, f"public key {key.hex()} is unsound or repeats", Cause.KEYS)
        state.taken_keys.add(key)
    state.members[member] = reply.keys.to_bytes()


def _take_shares(state: ServerState, member: int, reply: ShareReply) -> None:
    _check_bound(state, Stage.SHARE, member, reply)
    _check_ids(Stage.SHARE, member, reply.sealed, state.graph.neighbours(member))
    _check_ids(Stage.SHARE, member, reply.commitments, state.graph.neighbours(member))
    state.dealt[member] = reply


def _take_signature(state: ServerState, member: int, reply: CheckReply) -> None:
    _check_bound(state, Stage.CHECK, member, reply)
    statement = survivors_statement(state.roster.digest, state.sid, state.contributors, state.survivors)
    if not is_signed(state.roster.get(member), reply.signature, statement):
        _refuse(Stage.CHECK, member, "its signature does not fit the survivors", Cause.SIGNATURE)
    state.survivor_signatures[member] = reply.signature


def _take_unmasking(state: ServerState, member: int, reply: UnmaskReply) -> None:
    stage = Stage.UNMASK
    _check_bound(state, stage, member, reply)
    near, orphans = state.graph.neighbours(member), frozenset(state.orphans)
    held = near - state.complaints[member]
    survivors = held & set(state.survivors)
    with_noise = state.parameters.noise_share_at(len(state.contributors), len(state.lost))
    _check_ids(stage, member, reply.seed_shares, survivors)
    _check_ids(stage, member, reply.key_shares, (held & set(state.lost)) - orphans)
    _check_ids(stage, member, reply.noise_shares, survivors if with_noise else frozenset())
    _check_ids(stage, member, reply.pair_keys, near & orphans)
    state.unmask_replies[member] = reply


def _check_sender(stage: Stage, member: int, named: int) -> None:
    if named != member:
        _refuse(stage, member, f"an answer made by member {named}", Cause.OTHER_SUM)


def _check_bound(state: ServerState, stage: Stage, member: int, reply: _Bound) -> None:
    _check_sender(stage, member, reply.sender)
    if reply.sid != state.sid:
        reason = f"sid {reply.sid.hex()[:16]} where {state.sid.hex()[:16]} belongs"
        _refuse(stage, member, reason, Cause.OTHER_SUM)


def _check_ids(stage: Stage, member: int, got: Collection[int], expected: frozenset[int]) -> None:
    odd = set(got) ^ expected
    if odd:
        _refuse(stage, member, f"shares with member {min(odd)} missing or not asked for", Cause.SHARES)


def _refuse(stage: Stage, member: int, reason: str, cause: Cause) -> NoReturn:
    raise RemoteProtocolError(stage, member, reason, cause=cause)
