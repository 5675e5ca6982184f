"""Find out which key signed a request: Flower signs each request's time with the node's key.

That a key signs says only that somebody has it. A key is *known* once the SuperLink, which has the list of
registered ones, has answered a request of it with success; no file of the SuperLink's is read for this.
"""

from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

UNAUTHORIZED = 401


def signer(headers: Mapping[str, str]) -> bytes | None:
    """Return the public key that signed the current time in a request, or None without a valid signature.

    The times that count as now are those of Flower's SuperLink, and so is the signature.
    """
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        said = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.fromisoformat(said)).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return None
        signed = verify_signature(bytes_to_public_key(key), said.encode("ascii"), signature)
    except Exception:  # A stranger chose all of it: a key of another kind has no verify, for instance.
        return None
    return key if signed else None


class KnownKeys:
    """The nodes' public keys that the SuperLink accepts, learned from the status codes of its answers."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def learn(self, key: bytes, status: int) -> None:
        """Add the key that signed a request if the SuperLink answered 2xx; remove the key after a 401."""
        if 200 <= status < 300:
            self._keys.add(key)
        elif status == UNAUTHORIZED:
            self._keys.discard(key)
