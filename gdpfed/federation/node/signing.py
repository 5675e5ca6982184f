"""A client's signing key and the list of all clients' public keys, for sums under a server that may lie.

The list of public keys (roster) says which key belongs to which client, so the server must not choose it. A
node is started with its own key, the roster that the consortium signed, and the consortium's public key::

    identity-file='/keys/node-3.key' roster-file='/keys/roster.json' consortium-key='/keys/consortium.pub'

With ``roster-file=first-seen`` instead, a node accepts the first roster that the server sends in a run and
refuses any other. This gives no protection against a server that lies from the start. Nodes of Flower's
simulation backend do the same. Other nodes without these settings sign nothing.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.clients.messages import CHALLENGE, IDENTITY, ROSTER_DIGEST, SIGNATURE
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_file import ROSTER, NodeFile
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.identities import IdentityError, public_key_of, read_identity, read_roster
from gdpfed.json_files import WRONG_FORM, read_json
from secagg import ACTIVE, Identity, RemoteProtocolError, Roster, RosterError
from secagg.crypto.signatures import CHALLENGE_BYTES, join_statement

SIGNING_SETTINGS = ("identity-file", "roster-file", "consortium-key")
FIRST_SEEN = "first-seen"
REMEDY = (
    "make a key with 'gdpfed identity new FILE', send its public key to the consortium, and start the node "
    f"with identity-file, with the consortium's signed roster as roster-file and with its public "
    f"key as consortium-key; or with roster-file={FIRST_SEEN}, which believes the roster that the "
    "server sends"
)

# Names in the run's state, where a node without key or roster file stores its key and roster for one run.
IDENTITY_KEY = "secagg-identity"
ROSTER_KEY = "secagg-roster"


@dataclass(frozen=True)
class RosterTrust:
    """The keys that a node trusts: its own, and the consortium's list, or else the first list that it gets.

    Attributes:
        identity: its own key; None to draw a new key in each run.
        roster: the consortium's roster; None to accept the first one that the server sends.
    """

    identity: Identity | None
    roster: Roster | None


def trust_of(settings: NodeSettings) -> RosterTrust | None:
    """Read from a node's settings which keys it signs with and trusts, or return None if it signs nothing.

    Raises NodeConfigError: a setting is missing, a file cannot be used, the consortium did not sign the
    roster, or the roster has another key for this client.
    """
    words = settings.given
    signing = (words.identity_file, words.roster_file, words.consortium_key)
    given = [key for key, value in zip(SIGNING_SETTINGS, signing, strict=True) if value is not None]
    if not given:
        return RosterTrust(None, None) if settings.simulated else None
    first_seen = words.roster_file == FIRST_SEEN
    if first_seen and words.consortium_key is not None:
        raise NodeConfigError(
            f"consortium-key goes with a signed roster, not with roster-file={FIRST_SEEN}: leave one out"
        )
    missing = [key for key in SIGNING_SETTINGS if key not in given]
    if missing and not first_seen:
        raise NodeConfigError(f"{given[0]} is given without {missing[0]}: {REMEDY}")
    try:
        identity = None if words.identity_file is None else read_identity(words.identity_file)
        if identity is None or first_seen:
            return RosterTrust(identity, None)
        consortium = public_key_of(str(words.consortium_key))
        roster = read_roster(Path(str(words.roster_file)).expanduser(), consortium)
    except IdentityError as error:
        raise NodeConfigError(str(error)) from None
    client_id = settings.client_id
    if roster.get(client_id) != identity.public_bytes():
        raise NodeConfigError(
            f"roster-file={words.roster_file} does not have this node's key, "
            f"{identity.public_bytes().hex()}, for client {client_id}: set partition-id or "
            f"identity-file right, or ask the consortium for a roster with it"
        )
    _keep_highest(settings, roster)
    return RosterTrust(identity, roster)


def _keep_highest(settings: NodeSettings, roster: Roster) -> None:
    """Raise NodeConfigError for a list of public keys that is older than the newest one this node has seen.

    The consortium signed the older list as well, but a key in it may have been stolen since then.
    """
    beside = settings.kept_beside(ROSTER)
    if beside is None:
        return
    file = NodeFile(beside, "roster-file", NodeConfigError)
    with file.locked():
        data = file.read()
        own = {"number": roster.number, "digest": roster.digest.hex()}
        try:
            highest: dict[str, Any] = own if data is None else dict(read_json(data))
            number, digest = int(highest["number"]), str(highest["digest"])
        except WRONG_FORM:
            raise NodeConfigError(
                f"{beside}, which says which roster this node has seen last, is damaged: remove it if the "
                "consortium's roster is the newest one"
            ) from None
        if (roster.number, own["digest"]) == (number, digest) and data is not None:
            return
        if data is not None and roster.number <= number:
            raise NodeConfigError(
                f"roster-file={settings.given.roster_file} has number {roster.number}, "
                f"signed on {roster.date or 'no date'}, and this node has seen {number}: ask the consortium "
                "for its newest roster"
            )
        file.write(json.dumps(own).encode() + b"\n")


def prove(node: Node, question: Mapping[str, Any]) -> dict[str, bytes]:
    """Prove the node's identity to the server: return its public key and a signature.

    The result is empty if the server asks for no proof. Raises NodeConfigError: the node needs a key and has
    none, or the server uses another roster.
    """
    trust = trust_of(node.settings)
    challenge, digest = question.get(CHALLENGE), question.get(ROSTER_DIGEST)
    if trust is None and (node.settings.signs or challenge is not None):
        who = "this run wants nodes that sign" if challenge is not None else f"secagg-mode={ACTIVE}"
        raise NodeConfigError(f"{who}, and this node has no identity: {REMEDY}")
    if trust is None or challenge is None:
        return {}
    if not isinstance(challenge, bytes) or len(challenge) != CHALLENGE_BYTES:
        raise NodeConfigError(
            f"the server's challenge is not {CHALLENGE_BYTES} bytes: run one version on server and nodes"
        )
    if not isinstance(digest, bytes):
        raise NodeConfigError(
            "the server does not say which roster it uses: run one version on server and nodes"
        )
    if digest and (trust.roster is None or digest != trust.roster.digest):
        own = f"roster-file={FIRST_SEEN}" if trust.roster is None else trust.roster.digest.hex()[:16]
        raise NodeConfigError(
            f"the server uses the consortium's roster {digest.hex()[:16]}, and this node uses {own}: "
            "give both the same file"
        )
    identity = trust.identity
    if identity is None:
        # A node without a key file draws its key when it is first needed.
        if IDENTITY_KEY not in node.state:
            node.state[IDENTITY_KEY] = {"private": os.urandom(32)}
        identity = _kept_identity(node)
        if identity is None:
            raise NodeConfigError(
                f"the state of this node holds no key under {IDENTITY_KEY}: restart the node"
            )
    statement = join_statement(node.run, challenge, node.settings.client_id, digest)
    return {IDENTITY: identity.public_bytes(), SIGNATURE: identity.sign(statement)}


def signing_of(node: Node) -> tuple[Identity | None, Roster | None]:
    """Return this client's signing key and its list of all clients' public keys, each None if unknown."""
    trust = trust_of(node.settings)
    if trust is None:
        return None, None
    return trust.identity or _kept_identity(node), trust.roster or _kept_roster(node)


def accept_roster(node: Node, record: Mapping[str, Any] | None) -> None:
    """Store the first list of public keys that a message brings; raise RemoteProtocolError for another list.

    Raises RemoteProtocolError: the message's roster is not the consortium's, or not the one accepted before.
    """
    trust = trust_of(node.settings)
    if record is None or trust is None:
        return
    sent, known = _roster(record), trust.roster or _kept_roster(node)
    if known is None:
        node.state[ROSTER_KEY] = record
    elif known != sent:
        raise RemoteProtocolError(
            "advertise", None, "the roster of identities has changed since this node joined"
        )


def _kept_identity(node: Node) -> Identity | None:
    private = node.state.get(IDENTITY_KEY, {}).get("private")
    return Identity(private) if isinstance(private, bytes) else None


def _kept_roster(node: Node) -> Roster | None:
    record = node.state.get(ROSTER_KEY)
    return None if record is None else _roster(record)


def _roster(record: Mapping[str, object]) -> Roster:
    clients, keys = record.get("clients"), record.get("keys")
    if not isinstance(clients, list) or not isinstance(keys, list) or len(clients) != len(keys):
        raise RemoteProtocolError("advertise", None, "the roster lacks the key of a client")
    pairs = list(zip(clients, keys, strict=True))
    roster = {c: k for c, k in pairs if isinstance(c, int) and isinstance(k, bytes)}
    if len(roster) != len(pairs):
        raise RemoteProtocolError("advertise", None, "the roster names a client twice, or not by its number")
    try:
        return Roster(roster)
    except RosterError as error:
        raise RemoteProtocolError("advertise", None, f"no roster: {error}") from None
