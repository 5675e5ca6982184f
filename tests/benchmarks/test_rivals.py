"""Tests of benchmarks of other libraries: all that one imports is installed in that library's environment.

Such an environment has the rival, torch and what torch needs. Here the rival is a stand-in, and every other
package is out of reach, so an import that the environment cannot have fails.
"""

import ast
import subprocess
import sys

from benchmarks.records.work import OPACUS_PYTHON
from benchmarks.simulation.work import PFL_PYTHON, PROJECT

PROGRAMS = {"benchmarks.simulation.pfl_rounds": "pfl", "benchmarks.records.opacus_steps": "opacus"}
MODELS = ("cnn2", "cnn3", "linear")

WALLED = '''
import importlib.metadata, importlib.util, re, sys, types

programs, rivals, models = (each.split() for each in sys.argv[1:])
OURS = {"benchmarks", "conf", "fastgrad", "gdpfed", "secagg"}

def needed(names):
    """These packages, and what they need."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            told = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [re.match(r"[\\w.-]+", each)[0] for each in told if "extra ==" not in each]
    return found

packages = importlib.metadata.packages_distributions()
there = needed(["torch", "numpy"])
allowed = {
    name for name, of in packages.items() if any(each.lower().replace("_", "-") in there for each in of)
}

class Rival(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

class Wall:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in rivals:
            return importlib.util.spec_from_loader(name, self)
        if top in OURS | allowed | sys.stdlib_module_names or top not in packages:
            return None
        raise ModuleNotFoundError(f"No module named {top!r}: it is not in the environment", name=top)
    def create_module(self, spec):
        return Rival(spec.name)
    def exec_module(self, module):
        pass

import torch
sys.meta_path.insert(0, Wall())
for program in programs:
    try:
        importlib.import_module(program)
    except ModuleNotFoundError as error:
        print(program, error, sep=": ")
from gdpfed.learning.models import build_model
for model in models:
    build_model(model, (3, 32, 32), 10, seed=0)
print("done")
'''


def test_a_rivals_program_imports_of_us_what_its_environment_has():
    """A benchmark of another library imports only packages that the library's own environment contains."""
    asked = (" ".join([*PROGRAMS, "safetensors"]), " ".join(PROGRAMS.values()), " ".join(MODELS))
    done = subprocess.run(
        [sys.executable, "-c", WALLED, *asked], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    missing = "safetensors: No module named 'safetensors': it is not in the environment"
    assert done.stdout.splitlines() == [missing, "done"], done.stderr[-2000:]


def test_the_programs_are_those_that_another_python_runs():
    """PROGRAMS lists exactly the modules of benchmarks that import a rival library."""
    importing = {}
    for path in sorted((PROJECT / "benchmarks").rglob("*.py")):
        if ".venv" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {name.partition(".")[0] for name in names} & {*PROGRAMS.values()}:
                importing[".".join(path.relative_to(PROJECT).with_suffix("").parts)] = top
    assert importing == PROGRAMS
    for python in (PFL_PYTHON, OPACUS_PYTHON):
        assert (python.parents[2] / "uv.lock").is_file()
