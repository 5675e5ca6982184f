"""Code of a malicious app: ``python thief.py AIMS`` tries to access each of AIMS and prints what succeeded.

Aims are JSON: by kind, the files, folders, processes, ports, abstract sockets and variables that are none of
its own.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ATTACH, DETACH = 16, 17
ALL = ("read", "write", "list", "environment", "trace", "signal", "connect", "bind", "abstract", "variable")


def stolen(aims: Mapping[str, list[Any]]) -> list[str]:
    """Try every kind of access to the given aims (files, ports and others); return those that succeeded."""
    ways: dict[str, tuple[str, Callable[[Any], object]]] = {
        "read": ("files", lambda path: os.open(path, os.O_RDONLY)),
        "write": ("files", lambda path: os.open(path, os.O_WRONLY)),
        "list": ("folders", os.listdir),
        "environment": ("processes", lambda pid: Path(f"/proc/{pid}/environ").read_bytes()),
        "trace": ("processes", trace),
        "signal": ("processes", lambda pid: os.kill(pid, signal.SIGCONT)),
        "connect": ("ports", lambda port: socket.create_connection(("127.0.0.1", port), 5)),
        "bind": ("ports", lambda port: socket.socket().bind(("127.0.0.2", port))),
        "abstract": ("names", lambda name: socket.socket(socket.AF_UNIX).connect(f"\0{name}")),
        "variable": ("variables", variable),
    }
    got = []
    for way in ALL:
        kind, attempt = ways[way]
        for aim in aims.get(kind, []):
            with suppress(OSError):
                attempt(aim)
                got.append(f"{way} {aim}")
    return got


def variable(name: str) -> None:
    """Raise OSError if the environment has no variable of this name."""
    if name not in os.environ:
        raise OSError(f"no {name}")


def trace(pid: int) -> None:
    """Attach to a process, as a debugger does."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(ATTACH, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "not attached")
    os.waitpid(pid, 0x40000000)
    library.ptrace(DETACH, pid, None, None)


if __name__ == "__main__":
    print(json.dumps(stolen(json.loads(sys.argv[1]))))
