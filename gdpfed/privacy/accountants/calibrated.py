"""A cache file of noise multipliers that were already computed for a budget, in the user's cache directory.

It saves a search, not a check: the accountant computes what the noise costs before it is used again. So a
file that is damaged, old or somebody else's can cost time and nothing more.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

LARGEST_FILE = 4 * 2**20


def known_noise(key: Mapping[str, Any]) -> float | None:
    """Return the cached noise multiplier for these inputs of a calibration (`key`), or None."""
    return _entries().get(_digest(key))


def keep_noise(key: Mapping[str, Any], noise: float) -> None:
    """Cache a noise multiplier in the file, or only in memory if the file cannot be written."""
    digest = _digest(key)
    _entries()[digest] = noise
    try:
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST_FILE:
            path.unlink()
        with path.open("a") as file:  # One short line is written whole, also beside other processes.
            file.write(f"{digest} {noise!r}\n")
    except (OSError, RuntimeError):
        return


@lru_cache(maxsize=1)
def _entries() -> dict[str, float]:
    try:
        lines = _path().read_text(errors="replace").splitlines()
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory.
        return {}
    entries = {}
    for line in lines:
        digest, _, text = line.partition(" ")
        try:
            noise = float(text)
        except ValueError:  # The line is damaged.
            continue
        if math.isfinite(noise) and noise > 0:
            entries[digest] = noise
    return entries


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=float).encode()).hexdigest()[:32]


def _path() -> Path:
    """The cache's file: in GDPFED_CACHE_DIR, or in `gdpfed` in XDG_CACHE_HOME, by default ~/.cache."""
    own = os.environ.get("GDPFED_CACHE_DIR")
    if own:
        return Path(own) / "calibrated_noise.txt"
    everyones = os.environ.get("XDG_CACHE_HOME")
    return (Path(everyones) if everyones else Path.home() / ".cache") / "gdpfed" / "calibrated_noise.txt"
