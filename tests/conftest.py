"""Settings of the whole suite: one thread, what hypothesis draws, and which files come first."""

import os

# Before numpy and torch are loaded. Beside other programs a second thread waits more than it works.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")

# Real runs and whole trainings: the last process to end is not to begin with one of these.
LONGEST = ("deploy", "launch", "server_app", "experiments")


def pytest_collection_modifyitems(items):
    """The longest files come first; make test keeps each file in one process."""
    items.sort(key=_place)


def _place(item):
    directory = item.path.parent.name
    return LONGEST.index(directory) if directory in LONGEST else len(LONGEST)
