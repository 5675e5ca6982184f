"""Test of `make bench-all`: which commands it runs, and what it reports of each command."""

import sys

import pytest

from benchmarks import all as everything
from benchmarks.all import Measurement, main, measurements_of
from benchmarks.harness import check_idle

PAGE = """# Speed

<!-- measured by: python -m benchmarks.overhead
--rounds 2 -->
<!-- end -->
<!-- measured by: python -m benchmarks.overhead --rounds 2 -->
<!-- end -->
<!-- measured by: python -m benchmarks.simulation --device cuda -->
<!-- end -->
<!-- measured by: gdpfed compare runs -->
<!-- end -->
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "PROJECT", tmp_path)
    monkeypatch.setattr(everything, "PAGES", ("speed.md",))
    (tmp_path / "speed.md").write_text(PAGE)


@pytest.mark.usefixtures("page")
def test_a_command_is_found_once_though_it_has_two_tables_or_is_wrapped():
    words = [each.words for each in measurements_of(["speed.md"])]
    assert words == [
        ("python", "-m", "benchmarks.overhead", "--rounds", "2"),
        ("python", "-m", "benchmarks.simulation", "--device", "cuda"),
        ("gdpfed", "compare", "runs"),
    ]
    assert [each.words[-1] for each in measurements_of(["speed.md"], ["cuda"])] == ["cuda"]


@pytest.mark.usefixtures("page")
def test_what_failed_or_was_left_out_is_said_and_a_failure_is_the_exit_status(monkeypatch, capsys):
    ran = []

    def run(self, commit):
        ran.append((self.command, commit))
        return "no such file"

    monkeypatch.setattr(Measurement, "run", run)
    monkeypatch.setattr(everything, "check_idle", lambda busy_is_fine: "")
    monkeypatch.setenv("GDPFED_COMMIT", "a1b2c3")
    monkeypatch.setattr(sys, "argv", ["all"])
    with pytest.raises(SystemExit) as ended:
        main(has_gpu=lambda: False)
    assert ended.value.code == 1
    assert ran == [("python -m benchmarks.overhead --rounds 2", "a1b2c3")]
    shown = " ".join(capsys.readouterr().out.split())
    for outcome in ("FAILED: no such file", "out: needs a GPU", "out: not a benchmark", "at commit a1b2c3"):
        assert outcome in shown


def test_it_waits_until_the_machine_is_idle_and_says_why_it_measured_nothing(monkeypatch):
    loads, pauses = [50.0, 13.0, 12.5], list[float]()
    monkeypatch.setattr(
        everything, "check_idle", lambda busy_is_fine: check_idle(False, lambda _: loads.pop(0))
    )
    assert everything.busy_for_long(pauses.append) == ""
    assert pauses == [everything.WAIT_SECONDS] * 2
    loads += [50.0] * everything.WAITS
    assert everything.busy_for_long(pauses.append).startswith("the CPUs are 50 % busy")
    assert sum(pauses[2:]) == 600


@pytest.mark.usefixtures("page")
def test_a_command_writes_into_its_page_and_its_last_line_is_its_error(tmp_path):
    assert Measurement("speed.md", ("python", "-c", "import sys; sys.exit('busy')")).run("a") == "busy"
    seen = "import os, sys; sys.exit(os.environ['GDPFED_COMMIT'] != 'b' or sys.argv[1] != '--write')"
    assert Measurement("speed.md", ("python", "-c", seen)).run("b") == ""
