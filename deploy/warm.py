"""``python -m deploy.warm``: run Flower's SuperExec, so that a preloaded process answers messages.

Flower starts ``flwr-clientapp`` anew for every message, and nearly all of its processor time goes to imports.
Here a server has them done, and each message is a fork of it. The server handles no message and runs no code
of an app: what one message leaves in memory, no other sees, as with a process of its own. Arguments are those
of ``flower-superexec``, after ``--trains`` where the app trains; environment, folder, limits and output of a
message are the SuperExec's, as before.

``GDPFED_WARM=off``, a Flower that is not known here, or a server that has ended leave the ordinary command,
which the log says in one line.
"""

import atexit
import ctypes
import gc
import hashlib
import importlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points, version
from logging import WARNING
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

WARM_VARIABLE, OFF = "GDPFED_WARM", "off"
KNOWN_FLOWER = ("1.41.0", "1.42.0")
PROGRAM, KNOWN_ENTRY = "flwr-clientapp", "flwr.supernode.cli:flwr_clientapp"
TRAINS = "--trains"
# Packages of others, where they are installed; the app's own code comes with each run. First what Flower
# loads late, then what an app needs that answers for the node itself, which ``--trains`` says.
IMPORTED_AHEAD = ("httpcore",)
IMPORTED_TO_TRAIN = (
    "PIL.Image",
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.hazmat.primitives.ciphers.aead",
    "filelock",
    "numpy.random",
    "psutil",
    "scipy.optimize",
    "scipy.special",
    "torch.func",
)
_MOST_BYTES = 1 << 16
_DUMPABLE = 4


def main() -> None:
    """Run Flower's SuperExec; if possible, forks of a preloaded process handle its messages."""
    # As Flower's commands have it. The folder of the project holds modules that an app brings, too.
    sys.path[0] = str(Path(sys.executable).parent)
    imported: tuple[str, ...] = IMPORTED_AHEAD
    if TRAINS in sys.argv:
        sys.argv.remove(TRAINS)
        imported += IMPORTED_TO_TRAIN
    reason, server = why_off(), None
    if not reason:
        server, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            server.close()
            serve(requests, lambda: flower_program(imported))
            return
        requests.close()
    from flwr.supercore import log
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    if server is None:
        log(WARNING, "no warm process, so every message starts %s: %s", PROGRAM, reason)
    else:
        launcher = SimpleNamespace(Popen=Launcher(server).start, DEVNULL=subprocess.DEVNULL)
        vars(subprocess_executor)["subprocess"] = launcher
    flower_superexec()


def why_off() -> str:
    """Return why no preloaded process can answer messages; return "" if one can."""
    if os.environ.get(WARM_VARIABLE) == OFF:
        return f"{WARM_VARIABLE}={OFF}"
    if sys.platform != "linux":
        return f"{sys.platform} is not linux"
    if version("flwr") not in KNOWN_FLOWER:
        return f"flwr {version('flwr')} is not known: use {' or '.join(KNOWN_FLOWER)}"
    entries = [entry.value for entry in entry_points(group="console_scripts", name=PROGRAM)]
    if entries != [KNOWN_ENTRY]:
        return f"{PROGRAM} is {', '.join(entries) or 'not installed'}, not {KNOWN_ENTRY}"
    return ""


class Launcher:
    """Starts programs for Flower's SuperExec: message handlers as forks of a preloaded process.

    Args:
        server: the socket to the warm process.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server: socket.socket | None = server

    def start(self, arguments: Sequence[str], **options: Any) -> "subprocess.Popen[Any] | None":
        """Fork the preloaded process to run a program, and return None; if impossible, return a new Popen."""
        if arguments[0] == PROGRAM and not options and self._server is not None:
            with suppress(OSError):
                self._server.send("\0".join(arguments[1:]).encode())
                if self._server.recv(1):
                    return None
            self._server.close()
            self._server = None
            print(f"the warm process has ended, so every message starts {PROGRAM}", file=sys.stderr)
        return subprocess.Popen(arguments, **options)  # noqa: S603 - Flower's programs


def serve(requests: socket.socket, prepare: Callable[[], Callable[[], object]]) -> None:
    """Fork for every request until the requests' socket is closed; each fork handles one message and exits.

    Args:
        requests: each is the arguments of a program; it is answered once its process is there.
        prepare: imports what messages need, and returns the program.

    Raises RuntimeError: an import has started a thread, which a fork would not have.
    """
    # Whoever ends the SuperExec ends this process by its socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    # An app runs as the same user: it must not change the memory of which later messages are copies.
    ctypes.CDLL(None).prctl(_DUMPABLE, 0)
    gc.disable()
    program = prepare()
    if threading.active_count() != 1:
        raise RuntimeError(f"an import has started {threading.enumerate()[1:]}, so no message can be forked")
    # A collection would write to every object, and so copy the memory that forks share.
    gc.freeze()
    gc.enable()
    while request := requests.recv(_MOST_BYTES):
        if os.fork() == 0:
            requests.close()
            begin_message(request.decode().split("\0"))
            run_to_end(program)
        requests.send(b"1")


def flower_program(imported: Sequence[str]) -> Callable[[], object]:
    """Import the modules that handle messages; return Flower's program, which unpacks an app only once."""
    (entry,) = entry_points(group="console_scripts", name=PROGRAM)
    program: Callable[[], object] = entry.load()
    handling = vars(importlib.import_module("flwr.supernode.runtime.run_clientapp"))
    handling["install_from_fab"] = install_once(handling["install_from_fab"])
    for name in imported:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    return program


def install_once(install: Callable[..., Path]) -> Callable[..., Path]:
    """Make Flower reuse the folder of an installed bundle, rather than unpack the bundle for each message.

    It unpacks the bundle, checks it, and then takes the folder of its hash as it is, if there is one.
    """
    from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
    from flwr.supercore.utils import get_flwr_home

    def installed(bundle: bytes, **options: Any) -> Path:
        short_hash = hashlib.sha256(bundle).hexdigest()[:FAB_HASH_TRUNCATION]
        folders = list((get_flwr_home() / APP_DIR).glob(f"*.{short_hash}"))
        return folders[0] if len(folders) == 1 else install(bundle, **options)

    return installed


def begin_message(arguments: Sequence[str]) -> None:
    """Set the name, arguments, signal handlers and random seeds of a forked process that handles a message.

    Those of the operating system and of OpenSSL differ in every process without this.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DUMPABLE, 1)
    sys.argv = [shutil.which(PROGRAM) or PROGRAM, *arguments]
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()


def run_to_end(program: Callable[[], object]) -> NoReturn:
    """Run a program in a forked process, then exit with its status at once, without freeing objects.

    Taking every object apart would write to, and so copy, all memory that the fork shares.
    """
    code: object = 1
    try:
        code = program()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else code is not None)


def _reap(*_: object) -> None:
    """Collect forks that have ended, and report those that a signal killed."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if os.WIFSIGNALED(ended[1]):
                name = signal.Signals(os.WTERMSIG(ended[1])).name
                print(f"the process of a message was ended by {name} (SIGKILL: no memory?)", file=sys.stderr)


if __name__ == "__main__":
    main()
