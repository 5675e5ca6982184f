"""The command ``gdpfed``; each of its subcommands is a module of this package.

Modules take seconds to import, and Ctrl-C may come meanwhile; nothing else is imported here for that reason.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


@contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Print one line and end the process at once if Ctrl-C comes while modules are being imported.

    Raised in the middle of an import, the interrupt would come out of it as any error, with its traceback.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, _end_interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM, by which schedulers and containers end a program, like Ctrl-C."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_interrupted(number: int, frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), b"gdpfed: interrupted\n")
    os._exit(INTERRUPTED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of ``gdpfed`` and return its exit status."""
    with quiet_interrupt():
        from gdpfed.cli.app import main as run
    return run(arguments)


__all__ = ["main"]
