"""Long-lived identities of clients, for sums with a server that may lie.

Ed25519 (RFC 8032). Each client's public key is registered once a run; the roster of all, client id
to public key, reaches the clients by a way the server cannot alter.
"""

import struct
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64
IDENTITY_BYTES = 32

_KEYS_PURPOSE = b"secagg/2/signed keys"
_SURVIVORS_PURPOSE = b"secagg/2/signed survivors"


class Identity:
    """A client's signing key.

    Args:
        private_bytes: 32 secret bytes, kept for the whole run.
    """

    def __init__(self, private_bytes: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private_bytes)

    def __repr__(self) -> str:
        return f"<Identity {self.public_bytes().hex()[:16]}>"

    def public_bytes(self) -> bytes:
        """Return the public key that is registered: 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """64 bytes. Sign only what `keys_statement` and `survivors_statement` return."""
        return self._key.sign(statement)


def is_signed(public_key: bytes | None, signature: bytes, statement: bytes) -> bool:
    """Whether the signature is the key's; False for an unknown (None) or impossible key too."""
    if public_key is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def keys_statement(parameters_hash: bytes, client_id: int, keys: bytes) -> bytes:
    """Return the statement that a client signs in the first stage: these keys are mine, for this sum."""
    return _KEYS_PURPOSE + parameters_hash + struct.pack(">Q", client_id) + keys


def survivors_statement(sid: bytes, contributors: tuple[int, ...], survivors: tuple[int, ...]) -> bytes:
    """Return the statement of the check stage: I was told U2 and U3, and answer for these only."""
    digest = sha256(_SURVIVORS_PURPOSE + sid)
    for ids in (contributors, survivors):
        digest.update(struct.pack(f">I{len(ids)}Q", len(ids), *ids))
    return _SURVIVORS_PURPOSE + digest.digest()
