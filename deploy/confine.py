"""``python -m deploy.confine``: run a program that can reach only the files and ports that are named.

python -m deploy.confine --write /srv/own --read /srv/code --connect 9094 -- python work.py

Linux's Landlock does it, for whoever asks, without root. The program and what it starts read what is named,
the system's programs and this Python alone, change what ``--write`` names alone, and use TCP by the named
ports alone. Of processes outside they trace none, read neither memory nor environment, and signal none. Of a
shell's environment, which may hold passwords, they get `VARIABLES` and what ``--variable`` names. It lets
pass: UDP, the mode, size and times of any file, and before version 9 (Linux 7.1) any socket that has a path.

Where the kernel has less, one line says so and the program starts all the same; with ``--require`` it does
not.
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack

from deploy.options import exit_status, port
from gdpfed.errors import InputError

WHOLE_VERSION = 6
SYSTEM = (
    *("/bin", "/etc", "/lib", "/lib64", "/usr", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *("/dev/random", "/dev/urandom", sys.prefix, sys.base_prefix),
)
"""Files that every confined program may read: those of the system and of this Python installation."""
NULL = "/dev/null"
VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "TMPDIR", "TZ")
"""Environment variables that every confined program keeps."""

# Numbers of include/uapi/linux/landlock.h, the same on all machines.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _BELOW_PATH, _AT_PORT, _NO_NEW_PRIVILEGES = 1, 1, 2, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_DEVICES, _REFER, _TRUNCATE = 1 << 6 | 1 << 11, 1 << 13, 1 << 14
_DEVICE_CALLS, _SOCKETS = 1 << 15, 1 << 16
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CALLS | _SOCKETS
_READ = _EXECUTE | _READ_FILE | _READ_DIR | _SOCKETS
_SINCE = {1: _REFER - 1, 2: _REFER, 3: _TRUNCATE, 5: _DEVICE_CALLS, 9: _SOCKETS}
_BIND, _CONNECT = 1 << 0, 1 << 1
_NET_SINCE, _SCOPES_SINCE = 4, 6
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1


def landlock_version() -> int:
    """Return the version of Landlock, Linux's confinement of files and ports; 0 if there is none."""
    if sys.platform != "linux":
        return 0
    version: int = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _ASK_VERSION)
    return max(0, version)


def lacking() -> str:
    """Return a text that says what confinement this machine lacks, or "" if it lacks nothing."""
    version = landlock_version()
    if version == 0:
        return "this kernel has no Landlock, so nothing keeps an app from other files of this user"
    if version < WHOLE_VERSION:
        return f"version {version} of Landlock is below {WHOLE_VERSION}, so an app is less confined"
    return ""


def confine(
    read: Iterable[str] = (), write: Iterable[str] = (), connect: Iterable[int] = (), bind: Iterable[int] = ()
) -> None:
    """Confine this process and everything that it starts, as far as this kernel supports Landlock.

    `read`, `write`: files and folders, beside those of the system. `connect`, `bind`: ports of TCP.

    Raises InputError: a path that cannot be opened, or a kernel that refuses.
    """
    version = landlock_version()
    handled = sum(rights for since, rights in _SINCE.items() if version >= since)
    net = _BIND | _CONNECT if version >= _NET_SINCE else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if version >= _SCOPES_SINCE else 0
    # An older kernel takes the longer structure where it has zeros.
    rules = _call(_CREATE, pack("=QQQ", handled, net, scopes), ctypes.c_size_t(24), 0)
    try:
        system = [path for path in (*SYSTEM, NULL) if Path(path).exists()]
        for paths, rights in (((*system, *read), _READ), ((NULL, *write), handled & ~_MAKE_DEVICES)):
            for path in paths:
                _allow_below(rules, path, rights & handled)
        for ports, rights in ((connect, _CONNECT), (bind, _BIND)):
            for number in ports if net else ():
                _call(_ADD, rules, _AT_PORT, pack("=QQ", rights, number), 0)
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow_below(rules: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"{path} cannot be opened: {error.strerror}; name a file or folder that exists"
        ) from None
    try:
        of_this = rights if Path(path).is_dir() else rights & _OF_FILES
        _call(_ADD, rules, _BELOW_PATH, pack("=Qi", of_this, opened), 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    """Make a Landlock system call; raise InputError if the kernel refuses it."""
    library = ctypes.CDLL(None, use_errno=True)
    result: int = library.syscall(number, *arguments)
    if result < 0:
        raise InputError(f"Landlock refuses call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def confined(command: Sequence[str], **allowed: Iterable[object]) -> tuple[str, ...]:
    """Return a command that runs another command with access only to named files and ports.

    `allowed`: what :func:`confine` takes, and as `variable` the names of further variables.
    """
    words = (
        word for name, values in allowed.items() for value in values for word in (f"--{name}", str(value))
    )
    return ("python", "-m", "deploy.confine", *words, "--", *command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Confine this process and replace it by the given program; return 2 if the program cannot start."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m deploy.confine", description=__doc__, formatter_class=layout, allow_abbrev=False
    )
    for name, kind, what in (
        ("read", Path, "a file or folder that is read"),
        ("write", Path, "one that is read and changed"),
        ("connect", port, "a port of TCP, of any host, to which it connects"),
        ("bind", port, "a port of TCP on which it listens"),
        ("variable", str, "a variable of this environment that it gets"),
    ):
        parser.add_argument(
            f"--{name}", type=kind, action="append", default=[], help=f"{what}; may be repeated"
        )
    parser.add_argument("--require", action="store_true", help="refuse where this kernel has no such wall")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what is confined, after --")
    return exit_status(lambda: _start_confined(parser.parse_args(arguments)))


def _start_confined(options: argparse.Namespace) -> None:
    if reason := lacking():
        if options.require:
            raise InputError(f"--require: {reason}: use another kernel, or leave --require out")
        print(f"deploy: {reason}", file=sys.stderr)
    if landlock_version():
        confine(options.read, options.write, options.connect, options.bind)
    program, *others = options.command
    named = {*VARIABLES, *options.variable}
    environment = {name: value for name, value in os.environ.items() if name in named}
    try:
        os.execvpe(program, [program, *others], environment)  # noqa: S606 - what it is asked for
    except OSError as error:
        raise InputError(
            f"{program} cannot be started: {error.strerror}; name a program, and --read its folder"
        ) from None


if __name__ == "__main__":
    raise SystemExit(main())
