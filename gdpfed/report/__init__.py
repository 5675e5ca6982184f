"""Tables, pictures and pages about privacy plans and runs."""

import os

from gdpfed.installed import SOURCES

# Matplotlib keeps a cache of fonts, by default in the user's home, which a checkout's runs leave as it was.
# It decides on the place when it is imported, which nothing outside this package does first.
if (SOURCES / "uv.lock").is_file():
    os.environ.setdefault("MPLCONFIGDIR", str(SOURCES / ".flwr" / "cache"))
