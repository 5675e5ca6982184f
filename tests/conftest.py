"""Settings of the whole suite: hypothesis repeats its examples in CI and looks for new ones elsewhere."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")
