"""Test vectors of secure sums with dropouts: each client's noise, the rounding step and the total.

The messages of whole sums are in docs/secagg_wire_vectors.json; here is the hash of each of those sums.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness import PROJECT
from conf.schema import SecAggConfig
from gdpfed.errors import RunError
from gdpfed.methods.sum_parameters import sum_parameters
from secagg import SumParameters
from secagg.sum_errors import EncodingError

ABOUT = (
    "Sums with dropouts: the counts that fractions become, the grid, each member's share of the noise, the "
    "integers that its update becomes, and the total modulo 2**bits of those who are left."
)
WIRE_FILE = "docs/secagg_wire_vectors.json"

DIMENSION, NORM, SIGMA = 4, 1.0, 2.0
SETTINGS: dict[str, dict[str, Any]] = {
    "nobody may be lost": {"dropout_tolerance": 0.0},
    "one in ten may be lost": {},
    "one in five may collude": {"corrupt_tolerance": 0.2},
    "an active server": {"mode": "active", "corrupt_tolerance": 0.1},
}
MEMBERS = (10, 25)


def sum_cases() -> Iterator[dict[str, Any]]:
    """Yield test cases: clients' parts of the noise, totals after dropouts, hashes of published messages."""
    for name, settings in SETTINGS.items():
        for members in MEMBERS:
            yield _shares(f"{name}, {members} members", settings, members)
    for dropped in (0, 1, 2):
        yield _total(dropped)
    published = json.loads((PROJECT / WIRE_FILE).read_text(encoding="utf-8"))
    for name in sorted(published):
        text = json.dumps(published[name], sort_keys=True, separators=(",", ":"))
        yield {
            "name": f"messages: {name}",
            "given": {"file": WIRE_FILE, "sum": name},
            "expected": {"sha256_of_canonical_json": hashlib.sha256(text.encode()).hexdigest()},
        }


def _parameters(settings: dict[str, Any], members: int, sigma: float) -> SumParameters:
    return sum_parameters(
        SecAggConfig(**settings),
        label="test vector",
        num_clients=members,
        dimension=DIMENSION,
        clipping_norm=NORM,
        noise_multiplier=sigma,
    )


def _shares(name: str, settings: dict[str, Any], members: int) -> dict[str, Any]:
    """Return a test case: the stddev of one client's noise, for each number of clients that add noise."""
    parameters, config = _parameters(settings, members, SIGMA), SecAggConfig(**settings)
    shares = []
    for contributors in range(parameters.fewest_updates, members + 1):
        try:
            share = parameters.client_noise_stddev(contributors)
        except EncodingError:
            continue
        survivors = parameters.fewest_summed_updates(contributors)
        shares.append({"contributors": contributors, "share_stddev": share, "fewest_in_the_sum": survivors})
    return {
        "name": f"shares: {name}",
        "given": {
            "members": members,
            "dropout_tolerance": config.dropout_tolerance,
            "corrupt_tolerance": config.corrupt_tolerance,
            "mode": config.mode,
            "clipping_norm": NORM,
            "noise_multiplier": SIGMA,
        },
        "expected": {
            "dropouts": parameters.dropout_tolerance,
            "corrupt": parameters.corrupt_tolerance,
            "known_shares": parameters.known_shares,
            "threshold": parameters.threshold,
            "shares": shares,
        },
    }


def _total(dropped: int) -> dict[str, Any]:
    """Return a test case: the sum of ten clients with noise from known keys, after some have dropped out."""
    members = 10
    parameters = _parameters({"dropout_tolerance": 0.2, "threshold": 0.6}, members, SIGMA)
    encoding = parameters.encoding(members)
    levels = encoding.levels
    if levels is None:
        raise RunError("a sum with noise has no levels of it: give it a noise multiplier")
    total, entries = np.zeros(DIMENSION, dtype=np.uint32), []
    for member in range(members):
        update = np.asarray([(member + 1) * (axis - 1) / 40 for axis in range(DIMENSION)])
        key = hashlib.sha256(f"noise {member}".encode()).digest()
        steps = encoding.encode(update)
        noise = levels.draw(0, DIMENSION, key)
        entries.append(
            {"update": update.tolist(), "steps": steps.tolist(), "key": key.hex(), "noise": noise.tolist()}
        )
        if member < members - dropped:
            total += encoding.to_residues(steps + noise)
    total &= np.uint32(2**encoding.modulus_bits - 1)
    return {
        "name": f"total: {members - dropped} of {members} are left",
        "given": {
            "dimension": DIMENSION,
            "clipping_norm": NORM,
            "noise_multiplier": SIGMA,
            "members": members,
            "dropouts": parameters.dropout_tolerance,
            "corrupt": parameters.corrupt_tolerance,
            "known_shares": parameters.known_shares,
            "lost": list(range(members - dropped, members)),
            "contributions": entries,
        },
        "expected": {
            "grid": encoding.grid,
            "modulus_bits": encoding.modulus_bits,
            "clip_bound": encoding.clip_bound,
            "integer_noise_stddev": levels.base_stddev,
            "total": total.tolist(),
            "decoded": encoding.decode(total).tolist(),
        },
    }
