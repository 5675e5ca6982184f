"""Child processes: whether they can be forked, and what each one does first."""

import ctypes
import os
import signal
import sys

_PARENT_DEATH_SIGNAL = 1


def can_fork() -> bool:
    """Say whether this process can be forked, with the modules that it has loaded."""
    return sys.platform == "linux"


def serve_only(parent: int) -> None:
    """Leave interrupts to the parent process, and end when the parent ends.

    Args:
        parent: its process id, as the parent itself knows it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # A parent that ended before it could be watched sends no signal.
    if os.getppid() != parent:
        os._exit(1)
