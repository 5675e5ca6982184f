"""Tests of limits on the core code: a method's flags, lines that name an option, files that a round runs."""

import ast
import os
import re
import subprocess
import sys
from typing import ClassVar

import pytest

from gdpfed.methods.base import Method
from testing.project import PROJECT
from testing.reading_list import MOST_FILES, MOST_LINES

PRODUCT = ("client_app", "conf", "deploy", "fastgrad", "gdpfed", "secagg", "server_app")
ROUNDS = ("fleet", "loop", "pairwise", "prepared", "run", "state")
OPTION = re.compile(
    r"\b(votes?|held_out\w*|turns?|\w+_turns|taps|corrections?|correctors?|Corrections|NO_CORRECTIONS"
    r"|taken_back\w*|KeptStates|kept_states|SumNoise|noise_streams|edges?|NO_EDGE|EDGE|at_edge|has_edges"
    r"|indicator\w*|norm_factor|settings=\w*|class_counts|adaptive\w*|trusted|stream|scheduled\w*)\b"
)


def test_a_method_has_four_flags_at_most():
    flags = [name for name, kind in Method.__annotations__.items() if kind == ClassVar[bool]]
    assert 0 < len(flags) <= 4, flags


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ([f"gdpfed/rounds/{name}.py" for name in ROUNDS], 20),
        # What a client is asked for, and what it costs: an option that costs is charged somewhere.
        (["gdpfed/clients/order.py", "gdpfed/record_steps.py"], 22),
        (["gdpfed/privacy/plan.py", "gdpfed/privacy/release.py", "gdpfed/privacy/ledgers/*.py"], 105),
    ],
)
def test_few_lines_of_the_kernel_name_an_option(files, most):
    texts = [path.read_text(encoding="utf-8") for pattern in files for path in PROJECT.glob(pattern)]
    assert sum(bool(OPTION.search(line)) for text in texts for line in text.splitlines()) <= most


def test_no_function_deletes_an_argument_that_it_has_no_use_for():
    found = []
    for path in (path for folder in PRODUCT for path in (PROJECT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(text)) if "del " in text else ():
            if not isinstance(function, ast.FunctionDef) or not _deletes(function):
                continue
            names = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and _loads(each)}
            found += [
                f"{path}:{each.lineno}"
                for each in function.body
                if isinstance(each, ast.Delete)
                and {target.id for target in each.targets if isinstance(target, ast.Name)} & names - read
            ]
    assert found == []


def _deletes(function):
    return any(isinstance(each, ast.Delete) for each in function.body)


def _loads(name):
    return isinstance(name.ctx, ast.Load)


def test_the_reading_list_is_what_a_masked_round_calls():
    """ARCHITECTURE.md lists the files whose code a round with masked sums runs; their number is limited."""
    ended = subprocess.run(
        [sys.executable, "-m", "testing.reading_list"],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    listed, round_counts, _ = ended.stdout.rstrip().rsplit("\n", 2)
    shown = (PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    # How many lines there are is written with the list, and may be a little older than the files.
    listed, shown = (re.sub(r" [\d,]+ \|$", "", text, flags=re.MULTILINE) for text in (listed, shown))
    assert listed in shown, f"run python -m testing.reading_list --write: ARCHITECTURE.md lacks\n{listed}"
    counted = re.fullmatch(r"round: (\d+) files, ([\d.]+)k lines", round_counts)
    assert counted is not None, round_counts
    files, lines = counted.groups()
    assert int(files) <= MOST_FILES
    assert 1000 * float(lines) <= MOST_LINES
