"""Tests of Flower's processes for the app: what they print, when they end, and how workers start."""

import json
import logging
import os
import pkgutil
import subprocess
import sys
import time
from datetime import datetime, timedelta
from io import StringIO

import psutil
import pytest
from flwr.supercore.logger import ConsoleHandler
from ray._private.runtime_env.context import RuntimeEnvContext

from gdpfed.child_process import LOG_VARIABLE, RAY_HOOK, begin_process, make_json, make_plain
from gdpfed.errors import ConfigError
from testing.project import PROJECT

STARTS_AN_APP = """
import subprocess, sys
app = "import sys, time; sys.argv = ['/bin/flwr-clientapp']; import client_app.app; print('up'); "
child = subprocess.Popen([sys.executable, "-u", "-c", app + "time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""


def logged(act, *, is_terminal=False, as_json=False):
    out = StringIO()
    logger = logging.Logger("of-a-test")
    logger.addHandler(ConsoleHandler(stream=out))
    if as_json:
        make_json(logger)
    else:
        make_plain(logger, is_terminal=is_terminal)
    try:
        act()
    except Exception as error:
        logger.error("ServerApp raised an exception", exc_info=error)
    logger.info("round 1")
    return out.getvalue()


def refuse():
    raise ConfigError("privacy.budgets=[1] has 1 budget: give 3")


def fail():
    raise ZeroDivisionError


def test_a_log_for_a_file_has_times_and_no_colours():
    first, second, end = logged(refuse, is_terminal=False).split("\n")
    assert not end
    assert first.startswith("ERROR 20")
    assert first.endswith("gdpfed: privacy.budgets=[1] has 1 budget: give 3")
    assert second.startswith("INFO 20")
    assert second.endswith("round 1")
    assert "\x1b" not in first + second
    assert "\x1b" in logged(refuse, is_terminal=True)


def test_errors_of_others_keep_their_traceback():
    assert "Traceback" in logged(fail, is_terminal=False)


def test_a_log_of_json_has_an_event_a_line():
    first, second = map(json.loads, logged(refuse, as_json=True).splitlines())
    assert (first["level"], first["message"]) == (
        "ERROR",
        "gdpfed: privacy.budgets=[1] has 1 budget: give 3",
    )
    assert "error" not in first
    assert (second["level"], second["message"]) == ("INFO", "round 1")
    assert datetime.fromisoformat(second["time"]).utcoffset() == timedelta(0)
    (foreign, _) = map(json.loads, logged(fail, as_json=True).splitlines())
    assert "ZeroDivisionError" in foreign["error"]


@pytest.mark.parametrize("said", ["json", "jsn", ""])
def test_the_environment_says_how_an_app_logs(monkeypatch, said):
    out, logger = StringIO(), logging.getLogger(f"of-a-test-{said}")
    logger.addHandler(ConsoleHandler(stream=out))
    logger.setLevel(logging.INFO)
    monkeypatch.setattr("gdpfed.child_process.FLOWER_LOGGER", logger.name)
    monkeypatch.setattr(sys, "argv", ["/bin/flwr-serverapp"])
    monkeypatch.setenv(LOG_VARIABLE, said)
    begin_process("flwr-serverapp")
    logger.info("round 1")
    *warnings, line = out.getvalue().splitlines()
    assert line.startswith("{") == (said == "json")
    assert ["GDPFED_LOG=jsn is not json" in each for each in warnings] == [True] * (said == "jsn")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_clientapp_ends_with_the_superexec_that_started_it():
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_AN_APP], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert starter.stdout is not None
    app = psutil.Process(int(starter.stdout.readline()))
    assert starter.stdout.readline() == "up\n"
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 30
    while app.is_running() and app.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not app.is_running() or app.status() == psutil.STATUS_ZOMBIE
    starter.stdout.close()


def test_workers_of_a_simulation_start_below_a_folder_with_a_space(tmp_path, monkeypatch):
    """Ray's workers start even if the path of the Python interpreter contains spaces."""
    python = tmp_path / "a study, für alle" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "started $1"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    (hook,) = map(pkgutil.resolve_name, RAY_HOOK.values())
    described = hook({"env_vars": {"A": "b"}})
    assert described["env_vars"] == {"A": "b"}
    said = []
    monkeypatch.setattr(
        os, "execvp", lambda file, args: said.append(subprocess.run(args, capture_output=True, check=False))
    )
    python_worker = pkgutil.resolve_name("ray.core.generated.common_pb2:Language").PYTHON
    RuntimeEnvContext(py_executable=described["py_executable"]).exec_worker(["a worker.py"], python_worker)
    assert [each.stdout for each in said] == [b"started a worker.py\n"]
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    assert hook(None) == {}
