"""Set up child processes at their start: workers for training, and Flower's programs that run the app.

Of Flower it knows the name of the logger only, and does nothing in any other process, as in a simulation.
"""

import ctypes
import gc
import json
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any

from gdpfed.errors import GDPFedError

FLOWER_LOGGER = "flwr"
SIMULATION = "flwr-simulation"
"""The program of Flower that runs an app's server and, by Ray, all of its nodes."""
WATCH_SECONDS = 0.5
LOG_VARIABLE, JSON = "GDPFED_LOG", "json"
"""The environment variable, with its only value, that makes every log line a JSON object."""
RAY_HOOK = {"RAY_RUNTIME_ENV_HOOK": f"{__name__}.with_python_quoted"}
"""The environment variable with which Ray quotes the path of Python when it starts workers."""
_PARENT_DEATH_SIGNAL = 1


def can_fork() -> bool:
    """Return whether gdpfed makes workers by forking this process: on Linux only, and not as a daemon.

    A daemon of multiprocessing, such as a worker of a `Pool`, may have no children.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def fork_context() -> ForkContext:
    """Return multiprocessing's context to fork this process, after a garbage collection.

    A child that frees what it has inherited may crash or hang in it, as in what is left of a client of Ray's.
    """
    gc.collect()
    return multiprocessing.get_context("fork")


def serve_only(parent: int) -> None:
    """Ignore interrupts, which the parent process handles; end when the parent has ended or sends SIGTERM.

    Args:
        parent: its process id, as the parent itself knows it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _be_killed_with(parent)


def _be_killed_with(parent: int) -> None:
    """On Linux, have this process killed when the parent ends; end now if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # A parent that ended before it could be watched sends no signal.
    if os.getppid() != parent:
        os._exit(1)


def become(parent: str, *command: str) -> None:
    """Turn this process into another program, which on Linux is killed when the parent ends.

    ``python -m gdpfed.child_process PARENT COMMAND ...``, with the parent's process id.
    """
    _be_killed_with(int(parent))
    os.execv(command[0], command)  # noqa: S606 - our own programs


def with_python_quoted(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return Ray's settings for workers, with the path of this Python quoted if a shell needs quotes.

    Ray hands the path to a shell as it is: below a folder with a space in its name no worker starts, and Ray
    tries again without end.
    """
    described, python = dict(runtime_env or {}), shlex.quote(sys.executable)
    return described if python == sys.executable else {"py_executable": python, **described}


def is_program(name: str) -> bool:
    """Return whether this process runs the program of this name."""
    return Path(sys.argv[0]).name == name


def begin_process(program: str, *, ends_with_parent: bool = False) -> None:
    """If this process runs the named program of Flower, set up its log and, if asked, end it with its parent.

    On something else than a terminal, lines of Flower's log have a time and no colours. An error that the
    project raises itself is one line there, without a traceback. With ``GDPFED_LOG=json`` every event is one
    line of JSON instead. A process that ends with its parent ends where its SuperExec does, which Flower's
    programs do not by themselves.

    Args:
        program: such as ``flwr-clientapp``.
        ends_with_parent: whether it is of no use without the process that has started it.
    """
    if not is_program(program):
        return
    logger, said = logging.getLogger(FLOWER_LOGGER), os.environ.get(LOG_VARIABLE, "")
    if said == JSON:
        make_json(logger)
    else:
        make_plain(logger, is_terminal=sys.stderr.isatty())
        if said:
            logger.warning("%s=%s is not %s, so the log is text", LOG_VARIABLE, said, JSON)
    if ends_with_parent:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def make_plain(logger: logging.Logger, *, is_terminal: bool) -> None:
    """Make Flower's logger print gdpfed's errors in one line; without a terminal, add times, not colours."""
    for handler in logger.handlers:
        handler.addFilter(_own_error_in_one_line)
        if not is_terminal and hasattr(handler, "colored") and hasattr(handler, "timestamps"):
            handler.colored, handler.timestamps = False, True


def make_json(logger: logging.Logger) -> None:
    """Make Flower's logger print every event as one line of JSON."""
    for handler in logger.handlers:
        handler.addFilter(_own_error_in_one_line)
        # Flower's handler formats by itself, whatever formatter it is given, and what it calls JSON is none.
        vars(handler)["format"] = json_line


def json_line(record: logging.LogRecord) -> str:
    """Return a log event as a JSON object: time (UTC), level, message and an error's traceback."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    event = {"time": when, "level": record.levelname, "message": record.getMessage()}
    if record.exc_info:
        event["error"] = logging.Formatter().formatException(record.exc_info)
    return json.dumps(event)


def _own_error_in_one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, GDPFedError):
        record.msg, record.args, record.exc_info, record.exc_text = f"gdpfed: {error}", (), None, None
    return True


def _end_with(parent: int) -> None:
    """Wait until the parent process has ended, then end this process."""
    never = threading.Event()
    while not never.wait(WATCH_SECONDS):
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    become(*sys.argv[1:])
