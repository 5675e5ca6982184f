"""What a member publishes of itself: its keys, and whether it brings an update."""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.crypto.keys import SECRET_BYTES
from secagg.sum_errors import DecodeError

PUBLIC_KEYS_BYTES = 3 * SECRET_BYTES + 1


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a client: two X25519 keys and the SHA-256 of its self-mask seed.

    Attributes:
        corrects: whether it brings no update and no noise, and only takes back noise of earlier sums. It is
            said here so that it is signed and hashed with the keys: who does not add noise counts for none.
    """

    mask_key: bytes
    seal_key: bytes
    seed_commitment: bytes
    corrects: bool = False

    def to_bytes(self) -> bytes:
        return self.mask_key + self.seal_key + self.seed_commitment + bytes((self.corrects,))

    @classmethod
    def from_bytes(cls, data: bytes) -> "PublicKeys":
        """Read `to_bytes`; DecodeError where it does not say what the member brings."""
        first, second, third = SECRET_BYTES, 2 * SECRET_BYTES, 3 * SECRET_BYTES
        if data[third:] not in (b"\0", b"\1"):
            raise DecodeError(f"a member brings {data[third:].hex()}, which is neither an update nor none")
        return cls(data[:first], data[first:second], data[second:third], data[third:] == b"\1")


def correctors_among(members: Mapping[int, bytes]) -> tuple[int, ...]:
    """The members without an update, ascending, of number -> `PublicKeys.to_bytes`."""
    return tuple(sorted(member for member, keys in members.items() if PublicKeys.from_bytes(keys).corrects))
