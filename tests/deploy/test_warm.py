"""Tests of the warm process, which is preloaded and forks for each message, and of nodes without one."""

import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tomllib

import flwr.supercore.cli
import psutil
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy import warm
from deploy.warm import KNOWN_FLOWER, PROGRAM, WARM_VARIABLE, Launcher, install_once, main
from testing.project import PROJECT
from testing.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warm process is for Linux")

# It imports all that a node's has imported; the argument of a message is what it does.
SERVER = """
import ctypes, socket, sys
from deploy.warm import IMPORTED_TO_TRAIN, flower_program, serve

handled, can_be_traced = [], []

def prepare():
    flower_program(IMPORTED_TO_TRAIN)
    can_be_traced.append(ctypes.CDLL(None).prctl(3))
    return lambda: exec(sys.argv[1], {"handled": handled, "can_be_traced": can_be_traced})

serve(socket.socket(fileno=int(sys.argv[1])), prepare)
"""
TELL = """
import ctypes, json, os, random, signal, ssl, sys, threading
import numpy, torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

handled.append(0)
draws = [random.random(), numpy.random.random(), numpy.random.default_rng().random(), torch.rand(1).item()]
draws += [os.urandom(8).hex(), ssl.RAND_bytes(8).hex(), X25519PrivateKey.generate().private_bytes_raw().hex()]
open_files = [each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
usual = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD)]
state = [
    len(handled), threading.active_count(), os.path.basename(sys.argv[0]), sys.argv[2:],
    usual == [signal.default_int_handler, signal.SIG_DFL],
    [*can_be_traced, ctypes.CDLL(None).prctl(3)],
    sum(os.readlink(f"/proc/self/fd/{each}").startswith("socket") for each in open_files),
]
with open(sys.argv[2], "w") as file:
    json.dump([draws, state], file)
"""


@pytest.fixture(scope="module")
def server():
    """Start a warm (preloaded) process; yield its socket, its psutil process and its Popen object."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-c", SERVER, str(theirs.fileno())]
    with subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, cwd=PROJECT) as process:
        theirs.close()
        yield ours, psutil.Process(process.pid), process
        ours.close()
        # It ends where the SuperExec does.
        assert process.wait(timeout=60) == 0


def test_messages_find_a_new_process_and_draw_apart(server, tmp_path):
    launcher, (_, process, _) = Launcher(server[0]), server
    told, files = [], []
    for name in ("first", "second"):
        path = tmp_path / name
        launcher.start([PROGRAM, TELL, str(path)])
        until(lambda: not process.children())
        told.append(json.loads(path.read_text()))
        files.append(process.num_fds())
        assert told[-1][1] == [1, 1, PROGRAM, [str(path)], True, [0, 1], 0]
    (first, _), (second, _) = told
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert files[0] == files[1]


def test_a_killed_message_is_reported_and_the_next_is_handled(server, tmp_path):
    launcher, (_, process, opened) = Launcher(server[0]), server
    launcher.start([PROGRAM, "import time; time.sleep(60)", ""])
    (message,) = process.children()
    message.send_signal(signal.SIGKILL)
    assert b"the process of a message was ended by SIGKILL" in opened.stderr.readline()
    until(lambda: not process.children())
    launcher.start([PROGRAM, TELL, str(tmp_path / "next")])
    until((tmp_path / "next").exists)


def test_a_fork_exits_as_a_program_does():
    code = "import atexit, sys; from deploy.warm import run_to_end; atexit.register(print, 'left'); "
    for ends, status in (("lambda: sys.exit(3)", 3), ("lambda: None", 0), ("lambda: 1 / 0", 1)):
        words = [sys.executable, "-c", f"{code}run_to_end({ends})"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=PROJECT, check=False)
        assert (done.returncode, done.stdout) == (status, "left\n")
        assert ("ZeroDivisionError" in done.stderr) == (status == 1)


def test_without_the_warm_process_a_message_starts_the_command(monkeypatch, tmp_path, capsys):
    command = tmp_path / PROGRAM
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    launcher = Launcher(ours)
    for token in ("one", "two"):
        started = launcher.start([PROGRAM, "--token", token])
        assert started is not None
        started.wait()
    assert (tmp_path / "told").read_text() == "--token one\n--token two\n"
    assert capsys.readouterr().err == f"the warm process has ended, so every message starts {PROGRAM}\n"


def test_every_flower_that_the_project_takes_is_known():
    """The project accepts the flwr versions in KNOWN_FLOWER, but not the minor version below or above."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (taken,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "flwr")
    assert all(known in taken.specifier for known in KNOWN_FLOWER)
    first, newest = Version(KNOWN_FLOWER[0]), Version(KNOWN_FLOWER[-1])
    assert f"{first.major}.{first.minor - 1}" not in taken.specifier
    assert f"{newest.major}.{newest.minor + 1}" not in taken.specifier


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("setting", "off", f"{WARM_VARIABLE}=off"),
        ("version", "1.43.0", "flwr 1.43.0 is not known: use 1.41.0 or 1.42.0"),
        ("entry", "flwr.new:run", f"{PROGRAM} is flwr.new:run, not flwr.supernode.cli:flwr_clientapp"),
    ],
)
def test_what_is_off_or_not_known_leaves_flowers_command(monkeypatch, caplog, name, value, reason):
    ran = []
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(flwr.supercore.cli, "flower_superexec", lambda: ran.append(0))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("there is nothing to fork"))
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    if name == "setting":
        monkeypatch.setenv(WARM_VARIABLE, value)
    elif name == "version":
        monkeypatch.setattr(warm, "version", lambda package: value)
    else:
        entry = type("Entry", (), {"value": value})
        monkeypatch.setattr(warm, "entry_points", lambda **selected: [entry])
    main()
    assert ran == [0]
    assert [each.getMessage() for each in caplog.records] == [
        f"no warm process, so every message starts {PROGRAM}: {reason}"
    ]


def test_a_bundle_is_unpacked_once(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    unpacked = []

    def install(bundle, *, skip_prompt):
        unpacked.append(bundle)
        folder = tmp_path / "apps" / f"a.b.1.{hashlib.sha256(bundle).hexdigest()[:8]}"
        folder.mkdir(parents=True)
        return folder

    installed = install_once(install)
    first = installed(b"one", skip_prompt=True)
    assert installed(b"one", skip_prompt=True) == first != installed(b"two", skip_prompt=True)
    assert unpacked == [b"one", b"two"]
