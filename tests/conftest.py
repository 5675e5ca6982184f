"""Set up pytest: one thread, checks of array shapes, settings of hypothesis, and the order of the tests."""

import atexit
import gc
import os
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

# Before numpy and torch are loaded. Beside other programs a second thread waits more than it works.
os.environ["OMP_NUM_THREADS"] = "1"

if "PYTEST_XDIST_WORKER" not in os.environ:  # Its processes, and theirs, share what was calibrated.
    os.environ["GDPFED_CACHE_DIR"] = tempfile.mkdtemp(prefix="gdpfed-tests-")
    atexit.register(shutil.rmtree, os.environ["GDPFED_CACHE_DIR"], ignore_errors=True)

import pytest
from hypothesis import settings

from testing.documented_shapes import check_documented_shapes
from testing.interrupts import take_interrupts

check_documented_shapes("fastgrad", "gdpfed", "secagg")

# What is imported and collected lives to the end: the collector need not look through it while it is made.
gc.disable()

import omegaconf.base  # noqa: E402
import omegaconf.grammar_parser  # noqa: E402

import gdpfed.methods  # noqa: E402, F401 - hands the methods to conf

# A third of the time of a configuration goes into references to other settings, which are always the same.
vars(omegaconf.base)["parse"] = lru_cache(512)(omegaconf.grammar_parser.parse)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")

# Real runs and whole trainings: the last process to end is not to begin with one of these.
LONGEST = ("deploy", "launch", "server_app", "experiments", "packaging", "canaries", "simulation")


# Folders whose tests train and look at no picture of it; those in LOOK_AT_PICTURES look at some.
UNDRAWN = (
    *("audit", "benchmarks", "canaries", "client_app", "docs", "edges", "experiments", "extras", "fedpcs"),
    *("flower", "h2fdp", "learning", "methods", "privacy", "python_objects", "rounds", "runs", "server_app"),
    *("simulation", "statistics", "survival", "trees"),
)
LOOK_AT_PICTURES = (
    *("test_choose_records.py", "test_definitions.py", "test_paper.py", "test_prices.py"),
    *("test_privacy_figures.py", "test_reproduce.py", "test_runs.py"),
)


# To rename a file, as a node does in each message, takes a disk longer than the rest of the message takes.
# Names are short, since a socket's whole path has 107 characters.
MEMORY = Path("/dev/shm")  # noqa: S108 - each run of the tests has a folder of its own below it
DAY = 24 * 60 * 60


def pytest_configure():
    """Accept Ctrl-C, skip fsync, and keep temporary files in memory, since a disk takes milliseconds."""
    take_interrupts()
    os.fsync = lambda fd: None
    if "PYTEST_XDIST_WORKER" not in os.environ and _is_large(MEMORY):
        _forget_failures(MEMORY)
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="t-", dir=MEMORY)


def pytest_sessionfinish(exitstatus):
    """Delete the files that tests wrote into memory, but only if all tests passed."""
    written = Path(tempfile.gettempdir())
    own = "PYTEST_XDIST_WORKER" not in os.environ and written.parent == MEMORY
    if own and exitstatus == pytest.ExitCode.OK:
        atexit.register(shutil.rmtree, written, ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Sort the tests so that the slowest folders start first, since `make test` runs two files at a time."""
    items.sort(key=_place)


def pytest_collection_finish():
    """Turn garbage collection on again, but ignore the objects that pytest made while it collected tests."""
    gc.freeze()
    gc.enable()


def _is_large(folder):
    return folder.is_dir() and shutil.disk_usage(folder).free > 4 << 30


def _forget_failures(folder):
    """Delete what tests that failed or were stopped left in memory more than a day ago."""
    for left in folder.glob("t-*"):
        with suppress(FileNotFoundError):
            status = left.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)


def _place(item):
    directory = item.path.parent.name
    return LONGEST.index(directory) if directory in LONGEST else len(LONGEST)


@pytest.fixture(autouse=True)
def small_runs_are_cheap(request):
    """In the folders UNDRAWN, draw no pictures for runs, and use one process except in the folder simulation.

    To draw, and to fork two processes, takes each as long as to train.
    """
    file = request.path
    with ExitStack() as stack:
        if file.parent.name in UNDRAWN and file.name not in LOOK_AT_PICTURES:
            from testing.small_runs import nothing_drawn

            stack.enter_context(nothing_drawn())
        if file.parent.name in UNDRAWN and file.parent.name != "simulation":
            stack.enter_context(patch("gdpfed.simulation.engine_choice.usual_workers", lambda: 1))
        yield
