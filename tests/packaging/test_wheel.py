"""Tests of the published wheel and sdist: their files, and what works without optional packages."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from gdpfed.errors import ConfigError
from release.__main__ import main as write_sources
from release.published import FILES, published_project, write_published
from testing.linked_environment import linked_environment
from testing.page_examples import examples_of
from testing.project import PROJECT

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
# Every name of the library but those that train, and two examples of docs/library.md.
PARTS = "\n".join(
    [
        "import gdpfed",
        "for name in set(dir(gdpfed)) - {'load_model'}:",
        "    getattr(gdpfed, name)",
        *(
            examples_of("library.md")[title]
            for title in ("What a party has spent", "A sum that nobody sees the summands of")
        ),
        "print(result.survivors)",
    ]
)
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
def sources(tmp_path_factory):
    """Build the sdist of the published project, unpack it, and return the folder."""
    folder, dist = tmp_path_factory.mktemp("published") / "wheel", tmp_path_factory.mktemp("sdist")
    write_published(PROJECT, folder)
    (archive,) = built("sdist", folder, dist)
    shutil.unpack_archive(archive, dist)
    (unpacked,) = (each for each in dist.iterdir() if each.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    """Build the wheel from the sdist, as users of a package index do, and return the wheel."""
    (made,) = built("wheel", sources, tmp_path_factory.mktemp("dist"))
    return made


def built(target, folder, directory):
    words = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return list(directory.iterdir())


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """Make an environment with the wheel and its required packages; return the environment's Python."""
    return linked_environment(tmp_path_factory.mktemp("core"), wheel)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Make an environment with the wheel, its extra `train`, and packages for tests; return its Python."""
    return linked_environment(tmp_path_factory.mktemp("training"), wheel, ["train"], ["hypothesis", "pytest"])


def call(installed, directory, *arguments, status=0):
    """Run the wheel's `gdpfed`; return its output, and its lines of error that begin with `gdpfed: `."""
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    ended = subprocess.run(
        [str(installed), "-c", COMMAND, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stderr
    loaded = dict(LOADED.findall(ended.stderr))
    assert {"gdpfed.cli.app", "gdpfed.errors"} <= loaded.keys()
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in loaded.values())
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
    show = "import gdpfed; print(gdpfed.__version__)"
    for words in ([sys.executable, "-c", show], [str(installed), "-c", show]):
        shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == stated


def test_the_demo_is_trained_by_the_wheel_and_planned_and_audited_by_its_core(installed, core, tmp_path):
    demo = ["dataset=digits", "method=gdpfed_star", "run.num_rounds=1", "run.directory=trained"]
    planned, _ = call(core, tmp_path, "plan", *demo)
    assert "360 clients" in " ".join(planned.split()) or "120" in planned
    call(installed, tmp_path, "simulate", *demo, "simulation.workers=1")
    assert (tmp_path / "trained" / "budget.png").is_file()
    out, _ = call(core, tmp_path, "audit", "trained")
    assert "Every budget held, and the files agree." in out
    assert {path.name for path in tmp_path.iterdir()} == {"trained", ".charged"}


def test_the_core_sums_and_names_the_extra_of_what_it_has_not(core, wheel, tmp_path):
    """Without the extra `train` the wheel can run a secure sum, and an error names the missing packages."""
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        lines = archive.read(name).decode("utf-8").splitlines()
    train = [line for line in lines if line.endswith("; extra == 'train'")]
    packages = [line.removeprefix("Requires-Dist: ").partition(";")[0] for line in train]
    assert {"torch>=2.14", "torchvision"} <= set(packages)
    (said,) = call(core, tmp_path, "simulate", "dataset=digits", status=2)[1]
    assert said.startswith("gdpfed: this needs the package torch, which is not installed: uv pip install ")
    assert set(shlex.split(said.partition(" pip install ")[2].removesuffix(" [input]"))) == set(packages)
    shown = subprocess.run(
        [str(core), "-c", PARTS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "(0, 1, 2, 4, 5)"


def test_the_app_and_what_is_published_need_the_same_packages():
    """The packages that the wheel requires, extras included, are those that pyproject.toml lists."""
    app = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    made = published_project(app)["project"]
    extras = made["optional-dependencies"]
    assert extras.keys() == {"train", "flower", "all", *app["project"]["optional-dependencies"]}
    parted = [*made["dependencies"], *extras["train"], *extras["flower"]]
    assert sorted(parted) == sorted(app["project"]["dependencies"])
    assert (made["version"], made["license"]) == (app["project"]["version"], "Apache-2.0")
    for wrong, words in (("numpyy", "names numpyy"), ("torch", "names torch")):
        app["tool"]["gdpfed"]["wheel-extras"]["another"] = [wrong]
        with pytest.raises(ConfigError, match=f"extra another of the wheel {words}: list it under dep"):
            published_project(app)


def test_the_core_is_below_250_megabytes(core):
    """An environment with the required packages alone has less than 250 MB, .pyc files not counted."""
    (site,) = core.parents[1].glob("lib/python*/site-packages")
    files = [file for top in site.iterdir() for file in top.resolve().rglob("*") if file.suffix != ".pyc"]
    assert len(files) > 2000
    assert sum(file.stat().st_size for file in files) < 250e6


def test_what_is_published_is_written_into_no_folder_with_other_files(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        write_published(PROJECT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("words", [[], ["--help"], ["a", "b"]])
def test_sources_are_written_into_one_named_folder_alone(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert write_sources(words) == 2
    assert capsys.readouterr().err == "usage: python -m release FOLDER\n"
    assert list(tmp_path.iterdir()) == []


def test_an_sdist_has_the_packages_and_what_a_reader_needs(sources):
    assert {path.name for path in sources.iterdir()} == {*PACKAGES, *FILES, "pyproject.toml", "PKG-INFO"}


def test_a_run_over_flower_says_that_it_needs_a_checkout(installed, tmp_path):
    _, errors = call(installed, tmp_path, "run", "method=fedavg", status=1)
    (line,) = errors
    assert "holds no pyproject.toml: training over Flower needs a checkout of the project" in line
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_suite_passes_against_the_wheel_without_the_sources(installed, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in COPIED_TESTS:
        (tmp_path / Path(name).name).write_bytes((PROJECT / "tests" / name).read_bytes())
    ended = subprocess.run(
        [str(installed), "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "--confcutdir", "."],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in LEFT_OUT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    loaded = dict(LOADED.findall(ended.stderr))
    assert {"conf.per_client", "fastgrad.im2col", "gdpfed.methods", "secagg.crypto.shamir"} <= loaded.keys()
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in loaded.values())
