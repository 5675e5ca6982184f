"""Tests of a confined program: which files, processes, ports and sockets it can reach."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy import confine
from tests.deploy import thief

needs_landlock = pytest.mark.skipif(bool(confine.lacking()), reason=confine.lacking())
THIEF = [sys.executable, "-c", Path(thief.__file__).read_text(encoding="utf-8")]


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Yield what a program may try to reach: folders, files, a process, ports, a socket and a variable."""
    monkeypatch.setenv("OPERATORS_TOKEN", "secret")
    for name in ("own", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    with ExitStack() as open_ones:
        victim = open_ones.enter_context(subprocess.Popen(["/bin/sleep", "60"]))
        open_ones.callback(victim.kill)
        ports = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        name = f"gdpfed-test-{victim.pid}"
        abstract = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield {
            "folders": [str(tmp_path / each) for each in ("own", "others")],
            "files": [str(tmp_path / each / "file") for each in ("own", "others")],
            "processes": [victim.pid],
            "ports": [each.getsockname()[1] for each in ports],
            "names": [name],
            "variables": ["OPERATORS_TOKEN"],
        }


def got(command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@needs_landlock
def test_a_confined_program_and_its_children_get_what_is_named_alone(there):
    own, port = there["folders"][0], there["ports"][0]
    child = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
    steal = [*child, *THIEF, json.dumps(there)]
    wall = confine.confined(steal, write=[own], connect=[port], bind=[])
    expected = [f"read {own}/file", f"write {own}/file", f"list {own}", f"connect {port}"]
    assert got([sys.executable, *wall[1:]]) == expected
    reads = confine.confined(steal, read=[own], bind=[port], variable=["OPERATORS_TOKEN"])
    told = [f"read {own}/file", f"list {own}", f"bind {port}", "variable OPERATORS_TOKEN"]
    assert got([sys.executable, *reads[1:]]) == told


@needs_landlock
def test_the_same_program_outside_gets_all_of_it(there):
    ways = {
        "files": ("read", "write"),
        "folders": ("list",),
        "processes": ("environment", "trace", "signal"),
        "ports": ("connect", "bind"),
        "names": ("abstract",),
        "variables": ("variable",),
    }
    everything = {f"{way} {aim}" for kind, aims in there.items() for way in ways[kind] for aim in aims}
    # Tracing a process that is no child of one's own is for root alone on many machines.
    assert everything - set(got([*THIEF, json.dumps(there)])) <= {f"trace {there['processes'][0]}"}


@needs_landlock
def test_a_file_is_not_emptied_moved_or_made(there, tmp_path):
    inside, outside = there["folders"]
    attempts = (
        "os.truncate(b, 0)",
        "os.rename(b, a)",
        "os.link(b, a + '2')",
        "os.unlink(b)",
        "os.mkdir(b + '2')",
    )
    tries = "".join(f"\ntry:\n    {each}\nexcept OSError: pass\nelse: print({each!r})" for each in attempts)
    code = f"import os\na, b = {inside + '/new'!r}, {outside + '/file'!r}{tries}\nos.mkdir(a)"
    wall = confine.confined((sys.executable, "-c", code), write=[inside])
    done = subprocess.run([sys.executable, *wall[1:]], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (Path(outside) / "file").read_text() == "x"
    assert (Path(inside) / "new").is_dir()


def test_a_kernel_without_a_wall_is_said_or_refused(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda program, words, environment: started.append(words))
    for version, said in ((0, "has no Landlock"), (3, "version 3 of Landlock is below 6")):
        monkeypatch.setattr(confine, "landlock_version", lambda version=version: version)
        monkeypatch.setattr(confine, "confine", lambda *allowed: started.append("confined"))
        assert confine.main(["--", "true"]) == 0
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert confine.main(["--require", "--", "true"]) == 2
        assert "use another kernel, or leave --require out" in capsys.readouterr().err
    assert started == [["true"], "confined", ["true"]]


@needs_landlock
def test_a_path_or_a_program_that_is_not_there_is_one_line(tmp_path):
    for words, said in (
        (("--read", str(tmp_path / "none"), "--", "true"), "none cannot be opened: No such file"),
        (("--", str(tmp_path / "none")), "cannot be started: No such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "deploy.confine", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
