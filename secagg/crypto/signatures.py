"""Long-lived identities of clients (signing keys), for sums with a server that may lie.

Ed25519 (RFC 8032). A client signs with the same key in every run; whose key is whose says a `Roster`, which
reaches the clients by a way that the server cannot alter. What is signed begins with its purpose, so that a
signature for one never serves for another.
"""

import struct
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

SIGNATURE_BYTES = 64
IDENTITY_BYTES = 32
CHALLENGE_BYTES = 32
NO_ROSTER = b""

_JOIN_PURPOSE = b"secagg/3/signed join"
_KEYS_PURPOSE = b"secagg/3/signed keys"
_SURVIVORS_PURPOSE = b"secagg/3/signed survivors"


class Identity:
    """A long-lived signing key, of a client or of the consortium.

    Args:
        private_bytes: 32 secret bytes; they outlive runs.
    """

    def __init__(self, private_bytes: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private_bytes)

    def __repr__(self) -> str:
        return f"<Identity {self.public_bytes().hex()[:16]}>"

    @classmethod
    def from_pem(cls, pem: bytes) -> "Identity":
        """Read the private signing key that `to_pem` wrote.

        Raises ValueError: no Ed25519 private key in PEM without a password.
        """
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("this is not an Ed25519 private key in PEM without a password")
        return cls(key.private_bytes_raw())

    def to_pem(self) -> bytes:
        """Return the private signing key as PKCS#8 in PEM, not encrypted."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key, which others find in the list of all clients' public keys."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement, and return the signature, 64 bytes.

        A statement begins with its purpose, unless another protocol prescribes the statement's bytes.
        """
        return self._key.sign(statement)


def is_signed(public_key: bytes | None, signature: bytes, statement: bytes) -> bool:
    """Whether this key made the signature; False for an unknown (None) or invalid key."""
    if public_key is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def join_statement(run: str, challenge: bytes, client_id: int, roster_digest: bytes = NO_ROSTER) -> bytes:
    """Return the statement that a client signs to join a run, in answer to a fresh challenge.

    ``challenge`` is fresh for each question, so that no signature serves a second time. The digest is that
    of the signed roster that server and client go by; empty where there is none.
    """
    digest = sha256(_JOIN_PURPOSE + struct.pack(">Q", client_id))
    for part in (run.encode(), challenge, roster_digest):
        digest.update(struct.pack(">I", len(part)) + part)
    return _JOIN_PURPOSE + digest.digest()


def keys_statement(roster_digest: bytes, parameters_hash: bytes, client_id: int, keys: bytes) -> bytes:
    """Return the statement that a client signs to claim public keys as its own keys for this sum."""
    return _KEYS_PURPOSE + roster_digest + parameters_hash + struct.pack(">Q", client_id) + keys


def survivors_statement(
    roster_digest: bytes, sid: bytes, contributors: tuple[int, ...], survivors: tuple[int, ...]
) -> bytes:
    """Return the statement that a client signs about which members are in the sum."""
    digest = sha256(_SURVIVORS_PURPOSE + roster_digest + sid)
    for ids in (contributors, survivors):
        digest.update(struct.pack(f">I{len(ids)}Q", len(ids), *ids))
    return _SURVIVORS_PURPOSE + digest.digest()
