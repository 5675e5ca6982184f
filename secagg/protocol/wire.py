"""A strict binary format for messages: big-endian integers, exact lengths, one form for each value.

Every message is a frame: version byte, type byte, body, 16-byte checksum. The checksum detects damage in
transit; otherwise a flipped bit in a masked vector would give a wrong sum. It does not authenticate a
message, since its key is public.
"""

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.sum_errors import DecodeError

Buffer = bytes | memoryview
T = TypeVar("T")

VERSION = 5
CHECKSUM_BYTES = 16
_HEADER_BYTES = 2
_CHECKSUM_KEY = b"secagg/2/damage?"
MAX_CLIENTS = 2**16 - 1


def checksum(*parts: Buffer) -> bytes:
    """Compute a 16-byte checksum that detects changes: GMAC under a fixed, public key.

    GMAC is as fast as AES-CTR; a hash would take longer than the masks of a small cohort.
    """
    mac = Cipher(algorithms.AES(_CHECKSUM_KEY), modes.GCM(bytes(12))).encryptor()
    for part in parts:
        mac.authenticate_additional_data(part)
    mac.finalize()
    return mac.tag


class Writer:
    """Collects the fields of one message; raises struct.error or ValueError for values out of range."""

    def __init__(self, message_type: int) -> None:
        self._parts: list[Buffer] = [bytes((VERSION, message_type))]

    def number(self, form: str, value: float) -> "Writer":
        self._parts.append(struct.pack(">" + form, value))
        return self

    def count(self, value: int) -> "Writer":
        return self.number("I", value)

    def client_id(self, value: int) -> "Writer":
        return self.number("Q", value)

    def fixed(self, value: Buffer, length: int) -> "Writer":
        if len(value) != length:
            raise ValueError(f"a field of {length} bytes cannot hold {len(value)}")
        self._parts.append(value)
        return self

    def short(self, value: bytes) -> "Writer":
        """Write up to 255 bytes, with their length before them."""
        return self.number("B", len(value)).fixed(value, len(value))

    def frame(self) -> bytes:
        return b"".join([*self._parts, checksum(*self._parts)])


class Reader:
    """Reads the fields of one message; raises nothing but DecodeError, whatever the bytes are."""

    def __init__(self, data: bytes, message_type: int) -> None:
        if not isinstance(data, bytes):
            raise DecodeError(f"a message is bytes, not {type(data).__name__}")
        if len(data) < _HEADER_BYTES + CHECKSUM_BYTES:
            raise DecodeError(f"{len(data)} bytes are too few for a message")
        body = memoryview(data)[:-CHECKSUM_BYTES]
        if (body[0], body[1]) != (VERSION, message_type):
            raise DecodeError(
                f"the message has version {body[0]} and type {body[1]}, not version {VERSION} and type "
                f"{message_type}: run one version on both sides"
            )
        if checksum(body) != data[-CHECKSUM_BYTES:]:
            raise DecodeError("the checksum does not fit: the message was damaged on its way")
        self._rest = body[_HEADER_BYTES:]

    def fixed(self, length: int) -> bytes:
        return bytes(self.view(length))

    def view(self, length: int) -> memoryview:
        """Return the next bytes without a copy."""
        if length > len(self._rest):
            raise DecodeError(f"{length} bytes are expected, and only {len(self._rest)} are left")
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def integer(self, form: str) -> int:
        return int(struct.unpack(">" + form, self.view(struct.calcsize(form)))[0])

    def real(self) -> float:
        return float(struct.unpack(">d", self.view(8))[0])

    def count(self, item_bytes: int) -> int:
        """Read a number of items; raise DecodeError if the remaining bytes cannot hold that many."""
        count = self.integer("I")
        if count > MAX_CLIENTS or count * item_bytes > len(self._rest):
            raise DecodeError(
                f"{count} items of {item_bytes} bytes are announced, and only {len(self._rest)} bytes "
                "are left"
            )
        return count

    def client_id(self) -> int:
        return self.integer("Q")

    def short(self) -> bytes:
        return self.fixed(self.integer("B"))

    def finish(self, value: T) -> T:
        if len(self._rest):
            raise DecodeError(f"{len(self._rest)} bytes after the end of the message")
        return value


def write_table(writer: Writer, table: dict[int, bytes], value_bytes: int) -> Writer:
    """Write a table from client id to bytes of fixed length, in ascending order of id."""
    if any(len(value) != value_bytes for value in table.values()):
        raise ValueError(f"a table of fields of {value_bytes} bytes cannot hold others")
    row = struct.Struct(f">Q{value_bytes}s").pack
    rows = b"".join([row(client_id, table[client_id]) for client_id in sorted(table)])
    return writer.count(len(table)).fixed(rows, len(rows))


def read_table(reader: Reader, value_bytes: int) -> dict[int, bytes]:
    """Read a table that `write_table` wrote; raise DecodeError for ids that repeat or descend."""
    row_bytes = 8 + value_bytes
    rows = reader.view(reader.count(row_bytes) * row_bytes)
    table = list(struct.iter_unpack(f">Q{value_bytes}s", rows))
    _check_ascending([client_id for client_id, _ in table])
    return dict(table)


def write_ids(writer: Writer, ids: tuple[int, ...]) -> Writer:
    return writer.count(len(ids)).fixed(struct.pack(f">{len(ids)}Q", *ids), 8 * len(ids))


def read_ids(reader: Reader) -> tuple[int, ...]:
    """Read a list of client ids; raise DecodeError for ids that repeat or descend."""
    count = reader.count(8)
    ids = struct.unpack(f">{count}Q", reader.view(8 * count))
    _check_ascending(ids)
    return ids


def _check_ascending(ids: Sequence[int]) -> None:
    for before, after in pairwise(ids):
        if after <= before:
            raise DecodeError(f"client id {after} after {before}: ids must ascend")
