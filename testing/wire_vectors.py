"""Messages of complete secure sums with fixed secrets, to test other implementations of the protocol.

    python -m testing.wire_vectors > docs/secagg_wire_vectors.json

The secrets of client i come from AES-256 in counter mode under SHA-256("0/i"), in the order in which a
`ClientSession` draws them; identities are Ed25519 keys whose private bytes are SHA-256("identity i").
"""

import json
import sys
from typing import Any

from secagg import Stage
from testing.secagg_sums import ACTIVE, IDS, Joined, make_parameters

SUMS: dict[str, dict[str, Any]] = {
    "curious": {"num_clients": 4, "dimension": 6, "drawn": True},
    "active": {"num_clients": 6, "dimension": 6, **ACTIVE},
    "sparse, noise levels, 24 bits": {
        "num_clients": 20,
        "dimension": 6,
        "num_neighbours": 6,
        "threshold": 4,
        "dropout_tolerance": 2,
        "noise_levels": 2,
        "modulus_bits": 24,
        "drawn": True,
    },
    "chacha20": {"num_clients": 4, "dimension": 6, "suite": "chacha20", "drawn": True},
    "noise taken back": {
        "num_clients": 6,
        "dimension": 6,
        "num_correctors": 2,
        "correction_multiplier": 0.5,
        "drawn": True,
    },
}


def transcript(name: str) -> dict[str, Any]:
    """Return all messages to and from one client of a secure sum, and the result."""
    values = dict(SUMS[name])
    drawn = values.pop("drawn", False)
    joined = Joined(make_parameters(values.pop("num_clients"), **values), drawn=drawn)
    first, last = IDS[0], IDS[joined.parameters.num_clients - 1]
    stages: dict[str, dict[str, str]] = {}

    def note(client_id: int, reply: bytes) -> bytes:
        if client_id == first:
            stages[str(joined.server.stage)]["reply"] = reply.hex()
        return reply

    while not joined.server.done:
        stage = joined.server.stage
        stages[str(stage)] = {"request": joined.server.requests()[first].hex()}
        joined.exchange(silent=[last] if stage is Stage.MASK else (), alter=note)
    result = joined.server.result()
    return {
        "client": first,
        "steps": joined.vectors[first].tolist(),
        "stages": stages,
        "survivors": list(result.survivors),
        "total": result.total.tolist(),
    }


def vectors() -> dict[str, Any]:
    """Return test vectors by name: for each secure sum, one client's messages, and the sum's result."""
    return {name: transcript(name) for name in SUMS}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vectors(), indent=1, sort_keys=True) + "\n")
