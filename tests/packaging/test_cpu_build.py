"""An environment with another build of PyTorch takes nothing of CUDA from the lock."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

INDEX = "https://download.pytorch.org/whl/cpu"
OF_CUDA = re.compile(r"(nvidia|cuda)-.+|triton|torch|torchvision")


@pytest.mark.skipif(
    not (shutil.which("uv") or Path(".uv/bin/uv").exists()), reason="no uv: make venv brings one"
)
def test_pytorch_comes_from_the_index_that_is_named_and_no_package_of_cuda_from_the_lock(tmp_path):
    make = ["make", "--dry-run", "--always-make", ".venv/.installed"]
    said = subprocess.run([*make, f"TORCH_INDEX={INDEX}"], check=True, capture_output=True, text=True).stdout
    (sync,) = [line for line in said.splitlines() if " sync " in line]
    assert f"pip install --quiet --no-deps --index-url {INDEX} " in said
    taken, kept = (installed(line, tmp_path) for line in (sync, sync.split(" --inexact")[0]))
    assert {"torch", "torchvision", "triton", "nvidia-cublas"} <= kept - taken
    assert kept - taken == {name for name in kept if OF_CUDA.fullmatch(name)}


def installed(command, folder):
    """What it would install into an environment that is not there."""
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": str(folder / "none")}
    words = [word for word in shlex.split(command) if word != "--quiet"]
    done = subprocess.run(
        [*words, "--dry-run", "--offline"], check=True, capture_output=True, text=True, env=environment
    )
    return set(re.findall(r"^ \+ ([\w.-]+)", done.stderr, re.MULTILINE))
