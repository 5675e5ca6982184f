"""What a client verifies about the server's requests before it answers."""

from secagg.client_state import ClientState
from secagg.errors import RemoteProtocolError
from secagg.keys import is_canonical_public_key
from secagg.messages import MaskRequest, PublicKeys, UnmaskRequest
from secagg.stages import Stage


def check_members(state: ClientState, members: dict[int, bytes], own_keys: bytes) -> None:
    """Raise RemoteProtocolError unless the keys are enough, distinct, and our own unchanged."""
    fewest = state.sum_parameters.fewest_contributors
    most = state.sum_parameters.num_clients
    if not fewest <= len(members) <= most:
        raise RemoteProtocolError(
            Stage.SHARE, None, f"{len(members)} members: from {fewest} to {most} may share"
        )
    if members.get(state.client_id) != own_keys:
        raise RemoteProtocolError(
            Stage.SHARE, None, f"the keys listed for client {state.client_id} are not its own"
        )
    seen: set[bytes] = set()
    for client_id, encoded in members.items():
        keys = PublicKeys.from_bytes(encoded)
        for key in (keys.mask_key, keys.seal_key):
            if key in seen or not is_canonical_public_key(key):
                raise RemoteProtocolError(
                    Stage.SHARE, client_id, f"public key {key.hex()} is unsound or repeats"
                )
            seen.add(key)


def check_sid(state: ClientState, stage: Stage, sid: bytes) -> None:
    """Raise RemoteProtocolError unless the request belongs to this client's sum."""
    if sid != state.sid:
        raise RemoteProtocolError(stage, None, f"sid {sid.hex()[:16]} where {state.sid.hex()[:16]} belongs")


def check_contributors(state: ClientState, request: MaskRequest) -> None:
    """Raise RemoteProtocolError unless the shares come from enough other members."""
    check_sid(state, Stage.MASK, request.sid)
    strangers = request.sealed.keys() - (state.members.keys() - {state.client_id})
    if strangers:
        raise RemoteProtocolError(Stage.MASK, None, f"shares from {min(strangers)}, not another member")
    contributors, fewest = len(request.sealed) + 1, state.sum_parameters.fewest_contributors
    if contributors < fewest:
        raise RemoteProtocolError(
            Stage.MASK, None, f"{contributors} contributors, at least {fewest} are needed"
        )


def check_survivors(state: ClientState, request: UnmaskRequest) -> None:
    """Raise RemoteProtocolError unless survivors and dropped split the contributors soundly.

    Together they are exactly U2, so with the threshold above half of the neighbours no server can
    collect both secrets of a client by telling different stories (Bonawitz et al., section 6).
    """
    check_sid(state, Stage.UNMASK, request.sid)
    survivors, dropped = set(request.survivors), set(request.dropped)
    contributors = state.held_shares.keys() | {state.client_id}
    parameters = state.sum_parameters
    fewest = max(len(contributors) - parameters.dropout_tolerance, parameters.threshold + 1)
    reason = ""
    if survivors & dropped:
        reason = f"client {min(survivors & dropped)} is both survivor and dropped"
    elif state.client_id not in survivors:
        reason = f"client {state.client_id} itself is no survivor"
    elif survivors | dropped != contributors:
        odd = min((survivors | dropped) ^ contributors)
        reason = f"client {odd} is left out or no contributor"
    elif len(survivors) < fewest:
        reason = f"{len(survivors)} survivors, at least {fewest} are needed"
    if reason:
        raise RemoteProtocolError(Stage.UNMASK, None, reason)
