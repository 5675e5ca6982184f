"""Tests that secagg, fastgrad and gdpfed.audit work alone: each runs the example of its README."""

import re
import shutil
import subprocess
import sys

import pytest

from gdpfed.simulation import simulate
from testing.project import PROJECT
from testing.small_runs import small_config

EXAMPLE = re.compile(r"```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_AUDIT = (
    *("gdpfed/audit", "gdpfed/__init__.py", "gdpfed/errors.py", "gdpfed/registry.py", "gdpfed/files.py"),
    *("gdpfed/yaml_files.py", "gdpfed/json_files.py", "gdpfed/extras_table.py", "gdpfed/decimal_numbers.py"),
    "gdpfed/mechanism_table.py",
    *("gdpfed/runs/__init__.py", "gdpfed/runs/file_formats.py", "conf/__init__.py", "conf/errors.py"),
)
# Says that these packages are not installed, and that the project is where it was copied to.
ALONE = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv.pop(1))
exec(compile(open(sys.argv.pop(1)).read(), "example", "exec"))
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("gdpfed", "conf", "secagg", "fastgrad", "server_app", "client_app"):
        assert module.__file__.startswith(sys.path[0]), module.__file__
"""
REST = {"flwr", "hydra", "omegaconf", "ray", "pandas", "pyarrow", "sklearn", "matplotlib", "rich", "PIL"}


def copied_folder(source, target):
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def printed_alone(folder, copied, absent, *arguments):
    """Return what the first example of a part's README prints where only that part is installed."""
    for name in copied:
        copy = copied_folder if (PROJECT / name).is_dir() else shutil.copy
        (folder / "alone" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(PROJECT / name, folder / "alone" / name)
    (example,) = EXAMPLE.findall((folder / "alone" / copied[0] / "README.md").read_text(encoding="utf-8"))[:1]
    (folder / "example.py").write_text(example, encoding="utf-8")
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    program = ALONE.replace("{absent}", repr(absent))
    words = [str(folder / "alone"), str(folder / "example.py"), *arguments]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_secagg_alone(tmp_path):
    absent = REST | {"torch", "scipy", "safetensors", "yaml", "dp_accounting"}
    assert printed_alone(tmp_path, ["secagg"], absent) == "[3. 3. 3. 3. 3.] (0, 1, 2, 3)\n"


def test_fastgrad_alone(tmp_path):
    printed = printed_alone(tmp_path, ["fastgrad"], REST | {"cryptography", "safetensors", "dp_accounting"})
    assert printed.endswith(" torch.Size([1, 21])\n")


def test_an_audit_alone(tmp_path):
    run = tmp_path / "run"
    simulate(small_config(run, ["method=gdpfed", "run.num_rounds=1", "privacy.accountant=rdp"]))
    absent = REST | {"torch", "cryptography", "hydra", "safetensors"}
    printed = printed_alone(tmp_path, OF_AUDIT, absent, str(run)).splitlines()
    assert len(printed) == 4
    assert all(line.startswith("spent ") and line.endswith(": held") for line in printed[:3])
    assert printed[3] == "passed"


@pytest.mark.parametrize("name", ["secagg", "fastgrad", "gdpfed/audit"])
def test_a_readme_names_files_that_are_there(name):
    text = (PROJECT / name / "README.md").read_text(encoding="utf-8")
    for file in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        assert (PROJECT / name / file).exists() or (PROJECT / file).exists(), file
