"""Settings of the whole suite: what hypothesis draws, which files come first, and which stay together."""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")

# Real runs and whole trainings: the last process to end is not to begin with one of these.
LONGEST = ("deploy", "launch", "server_app", "experiments")


def pytest_collection_modifyitems(items):
    """A file runs in one process, and so do all federations of separate nodes: two at once are too slow."""
    items.sort(key=_place)
    for item in items:
        item.add_marker(pytest.mark.xdist_group("deploy" if _place(item) == 0 else item.path.stem))


def _place(item):
    directory = item.path.parent.name
    return LONGEST.index(directory) if directory in LONGEST else len(LONGEST)
