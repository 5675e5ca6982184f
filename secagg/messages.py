"""The messages of the four stages: frozen data with one canonical form in bytes.

A request goes from the server to a client, a reply back. Every reply names its sender, and each
message carries what binds it to its sum (the parameters' hash, then the sid), so that one from
another client or round is refused. `decode` raises only DecodeError, whatever the bytes.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.errors import DecodeError
from secagg.keys import SEAL_OVERHEAD_BYTES, SECRET_BYTES
from secagg.parameters import RoundParameters
from secagg.shamir import share_bytes
from secagg.wire import Reader, Writer, read_ids, read_table, write_ids, write_table

KEY_BYTES = 32
SID_BYTES = 32
SHARE_BYTES = share_bytes(SECRET_BYTES)
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_OVERHEAD_BYTES
PUBLIC_KEYS_BYTES = 3 * KEY_BYTES


@dataclass(frozen=True)
class PublicKeys:
    """What a client publishes: two X25519 keys and the SHA-256 of its self-mask seed."""

    mask_key: bytes
    seal_key: bytes
    seed_commitment: bytes

    def to_bytes(self) -> bytes:
        return self.mask_key + self.seal_key + self.seed_commitment

    @classmethod
    def from_bytes(cls, data: bytes) -> "PublicKeys":
        first, second = KEY_BYTES, 2 * KEY_BYTES
        return cls(data[:first], data[first:second], data[second:])


@dataclass(frozen=True)
class AdvertiseRequest:
    """Stage 1, server to client: the parameters of the sum."""

    parameters: RoundParameters

    def encode(self) -> bytes:
        body = self.parameters.to_bytes()
        return Writer(1).count(len(body)).fixed(body, len(body)).frame()

    @classmethod
    def decode(cls, data: bytes) -> "AdvertiseRequest":
        reader = Reader(data, 1)
        return reader.finish(cls(RoundParameters.from_bytes(reader.fixed(reader.integer("I")))))


@dataclass(frozen=True)
class AdvertiseReply:
    """Stage 1, client to server: its keys, bound to the parameters by their hash."""

    sender: int
    parameters_hash: bytes
    keys: PublicKeys

    def encode(self) -> bytes:
        writer = Writer(2).client_id(self.sender).fixed(self.parameters_hash, SID_BYTES)
        return writer.fixed(self.keys.to_bytes(), PUBLIC_KEYS_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "AdvertiseReply":
        reader = Reader(data, 2)
        sender = reader.client_id()
        parameters_hash = reader.fixed(SID_BYTES)
        keys = PublicKeys.from_bytes(reader.fixed(PUBLIC_KEYS_BYTES))
        return reader.finish(cls(sender, parameters_hash, keys))


def hash_parameters(parameters: RoundParameters) -> bytes:
    """SHA-256 of the canonical parameters: 32 bytes."""
    return hashlib.sha256(parameters.to_bytes()).digest()


@dataclass(frozen=True)
class ShareRequest:
    """Stage 2, server to client: id -> `PublicKeys.to_bytes` of every member, itself among them."""

    members: dict[int, bytes]

    def encode(self) -> bytes:
        return write_table(Writer(3), self.members, PUBLIC_KEYS_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "ShareRequest":
        reader = Reader(data, 3)
        return reader.finish(cls(read_table(reader, PUBLIC_KEYS_BYTES)))


@dataclass(frozen=True)
class ShareReply:
    """Stage 2, client to server: destination -> sealed shares, one for each other member."""

    sender: int
    sid: bytes
    sealed: dict[int, bytes] = field(repr=False)

    def encode(self) -> bytes:
        return write_table(
            Writer(4).client_id(self.sender).fixed(self.sid, SID_BYTES), self.sealed, SEALED_BYTES
        ).frame()

    @classmethod
    def decode(cls, data: bytes) -> "ShareReply":
        reader = Reader(data, 4)
        sender, sid = reader.client_id(), reader.fixed(SID_BYTES)
        return reader.finish(cls(sender, sid, read_table(reader, SEALED_BYTES)))


@dataclass(frozen=True)
class MaskRequest:
    """Stage 3, server to client: source -> sealed shares; U2 is the sources and the client."""

    sid: bytes
    sealed: dict[int, bytes] = field(repr=False)

    def encode(self) -> bytes:
        return write_table(Writer(5).fixed(self.sid, SID_BYTES), self.sealed, SEALED_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "MaskRequest":
        reader = Reader(data, 5)
        return reader.finish(cls(reader.fixed(SID_BYTES), read_table(reader, SEALED_BYTES)))


@dataclass(frozen=True, eq=False)
class MaskReply:
    """Stage 3, client to server: the masked vector, uint32[d], little-endian on the wire."""

    sender: int
    sid: bytes
    vector: NDArray[np.uint32] = field(repr=False)

    def encode(self) -> bytes:
        words = np.ascontiguousarray(self.vector, dtype="<u4")
        writer = Writer(6).client_id(self.sender).fixed(self.sid, SID_BYTES).count(len(words))
        return writer.fixed(words.view(np.uint8).data, words.nbytes).frame()

    @classmethod
    def decode(cls, data: bytes, dimension: int) -> "MaskReply":
        """The vector is a read-only view of `data`; another length than `dimension` is refused."""
        reader = Reader(data, 6)
        sender, sid = reader.client_id(), reader.fixed(SID_BYTES)
        length = reader.integer("I")
        if length != dimension:
            raise DecodeError(f"a vector of {length} coordinates where {dimension} belong")
        words = np.frombuffer(reader.view(4 * dimension), dtype="<u4")
        return reader.finish(cls(sender, sid, words.astype(np.uint32, copy=False)))


@dataclass(frozen=True)
class UnmaskRequest:
    """Stage 4, server to client: who is in the sum (U3) and who was lost (U2 less U3)."""

    sid: bytes
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]

    def encode(self) -> bytes:
        writer = Writer(7).fixed(self.sid, SID_BYTES)
        return write_ids(write_ids(writer, self.survivors), self.dropped).frame()

    @classmethod
    def decode(cls, data: bytes) -> "UnmaskRequest":
        reader = Reader(data, 7)
        return reader.finish(cls(reader.fixed(SID_BYTES), read_ids(reader), read_ids(reader)))


@dataclass(frozen=True)
class UnmaskReply:
    """Stage 4, client to server: one share for each other member of U2.

    Attributes:
        seed_shares: survivor -> share of its self-mask seed.
        key_shares: dropped -> share of its masking private key.
    """

    sender: int
    sid: bytes
    seed_shares: dict[int, bytes] = field(repr=False)
    key_shares: dict[int, bytes] = field(repr=False)

    def encode(self) -> bytes:
        writer = write_table(
            Writer(8).client_id(self.sender).fixed(self.sid, SID_BYTES), self.seed_shares, SHARE_BYTES
        )
        return write_table(writer, self.key_shares, SHARE_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "UnmaskReply":
        reader = Reader(data, 8)
        sender, sid = reader.client_id(), reader.fixed(SID_BYTES)
        seed_shares, key_shares = (read_table(reader, SHARE_BYTES) for _ in range(2))
        return reader.finish(cls(sender, sid, seed_shares, key_shares))
