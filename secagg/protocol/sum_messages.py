"""The messages of each stage of a secure sum, as immutable objects with exactly one form in bytes.

A request goes from the server to a client, a reply from a client to the server. A reply names its sender and
its sum (by the hash of the parameters, later by the session id sid), so that a reply of another client or sum
is refused. `decode` raises only DecodeError, whatever the bytes are.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.packing import check_packed, packed_bytes, unpack
from secagg.crypto.keys import CONTEXT_BYTES, PUBLIC_KEYS_BYTES, SEAL_OVERHEAD_BYTES, SECRET_BYTES, PublicKeys
from secagg.crypto.prg import KEY_BYTES as MASK_KEY_BYTES
from secagg.crypto.shamir import share_bytes
from secagg.crypto.signatures import SIGNATURE_BYTES
from secagg.protocol.parameters import SumParameters
from secagg.protocol.wire import Buffer, Reader, Writer, read_ids, read_table, write_ids, write_table
from secagg.sum_errors import DecodeError

KEY_BYTES = 32
SID_BYTES = 32
SHARE_BYTES = share_bytes(SECRET_BYTES)


def held_bytes(noise_levels: int) -> int:
    """Return the size in bytes of one holder's shares of a client's seed, masking key and noise seeds."""
    return (2 + noise_levels) * SHARE_BYTES


def sealed_bytes(noise_levels: int) -> int:
    return held_bytes(noise_levels) + SEAL_OVERHEAD_BYTES


def committed_bytes(noise_levels: int) -> int:
    """Return the length in bytes of a member's commitments to the secret shares of one holder."""
    return (2 + noise_levels) * KEY_BYTES


def read_signature(reader: Reader) -> bytes:
    signature = reader.short()
    if len(signature) not in (0, SIGNATURE_BYTES):
        raise DecodeError(f"a signature has {len(signature)} bytes; it must have {SIGNATURE_BYTES}, or none")
    return signature


@dataclass(frozen=True)
class AdvertiseRequest:
    """Stage 1, server to client: the parameters of the sum, and the number of this member in it.

    Attributes:
        corrects: whether this member is not asked for an update, and only takes back earlier noise.
    """

    parameters: SumParameters
    member: int
    corrects: bool = False

    def encode(self) -> bytes:
        body = self.parameters.to_bytes()
        writer = Writer(1).count(len(body)).fixed(body, len(body)).client_id(self.member)
        return writer.number("B", self.corrects).frame()

    @classmethod
    def decode(cls, data: bytes) -> "AdvertiseRequest":
        reader = Reader(data, 1)
        parameters = SumParameters.from_bytes(reader.fixed(reader.integer("I")))
        member, corrects = reader.client_id(), reader.integer("B")
        if corrects not in (0, 1):
            raise DecodeError(
                f"a member is marked with {corrects}; it must be 0 (sends an update) or 1 (sends none)"
            )
        return reader.finish(cls(parameters, member, bool(corrects)))


@dataclass(frozen=True)
class AdvertiseReply:
    """Stage 1, client to server: the client's public keys, with the hash of the sum's parameters.

    The signature of `keys_statement` is empty unless the server may lie.
    """

    sender: int
    parameters_hash: bytes
    keys: PublicKeys
    signature: bytes = b""

    def encode(self) -> bytes:
        writer = Writer(2).client_id(self.sender).fixed(self.parameters_hash, SID_BYTES)
        writer.fixed(self.keys.to_bytes(), PUBLIC_KEYS_BYTES)
        return writer.short(self.signature).frame()

    @classmethod
    def decode(cls, data: bytes) -> "AdvertiseReply":
        reader = Reader(data, 2)
        sender = reader.client_id()
        parameters_hash = reader.fixed(SID_BYTES)
        keys = PublicKeys.from_bytes(reader.fixed(PUBLIC_KEYS_BYTES))
        return reader.finish(cls(sender, parameters_hash, keys, read_signature(reader)))


def hash_parameters(parameters: SumParameters) -> bytes:
    """Hash a sum's parameters with SHA-256: 32 bytes."""
    return hashlib.sha256(parameters.to_bytes()).digest()


@dataclass(frozen=True)
class ShareRequest:
    """Stage 2, server to client: the public keys of all members, this client included.

    Attributes:
        members: member -> `PublicKeys.to_bytes`.
        signatures: member -> the signature of its keys; empty unless the server may lie.
    """

    members: dict[int, bytes]
    signatures: dict[int, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        writer = write_table(Writer(3), self.members, PUBLIC_KEYS_BYTES)
        return write_table(writer, self.signatures, SIGNATURE_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "ShareRequest":
        reader = Reader(data, 3)
        members = read_table(reader, PUBLIC_KEYS_BYTES)
        return reader.finish(cls(members, read_table(reader, SIGNATURE_BYTES)))


@dataclass(frozen=True)
class ShareReply:
    """Stage 2, client to server: encrypted shares of the client's secrets, one bundle for each neighbour.

    `sealed`: holder -> encrypted shares. `commitments`: holder -> the commitments to these shares
    (`share_commitment`). `noise_commitment`: the commitment to the noise seeds; empty without noise levels.
    """

    sender: int
    sid: bytes
    sealed: dict[int, bytes] = field(repr=False)
    commitments: dict[int, bytes] = field(repr=False)
    noise_commitment: bytes = b""
    noise_levels: int = 0

    def encode(self) -> bytes:
        writer = Writer(4).client_id(self.sender).fixed(self.sid, SID_BYTES)
        writer.fixed(self.noise_commitment, KEY_BYTES if self.noise_levels else 0)
        write_table(writer, self.sealed, sealed_bytes(self.noise_levels))
        return write_table(writer, self.commitments, committed_bytes(self.noise_levels)).frame()

    @classmethod
    def decode(cls, data: bytes, noise_levels: int = 0) -> "ShareReply":
        reader = Reader(data, 4)
        sender, sid = reader.client_id(), reader.fixed(SID_BYTES)
        noise_commitment = reader.fixed(KEY_BYTES if noise_levels else 0)
        sealed = read_table(reader, sealed_bytes(noise_levels))
        commitments = read_table(reader, committed_bytes(noise_levels))
        return reader.finish(cls(sender, sid, sealed, commitments, noise_commitment, noise_levels))


@dataclass(frozen=True)
class MaskRequest:
    """Stage 3, server to client: who shared secrets (U2), and the neighbours' shares for this client.

    `contributors`: U2, ascending. `sealed`: dealer -> encrypted shares. `commitments`: dealer -> the
    commitments to these shares.
    """

    sid: bytes
    contributors: tuple[int, ...]
    sealed: dict[int, bytes] = field(repr=False)
    commitments: dict[int, bytes] = field(repr=False)
    noise_levels: int = 0

    def encode(self) -> bytes:
        writer = write_ids(Writer(5).fixed(self.sid, SID_BYTES), self.contributors)
        write_table(writer, self.sealed, sealed_bytes(self.noise_levels))
        return write_table(writer, self.commitments, committed_bytes(self.noise_levels)).frame()

    @classmethod
    def decode(cls, data: bytes, noise_levels: int = 0) -> "MaskRequest":
        reader = Reader(data, 5)
        sid, contributors = reader.fixed(SID_BYTES), read_ids(reader)
        sealed = read_table(reader, sealed_bytes(noise_levels))
        commitments = read_table(reader, committed_bytes(noise_levels))
        return reader.finish(cls(sid, contributors, sealed, commitments, noise_levels))


@dataclass(frozen=True, eq=False)
class MaskReply:
    """Stage 3, client to server: the masked vector, packed with `bits` bits for each coordinate.

    Attributes:
        context: names what the vector was made from. The masks depend on it; it is sent so that the server
            can leave out a member with another context.
        complaints: neighbours whose shares are invalid, ascending.
        packed: the vector, `packed_bytes(dimension, bits)` bytes; in a decoded reply, a view of the message.
        proof: reserved for a proof that the vector's norm is at most C; always empty in this version.
    """

    sender: int
    sid: bytes
    context: bytes
    complaints: tuple[int, ...]
    packed: Buffer = field(repr=False)
    dimension: int
    bits: int = 32
    proof: bytes = b""

    def encode(self) -> bytes:
        writer = Writer(6).client_id(self.sender).fixed(self.sid, SID_BYTES)
        write_ids(writer.fixed(self.context, CONTEXT_BYTES), self.complaints).short(self.proof)
        writer.count(self.dimension)
        return writer.fixed(self.packed, packed_bytes(self.dimension, self.bits)).frame()

    def vector(self) -> NDArray[np.uint32]:
        """Unpack the masked vector: uint32[d]; it is read-only if integers have 32 bits."""
        return unpack(memoryview(self.packed), self.dimension, self.bits)

    @classmethod
    def decode(cls, data: bytes, dimension: int, bits: int = 32) -> "MaskReply":
        """Read a reply that `encode` wrote, without a copy of the vector; DecodeError for a wrong length."""
        reader = Reader(data, 6)
        sender, sid, context = reader.client_id(), reader.fixed(SID_BYTES), reader.fixed(CONTEXT_BYTES)
        complaints, proof = read_ids(reader), reader.short()
        if proof:
            raise DecodeError(f"a message has a proof of {len(proof)} bytes, and this version has no proofs")
        length = reader.integer("I")
        if length != dimension:
            raise DecodeError(f"a vector has {length} coordinates; it must have {dimension}")
        packed = reader.view(packed_bytes(dimension, bits))
        check_packed(packed, dimension, bits)
        return reader.finish(cls(sender, sid, context, complaints, packed, dimension, bits))


@dataclass(frozen=True)
class CheckRequest:
    """Check stage, server to client: the members that are in the sum (U3)."""

    sid: bytes
    survivors: tuple[int, ...]

    def encode(self) -> bytes:
        return write_ids(Writer(9).fixed(self.sid, SID_BYTES), self.survivors).frame()

    @classmethod
    def decode(cls, data: bytes) -> "CheckRequest":
        reader = Reader(data, 9)
        return reader.finish(cls(reader.fixed(SID_BYTES), read_ids(reader)))


@dataclass(frozen=True)
class CheckReply:
    """Check stage, client to server: the client's signature of the list of survivors from the server."""

    sender: int
    sid: bytes
    signature: bytes

    def encode(self) -> bytes:
        writer = Writer(10).client_id(self.sender).fixed(self.sid, SID_BYTES)
        return writer.fixed(self.signature, SIGNATURE_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "CheckReply":
        reader = Reader(data, 10)
        return reader.finish(cls(reader.client_id(), reader.fixed(SID_BYTES), reader.fixed(SIGNATURE_BYTES)))


@dataclass(frozen=True)
class UnmaskRequest:
    """Stage 4, server to client: who is in the sum (U3), and who dropped out (U2 without U3).

    Attributes:
        orphans: dropped members whose key cannot be recovered, since too few members hold valid shares of it;
            their neighbours send the keys of the masks with them instead.
        signatures: member -> signature of U3; empty unless the server may lie.
    """

    sid: bytes
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    orphans: tuple[int, ...] = ()
    signatures: dict[int, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        writer = Writer(7).fixed(self.sid, SID_BYTES)
        for ids in (self.survivors, self.dropped, self.orphans):
            write_ids(writer, ids)
        return write_table(writer, self.signatures, SIGNATURE_BYTES).frame()

    @classmethod
    def decode(cls, data: bytes) -> "UnmaskRequest":
        reader = Reader(data, 7)
        sid = reader.fixed(SID_BYTES)
        survivors, dropped, orphans = (read_ids(reader) for _ in range(3))
        return reader.finish(cls(sid, survivors, dropped, orphans, read_table(reader, SIGNATURE_BYTES)))


@dataclass(frozen=True)
class UnmaskReply:
    """Stage 4, client to server: the shares that the client holds of its neighbours' secrets.

    `seed_shares`: survivor -> share of its self-mask seed. `key_shares`: dropped member -> share of its
    private masking key. `noise_shares`: survivor -> share of its first noise seed above the needed level;
    empty if no noise is removed. `pair_keys`: orphan -> the key of the mask with it (`pair_mask_key`).
    """

    sender: int
    sid: bytes
    seed_shares: dict[int, bytes] = field(repr=False)
    key_shares: dict[int, bytes] = field(repr=False)
    noise_shares: dict[int, bytes] = field(repr=False, default_factory=dict)
    pair_keys: dict[int, bytes] = field(repr=False, default_factory=dict)
    suite: str = "aes128ctr"

    def encode(self) -> bytes:
        writer = Writer(8).client_id(self.sender).fixed(self.sid, SID_BYTES)
        for shares in (self.seed_shares, self.key_shares, self.noise_shares):
            write_table(writer, shares, SHARE_BYTES)
        return write_table(writer, self.pair_keys, MASK_KEY_BYTES[self.suite]).frame()

    @classmethod
    def decode(cls, data: bytes, suite: str = "aes128ctr") -> "UnmaskReply":
        reader = Reader(data, 8)
        sender, sid = reader.client_id(), reader.fixed(SID_BYTES)
        seeds, keys, noise = (read_table(reader, SHARE_BYTES) for _ in range(3))
        pair_keys = read_table(reader, MASK_KEY_BYTES[suite])
        return reader.finish(cls(sender, sid, seeds, keys, noise, pair_keys, suite))
