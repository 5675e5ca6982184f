"""Checks of the server's requests, which a client makes before it answers."""

from secagg.crypto.keys import PublicKeys, correctors_among, is_canonical_public_key
from secagg.crypto.roster import Roster
from secagg.crypto.signatures import is_signed, keys_statement, survivors_statement
from secagg.protocol.client_state import ClientState
from secagg.protocol.sum_messages import (
    AdvertiseRequest,
    CheckRequest,
    MaskRequest,
    ShareRequest,
    UnmaskRequest,
    hash_parameters,
)
from secagg.protocol.transitions import TRANSITIONS, Stage
from secagg.sum_errors import Cause, RemoteProtocolError


def check_mode(client_id: int, request: AdvertiseRequest, *, can_sign: bool) -> None:
    """Raise RemoteProtocolError if this client does not support the sum's mode, or lacks keys to sign.

    `can_sign`: whether the client has an identity and a roster.
    """
    mode, member, stage = request.parameters.mode, request.member, Stage.ADVERTISE
    if mode not in TRANSITIONS["client"]:
        raise RemoteProtocolError(stage, None, f"mode {mode} has no sessions", Cause.POLICY)
    if not request.parameters.signs:
        return
    if not can_sign:
        reason = "mode active, but this client has no identity or no roster"
        raise RemoteProtocolError(stage, None, reason, Cause.SIGNATURE)
    if member != client_id:
        reason = f"member number {member} for client {client_id}: in mode active members have their own ids"
        raise RemoteProtocolError(stage, None, reason, Cause.MEMBERS)


def check_members(state: ClientState, members: dict[int, bytes], own_keys: bytes, corrupt: int) -> None:
    """Raise RemoteProtocolError for too few or many members, or for wrong, invalid or repeated public keys.

    `corrupt`: how many of the members this client assumes to be corrupt.
    """
    fewest = state.sum_parameters.fewest_members_against(corrupt)
    most = state.sum_parameters.num_clients
    if not fewest <= len(members) <= most:
        reason = f"{len(members)} members: from {fewest} to {most} may share"
        raise RemoteProtocolError(Stage.SHARE, None, reason, Cause.TOO_FEW)
    if members.get(state.member) != own_keys:
        reason = f"the keys listed for this client, member {state.member}, are not its own"
        raise RemoteProtocolError(Stage.SHARE, None, reason, Cause.KEYS)
    seen: set[bytes] = set()
    for member, encoded in members.items():
        keys = PublicKeys.from_bytes(encoded)
        for key in (keys.mask_key, keys.seal_key):
            if key in seen or not is_canonical_public_key(key):
                reason = f"public key {key.hex()} is unsound or repeats"
                raise RemoteProtocolError(Stage.SHARE, member, reason, Cause.KEYS)
            seen.add(key)
    updates = len(members) - len(correctors_among(members))
    fewest, most = state.sum_parameters.fewest_updates, state.sum_parameters.num_updates
    if not fewest <= updates <= most:
        reason = f"{updates} members with an update: from {fewest} to {most} may share"
        raise RemoteProtocolError(Stage.SHARE, None, reason, Cause.TOO_FEW)


def check_signed_members(state: ClientState, request: ShareRequest, roster: Roster) -> None:
    """Raise RemoteProtocolError, naming the member, for keys that a member has not signed for this sum."""
    parameters_hash = hash_parameters(state.sum_parameters)
    odd = request.signatures.keys() ^ request.members.keys()
    if odd:
        raise RemoteProtocolError(Stage.SHARE, min(odd), "signature or keys missing", Cause.SIGNATURE)
    for client_id, keys in request.members.items():
        statement = keys_statement(roster.digest, parameters_hash, client_id, keys)
        if not is_signed(roster.get(client_id), request.signatures[client_id], statement):
            reason = "its keys are not signed by its identity"
            raise RemoteProtocolError(Stage.SHARE, client_id, reason, Cause.SIGNATURE)


def check_sid(state: ClientState, stage: Stage, sid: bytes) -> None:
    """Raise RemoteProtocolError for a request whose session id is of another sum."""
    if sid != state.sid:
        reason = f"sid {sid.hex()[:16]} where {state.sid.hex()[:16]} belongs"
        raise RemoteProtocolError(stage, None, reason, Cause.OTHER_SUM)


def check_contributors(state: ClientState, request: MaskRequest) -> None:
    """Raise RemoteProtocolError for too few contributors, or for missing shares or shares of non-neighbours.

    The client computes its neighbours itself, so a server that used another graph is refused.
    """
    check_sid(state, Stage.MASK, request.sid)
    parameters, contributors = state.sum_parameters, set(request.contributors)
    expected = state.graph().neighbours(state.member) & contributors
    odd = (request.sealed.keys() ^ expected) | (request.commitments.keys() ^ expected)
    fewest, fewest_updates = parameters.fewest_contributors, parameters.fewest_updates
    updates = state.num_updates(contributors)
    reason = ""
    if not contributors <= state.members.keys() or state.member not in contributors:
        reason = "the contributors hold a stranger or lack this client"
    elif len(contributors) < fewest:
        reason = f"{len(contributors)} contributors, at least {fewest} are needed"
    elif updates < fewest_updates:
        reason = f"{updates} contributors with an update, at least {fewest_updates} are needed"
    elif odd:
        reason = f"shares from {min(odd)} missing, or it is not a neighbour among the contributors"
    elif len(expected) < parameters.threshold:
        reason = f"{len(expected)} neighbours contribute, at least {parameters.threshold} are needed"
    if reason:
        raise RemoteProtocolError(Stage.MASK, None, reason, Cause.MEMBERS)


def check_announced(state: ClientState, request: CheckRequest) -> None:
    """Raise RemoteProtocolError if the survivors to be signed are too few or contradict the contributors."""
    check_sid(state, Stage.CHECK, request.sid)
    dropped = tuple(set(state.contributors) - set(request.survivors))
    _check_split(state, Stage.CHECK, request.survivors, dropped)


def check_survivors(state: ClientState, request: UnmaskRequest) -> None:
    """Raise RemoteProtocolError if lists of members (survivors, dropped, unrecoverable) are inconsistent."""
    check_sid(state, Stage.UNMASK, request.sid)
    _check_split(state, Stage.UNMASK, request.survivors, request.dropped)
    stray = set(request.orphans) - set(request.dropped)
    if stray:
        reason = f"member {min(stray)} is an orphan and not dropped"
        raise RemoteProtocolError(Stage.UNMASK, None, reason, Cause.MEMBERS)


def check_signed_survivors(state: ClientState, request: UnmaskRequest, roster: Roster) -> None:
    """Raise RemoteProtocolError unless at least t members signed the same survivors as this client did."""
    if request.survivors != state.survivors:
        reason = "other survivors than this client signed in the check stage"
        raise RemoteProtocolError(Stage.UNMASK, None, reason, Cause.SIGNATURE)
    threshold = state.sum_parameters.threshold
    if len(request.signatures) < threshold:
        reason = f"{len(request.signatures)} signatures, at least {threshold} are needed"
        raise RemoteProtocolError(Stage.UNMASK, None, reason, Cause.SIGNATURE)
    statement = survivors_statement(roster.digest, state.sid, state.contributors, state.survivors)
    for client_id, signature in request.signatures.items():
        known = roster.get(client_id) if client_id in state.survivors else None
        if not is_signed(known, signature, statement):
            reason = "its signature does not fit the survivors"
            raise RemoteProtocolError(Stage.UNMASK, client_id, reason, Cause.SIGNATURE)


def _check_split(
    state: ClientState, stage: Stage, survivors: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    """Raise RemoteProtocolError unless each contributor either survives or dropped out, and enough survive.

    Since the threshold is above half of the neighbours, a server that sends clients different lists cannot
    collect both secrets of a member (Bonawitz et al., section 6).
    """
    stayed, lost, contributors = set(survivors), set(dropped), set(state.contributors)
    fewest = state.sum_parameters.fewest_survivors(len(contributors))
    fewest_updates = state.sum_parameters.fewest_summed_updates(state.num_updates(contributors))
    reason = ""
    if stayed & lost:
        reason = f"member {min(stayed & lost)} is both survivor and dropped"
    elif state.member not in stayed:
        reason = f"this client, member {state.member}, is not a survivor"
    elif stayed | lost != contributors:
        reason = f"member {min((stayed | lost) ^ contributors)} is left out or no contributor"
    elif len(stayed) < fewest:
        reason = f"{len(stayed)} survivors, at least {fewest} are needed"
    elif state.num_updates(stayed) < fewest_updates:
        updates = state.num_updates(stayed)
        reason = f"{updates} survivors with an update, at least {fewest_updates} are needed"
    if reason:
        raise RemoteProtocolError(stage, None, reason, Cause.MEMBERS)
