"""The list of all clients' public keys (roster), agreed on before a run and signed by the consortium.

A server that made the roster could put keys of its own in it. So a client should read it with `from_signed`,
which accepts only a roster that the consortium signed, given the consortium's public key.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from secagg.crypto.signatures import IDENTITY_BYTES, SIGNATURE_BYTES, Identity, is_signed
from secagg.sum_errors import RosterError

MAX_CLIENT_ID = 2**64 - 1
ROSTER_VERSION = 1
_ROSTER_PURPOSE = b"secagg/3/roster"
_SIGNED_PURPOSE = b"secagg/3/signed roster"
_FIELDS = {"version", "number", "date", "clients", "signature"}
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)?", re.ASCII)
_CLIENT_ID = re.compile(r"0|[1-9][0-9]{0,19}")


class Roster(Mapping[int, bytes]):
    """The Ed25519 public key of each client, by client id; it cannot be changed once made.

    Args:
        keys: client id (64 bits) -> public key (32 bytes); no key under two ids.
        number: 64 bits; of two rosters of one consortium, the one with the higher number is valid.
        date: the day of the signature as YYYY-MM-DD, for people.

    Raises RosterError for other ids, keys, numbers or dates.
    """

    def __init__(self, keys: Mapping[int, bytes], *, number: int = 0, date: str = "") -> None:
        if type(number) is not int or not 0 <= number <= MAX_CLIENT_ID:
            raise RosterError(f"its number is {number!r}: use 0 to 2**64 - 1")
        if not isinstance(date, str) or not _DATE.fullmatch(date):
            raise RosterError(f"its date is {date!r}: write YYYY-MM-DD")
        self.number, self.date = number, date
        owners: dict[bytes, int] = {}
        for client_id in sorted(keys):
            key = keys[client_id]
            if not 0 <= client_id <= MAX_CLIENT_ID:
                raise RosterError(f"client {client_id} is not an id: use 0 to 2**64 - 1")
            if len(key) != IDENTITY_BYTES:
                raise RosterError(f"the key of client {client_id} has {len(key)} bytes, not {IDENTITY_BYTES}")
            if key in owners:
                raise RosterError(
                    f"clients {owners[key]} and {client_id} have one key: each needs an identity of its own"
                )
            owners[key] = client_id
        self._keys = MappingProxyType({client_id: key for key, client_id in owners.items()})
        self._digest = _digest(self._keys)

    def __getitem__(self, client_id: int) -> bytes:
        return self._keys[client_id]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the client ids in the list of public keys, ascending."""
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __reduce__(self) -> tuple["partial[Roster]", tuple[dict[int, bytes]]]:
        return partial(Roster, number=self.number, date=self.date), (dict(self._keys),)

    def __repr__(self) -> str:
        return f"<Roster of {len(self)} clients, {self._digest.hex()[:16]}>"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the list's ids and public keys, 32 bytes; clients include it in everything they sign."""
        return self._digest

    def signed_by(self, consortium: Identity) -> bytes:
        """Return the list of public keys as a JSON file signed by the consortium."""
        content = {
            "version": ROSTER_VERSION,
            "number": self.number,
            "date": self.date,
            "clients": {str(client_id): key.hex() for client_id, key in self.items()},
            "signature": consortium.sign(self._signed_statement()).hex(),
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    def _signed_statement(self) -> bytes:
        return _SIGNED_PURPOSE + self._digest + struct.pack(">Q", self.number) + self.date.encode()

    @classmethod
    def from_signed(cls, data: bytes, consortium_key: bytes) -> "Roster":
        """Read a list of public keys that `signed_by` wrote, and check the consortium's signature.

        Raises RosterError for a roster that is damaged, of another form, or not signed by this consortium.
        """
        try:
            content = json.loads(data, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise RosterError(f"it is not JSON ({error})") from None
        if (
            not isinstance(content, dict)
            or content.keys() != _FIELDS
            or not isinstance(content["clients"], dict)
        ):
            raise RosterError(f"it must hold {', '.join(sorted(_FIELDS))} and nothing else")
        if type(content["version"]) is not int or content["version"] != ROSTER_VERSION:
            raise RosterError(f"it has version {content['version']!r}, not {ROSTER_VERSION}")
        keys = {}
        for word, key in content["clients"].items():
            if not _CLIENT_ID.fullmatch(word):
                raise RosterError(f"{word!r} is not a client id: write the number, from 0")
            client_id = int(word)
            keys[client_id] = _bytes(key, IDENTITY_BYTES, f"the key of client {word}")
        roster = cls(keys, number=content["number"], date=content["date"])
        signature = _bytes(content["signature"], SIGNATURE_BYTES, "the signature")
        if not is_signed(consortium_key, signature, roster._signed_statement()):
            raise RosterError(f"it is not signed by the consortium with key {consortium_key.hex()}")
        return roster


def _digest(keys: Mapping[int, bytes]) -> bytes:
    digest = sha256(_ROSTER_PURPOSE + struct.pack(">Q", len(keys)))
    for client_id in sorted(keys):
        digest.update(struct.pack(">Q", client_id) + keys[client_id])
    return digest.digest()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name stands in it twice")
    return content


def _bytes(word: Any, length: int, what: str) -> bytes:
    if not isinstance(word, str) or not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", word):
        raise RosterError(f"{what} is not {length} bytes in lower-case hexadecimal")
    return bytes.fromhex(word)


NOBODY = Roster({})
"""The empty roster, for sums in which members do not sign."""
