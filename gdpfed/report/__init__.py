"""Tables, pictures and pages about privacy plans and runs."""

import os
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]

# Matplotlib keeps a cache of fonts, by default in the user's home, which a checkout's runs leave as it was.
# It decides on the place when it is imported, which nothing outside this package does first.
if (_PROJECT / "uv.lock").is_file():
    os.environ.setdefault("MPLCONFIGDIR", str(_PROJECT / ".flwr" / "cache"))
