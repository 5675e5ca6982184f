"""Federated learning under client-level differential privacy with a budget of each client's own."""

import os
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".flwr" / "cache"

# Matplotlib keeps a cache of fonts, by default in the user's home, which a run leaves as it was.
os.environ.setdefault("MPLCONFIGDIR", str(CACHE))
