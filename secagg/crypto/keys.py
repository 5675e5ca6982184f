"""All keys of a secure sum: how they are agreed on and derived, and how secret shares are encrypted.

Keys are derived by HKDF-SHA256 (RFC 5869), from the purpose, the session id sid and client ids as well. So if
the server sends clients different values, they derive different keys, and their masks do not cancel.
"""

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg.crypto.prg import KEY_BYTES
from secagg.sum_errors import DecodeError

SECRET_BYTES = 32
CONTEXT_BYTES = 32
NO_CONTEXT = bytes(CONTEXT_BYTES)
NONCE_BYTES = 12
SEAL_OVERHEAD_BYTES = NONCE_BYTES + 16

_FIELD_PRIME = 2**255 - 19
_SID_PURPOSE = b"secagg/2/session"
_MASK_PURPOSE = b"secagg/2/pair mask"
_SELF_PURPOSE = b"secagg/2/self mask"
_MEMBERS_PURPOSE = b"secagg/3/contributors"
_SEAL_PURPOSE = b"secagg/2/seal"
_GRAPH_PURPOSE = b"secagg/2/graph"
_NOISE_PURPOSE = b"secagg/2/noise"
_NOISE_CHAIN_PURPOSE = b"secagg/2/noise chain"
_SHARE_PURPOSE = b"secagg/3/share"


class PrivateKey:
    """An X25519 private key (RFC 7748), loaded once, since loading takes as long as a key agreement.

    Args:
        private_bytes: 32 secret bytes.
    """

    def __init__(self, private_bytes: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private_bytes)

    def public_bytes(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def agree(self, peer_public_key: bytes) -> bytes:
        """Agree on a secret with a peer: X25519(own private key, peer's public key), 32 bytes.

        Raises ValueError if the peer's key has a small order, so that the result would not be secret.
        """
        return self._key.exchange(X25519PublicKey.from_public_bytes(peer_public_key))


def is_canonical_public_key(key: bytes) -> bool:
    """Whether 32 bytes are a public key in canonical form, so that equal keys have equal bytes."""
    return int.from_bytes(key, "little") < _FIELD_PRIME


def is_sound_public_key(key: bytes) -> bool:
    """Whether a public key is in canonical form and can be used for a key agreement."""
    if not is_canonical_public_key(key):
        return False
    try:
        PrivateKey(bytes(SECRET_BYTES)).agree(key)
    except ValueError:
        return False
    return True


def commitment(seed: bytes) -> bytes:
    """Return SHA-256(seed), which commits a client to its random 256-bit seed without revealing the seed."""
    return hashlib.sha256(seed).digest()


def session_id(parameters: bytes, member_keys: dict[int, bytes]) -> bytes:
    """Hash a sum's parameters and its members' keys to the session id sid, 32 bytes."""
    digest = hashlib.sha256(_SID_PURPOSE)
    digest.update(struct.pack(">II", len(parameters), len(member_keys)))
    digest.update(parameters)
    for client_id in sorted(member_keys):
        digest.update(struct.pack(">Q", client_id) + member_keys[client_id])
    return digest.digest()


def hkdf_sha256(key: bytes, info: bytes, length: int) -> bytes:
    """Derive a key of this length from a secret, by HKDF-SHA256 (RFC 5869) without salt."""
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


def pair_mask_key(
    suite: str,
    sid: bytes,
    private_key: PrivateKey,
    peer_public_key: bytes,
    ids: tuple[int, int],
    context: bytes,
) -> bytes:
    """Derive s_ij, the key of the mask that two clients share; both derive the same key.

    `context` names what a client computed its vector from; another context gives another key.
    """
    info = _MASK_PURPOSE + sid + struct.pack(">QQ", min(ids), max(ids)) + context
    return hkdf_sha256(private_key.agree(peer_public_key), info, KEY_BYTES[suite])


def context_of(context: bytes, contributors: Collection[int]) -> bytes:
    """Hash a sum's context (such as a hash of its task) and its contributors' ids to a new context, 32 bytes.

    Noise levels follow from how many members contribute. So members that were given different lists must not
    end up in one sum: their masks do not cancel.
    """
    listed = struct.pack(f">I{len(contributors)}Q", len(contributors), *sorted(contributors))
    return hashlib.sha256(_MEMBERS_PURPOSE + context + listed).digest()


def self_mask_key(suite: str, sid: bytes, seed: bytes, client_id: int) -> bytes:
    """Derive the key of the mask that a client adds by itself, from its secret seed b_i."""
    info = _SELF_PURPOSE + sid + struct.pack(">QQ", client_id, client_id)
    return hkdf_sha256(seed, info, KEY_BYTES[suite])


def graph_key(sid: bytes) -> bytes:
    """Return the public 32-byte key that gives the members' random order in the graph of neighbours."""
    return hkdf_sha256(sid, _GRAPH_PURPOSE, 32)


def noise_key(sid: bytes, seed: bytes, client_id: int) -> bytes:
    """Derive the 32-byte key of one part of a client's noise from the seed of that part."""
    return hkdf_sha256(seed, _NOISE_PURPOSE + sid + struct.pack(">Q", client_id), 32)


def noise_seeds(first: bytes, count: int) -> list[bytes]:
    """Derive the seeds of `count` noise parts from the first: each is the hash of the one before.

    So a seed reveals all later parts of the noise and no earlier part.
    """
    seeds = [first]
    while len(seeds) < count:
        seeds.append(hashlib.sha256(_NOISE_CHAIN_PURPOSE + seeds[-1]).digest())
    return seeds[:count]


def noise_commitment(first: bytes, count: int) -> bytes:
    """Return the commitment to a client's chain of noise seeds: the hash of the last seed."""
    return commitment(noise_seeds(first, count)[-1])


def share_commitment(sid: bytes, ends: tuple[int, int], part: int, share: bytes) -> bytes:
    """Return a member's commitment to the secret share that it gives one holder; `ends` is (dealer, holder).

    The dealer is the member whose secret is shared. The commitment hides the share, because a share is
    uniformly random to anyone with fewer than t shares. `part` is the number of the shared secret: 0 the mask
    seed, 1 the masking key, from 2 on the noise seeds.
    """
    return hashlib.sha256(_SHARE_PURPOSE + sid + struct.pack(">QQB", *ends, part) + share).digest()


class Sealing:
    """An encrypted channel from one member to another in a sum: an AEAD cipher with its own key.

    The key serves only this sid, pair and direction. The associated data are sid, source and destination
    (Bonawitz et al., CCS 2017, figure 4, round 1). `secret`: what the two members' keys for sealing agree on.
    `ends`: (source, destination).
    """

    def __init__(
        self,
        suite: str,
        sid: bytes,
        secret: bytes,
        ends: tuple[int, int],
    ) -> None:
        packed = struct.pack(">QQ", *ends)
        key = hkdf_sha256(secret, _SEAL_PURPOSE + sid + packed, KEY_BYTES[suite])
        self._cipher = aead(suite, key)
        self._associated_data = sid + packed

    def seal(self, plaintext: bytes, nonce: bytes) -> bytes:
        """Encrypt a message: nonce || ciphertext || tag. With a random nonce, repeated calls are safe."""
        return nonce + self._cipher.encrypt(nonce, plaintext, self._associated_data)

    def open(self, sealed: bytes) -> bytes | None:
        """Decrypt a message, or return None if it was changed or belongs to another channel."""
        nonce, ciphertext = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, self._associated_data)
        except InvalidTag:
            return None


def aead(suite: str, key: bytes) -> AESGCM | ChaCha20Poly1305:
    """Return the authenticated cipher of a suite: AES-GCM (SP 800-38D) or ChaCha20-Poly1305 (RFC 8439)."""
    return ChaCha20Poly1305(key) if suite == "chacha20" else AESGCM(key)


PUBLIC_KEYS_BYTES = 3 * SECRET_BYTES + 1


@dataclass(frozen=True)
class PublicKeys:
    """A client's public keys for one sum: two X25519 keys and the SHA-256 of its self-mask seed.

    Attributes:
        corrects: whether the client brings no update and no new noise, and only takes back earlier noise. It
            is signed and hashed with the keys, so that no member counts on noise that this client never adds.
    """

    mask_key: bytes
    seal_key: bytes
    seed_commitment: bytes
    corrects: bool = False

    def to_bytes(self) -> bytes:
        return self.mask_key + self.seal_key + self.seed_commitment + bytes((self.corrects,))

    @classmethod
    def from_bytes(cls, data: bytes) -> "PublicKeys":
        """Read keys that `to_bytes` wrote; raise DecodeError unless the last byte (a flag) is 0 or 1."""
        first, second, third = SECRET_BYTES, 2 * SECRET_BYTES, 3 * SECRET_BYTES
        if data[third:] not in (b"\0", b"\1"):
            raise DecodeError(
                f"the last byte of a member's keys is {data[third:].hex()}; it must be 00 with an update "
                "or 01 without one"
            )
        return cls(data[:first], data[first:second], data[second:third], data[third:] == b"\1")


def correctors_among(members: Mapping[int, bytes]) -> tuple[int, ...]:
    """Return the members whose public keys say that they only subtract earlier noise, ascending."""
    return tuple(sorted(member for member, keys in members.items() if PublicKeys.from_bytes(keys).corrects))
