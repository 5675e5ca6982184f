"""Tests of environments whose PyTorch is a CPU build: no CUDA package of the lock file is installed."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

INDEX = "https://download.pytorch.org/whl/cpu"
OF_CUDA = re.compile(r"(nvidia|cuda)-.+|triton|torch|torchvision")
UV = shutil.which("uv") or str(Path(".uv/bin/uv").resolve())

pytestmark = pytest.mark.skipif(not Path(UV).exists(), reason="no uv: make venv brings one")


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with the files of a checkout, in which no environment was made yet."""
    for name in ("Makefile", "README.md", "pyproject.toml", "uv.lock"):
        shutil.copy(name, tmp_path)
    return tmp_path


def test_pytorch_comes_from_the_index_that_is_named_and_no_package_of_cuda_from_the_lock(checkout):
    said = make(checkout).stdout
    (sync,) = [line for line in said.splitlines() if " sync " in line]
    assert re.search(rf"pip install .*--index-url {INDEX} torch==\S+ torchvision==\S+$", said, re.MULTILINE)
    taken, kept = (installed(line, checkout) for line in (sync, sync.split(" --inexact")[0]))
    assert {"torch", "torchvision", "triton", "nvidia-cublas"} <= kept - taken
    assert kept - taken == {name for name in kept if OF_CUDA.fullmatch(name)}


def test_an_environment_that_was_made_from_another_index_is_not_taken_for_this_ones(checkout):
    made = checkout / ".venv"
    made.mkdir()
    (made / ".installed").touch()
    assert f"TORCH_INDEX={INDEX}: .venv was made without it; rm -r .venv first" in make(checkout).stderr
    (made / ".torch-index").write_text("https://mirror\n")
    assert ".venv was made from https://mirror; rm -r .venv first" in make(checkout).stderr
    (made / ".torch-index").write_text(f"{INDEX}\n")
    assert make(checkout).returncode == 0


def make(folder):
    command = ["make", "--dry-run", f"UV={UV}", f"TORCH_INDEX={INDEX}", ".venv/.installed"]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)


def installed(command, folder):
    """Return the packages that a command would install into a new environment."""
    words = [word for word in shlex.split(command) if word != "--quiet"]
    offline = [*words, "--dry-run", "--offline"]
    done = subprocess.run(offline, check=True, capture_output=True, text=True, cwd=folder)
    return set(re.findall(r"^ \+ ([\w.-]+)", done.stderr, re.MULTILINE))
