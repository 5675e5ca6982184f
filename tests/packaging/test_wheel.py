"""The wheel: what is in it, and that it plans, trains and audits where nothing else of the project is."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = {"client_app", "conf", "fastgrad", "gdpfed", "secagg", "server_app"}
# A small part of the suite, of files that need nothing of the checkout but the packages.
COPIED_TESTS = ("conf/test_per_client.py", "fastgrad/test_im2col.py", "secagg/test_shamir.py")
CONFTEST = """
import sys
import gdpfed.methods

def pytest_sessionfinish():
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in {packages} and getattr(module, "__file__", None):
            print(name, module.__file__, file=sys.stderr)
""".replace("{packages}", repr(PACKAGES))
LEFT_OUT = {"PYTHONPATH", "MPLCONFIGDIR"}
LOADED = re.compile(rf"^((?:{'|'.join(PACKAGES)})[\w.]*) (/.+)$", re.MULTILINE)
# Runs the command line, then says which modules of the project it has loaded, and from where.
COMMAND = """
import os, sys
before = dict(os.environ)
import gdpfed
assert dict(os.environ) == before
from gdpfed.cli import main
status = main(sys.argv[1:])
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] in {packages} and getattr(module, "__file__", None):
        print(name, module.__file__, file=sys.stderr)
print("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR"), file=sys.stderr)
sys.exit(status)
""".replace("{packages}", repr(PACKAGES))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(words, cwd=PROJECT, check=True, capture_output=True)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel in it; of this one it sees the packages that the project depends on.

    A path file names their directory. Path files in there do not count, so the checkout, which one of them
    names, is no part of the environment.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python, site


def call(installed, directory, *arguments, status=0):
    """Run ``gdpfed`` of the wheel; returns what it printed, and its own words among its errors."""
    python, site = installed
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    ended = subprocess.run(
        [str(python), "-c", COMMAND, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stderr
    loaded = dict(LOADED.findall(ended.stderr))
    assert {"gdpfed.cli.app", "gdpfed.errors"} <= loaded.keys()
    assert all(Path(file).is_relative_to(site) for file in loaded.values())
    assert "MPLCONFIGDIR None" in ended.stderr
    return ended.stdout, [line for line in ended.stderr.splitlines() if line.startswith("gdpfed: ")]


def test_every_option_file_and_nothing_but_the_app_is_in_the_wheel(wheel):
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == PACKAGES
    expected = {
        str(path.relative_to(PROJECT))
        for package in PACKAGES
        for path in (PROJECT / package).rglob("*")
        if path.suffix in (".py", ".yaml", ".typed", ".html", ".css", ".txt", ".md")
    }
    assert names == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_version_is_stated_once(installed, tmp_path):
    stated = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    python, _ = installed
    show = "import gdpfed; print(gdpfed.__version__)"
    for words in ([sys.executable, "-c", show], [str(python), "-c", show]):
        shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == stated


def test_the_wheel_plans_trains_and_audits_without_a_checkout(installed, tmp_path):
    small = ["method=gdpfed", "privacy.accountant=rdp", "run.num_rounds=2", "run.directory=trained"]
    small += ["dataset.num_clients=60", "privacy.sampling_rate=0.5"]
    out, _ = call(installed, tmp_path, "plan", *small)
    assert "rdp, poisson sampling" in " ".join(out.split())
    call(installed, tmp_path, "simulate", *small, "simulation.workers=1")
    assert (tmp_path / "trained" / "budget.png").is_file()
    out, _ = call(installed, tmp_path, "audit", "trained")
    assert "Every budget held, and the files agree." in out
    assert {path.name for path in tmp_path.iterdir()} == {"trained", ".charged"}


def test_a_run_over_flower_says_that_it_needs_a_checkout(installed, tmp_path):
    _, errors = call(installed, tmp_path, "run", "method=fedavg", status=1)
    (line,) = errors
    assert "holds no pyproject.toml: training over Flower needs a checkout of the project" in line
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_suite_passes_against_the_wheel_without_the_sources(installed, tmp_path):
    python, site = installed
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in COPIED_TESTS:
        (tmp_path / Path(name).name).write_bytes((PROJECT / "tests" / name).read_bytes())
    ended = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "--confcutdir", "."],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in LEFT_OUT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    loaded = dict(LOADED.findall(ended.stderr))
    assert {"conf.per_client", "fastgrad.im2col", "gdpfed.methods", "secagg.crypto.shamir"} <= loaded.keys()
    assert all(Path(file).is_relative_to(site) for file in loaded.values())
