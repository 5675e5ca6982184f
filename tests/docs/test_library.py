"""Tests of the library: its public names, and the examples of docs/library.md as printed there."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

import gdpfed
from gdpfed.learning.data.named_partitions import PARTITIONS
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.training.optimizers import SCHEDULES
from release.published import published_project
from testing.page_examples import blocks_of, examples_of, executed
from testing.project import DOCS, PROJECT

PAGE = DOCS / "library.md"
EXAMPLES = examples_of("library.md")
(TORCH_MISSING,) = re.findall(r"(?:    .*\n)*    .*torch.* \[input\]", PAGE.read_text("utf-8"))


def test_what_type_checkers_see_is_what_there_is():
    tree = ast.parse(Path(gdpfed.__file__).read_text("utf-8"))
    (typed,) = (each for each in tree.body if isinstance(each, ast.If))
    imports = [each for each in typed.body if isinstance(each, ast.ImportFrom)]
    seen = {name.name: str(each.module) for each in imports for name in each.names}
    assert sorted([*seen, "__version__"]) == dir(gdpfed)
    for name, home in seen.items():
        assert getattr(gdpfed, name) is getattr(import_module(home), name), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gdpfed.nothing  # noqa: B018


def test_the_page_names_every_name_once_and_no_example_is_long():
    table = PAGE.read_text("utf-8").partition("\n\n| to |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", table)
    assert sorted(each for each in named if each != "secagg") == [
        each for each in dir(gdpfed) if each != "__version__"
    ]
    assert {title: text.count("\n") for title, text in EXAMPLES.items() if text.count("\n") > 60} == {}


def test_the_parts_work_with_no_other_package_than_the_core_of_the_wheel(tmp_path):
    """The library's core works without optional packages; what needs torch raises an error that says so."""
    app = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    core, named = (
        {re.split(r"[^\w-]", each)[0].lower() for each in project["dependencies"]}
        for project in (published_project(app)["project"], app["project"])
    )
    assert core < named
    # rich brings its markdown-it-py.
    missing = named - {*core, "markdown-it-py"}
    others = {
        module
        for module, owners in packages_distributions().items()
        if missing & {owner.lower() for owner in owners}
    }
    assert {"torch", "torchvision", "flwr", "jinja2", "sklearn", "pandas", "tensorboardX"} <= others
    loop = EXAMPLES["What a party has spent"] + EXAMPLES["A sum that nobody sees the summands of"]
    words = f"""
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others | {"ray"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import gdpfed
from gdpfed.cli import main
for name in set(dir(gdpfed)) - {{"load_model"}}:
    getattr(gdpfed, name)
gdpfed.plan("dataset=digits")
{loop}
from secagg.arithmetic import discrete_gaussian
assert [main([name]) for name in ("plan", "settings")] == [0, 0]
assert main(["identity", "new", "key"]) == 0
assert main(["audit", "nowhere"]) == 2
for needs_torch in (
    lambda: gdpfed.load_model, lambda: gdpfed.simulate(), lambda: gdpfed.register("model", "mine", None)
):
    try:
        needs_torch()
        raise SystemExit("nothing was missing")
    except gdpfed.InputError as error:
        assert str(error).startswith("this needs the package torch, which is not installed: "), error
assert main(["simulate", "dataset=digits"]) == 2
print(result.survivors)
"""
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "(0, 1, 2, 4, 5)"
    assert found.stderr.splitlines()[-1] == " ".join(TORCH_MISSING.split())


def test_your_data_your_model_one_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = executed("library.md", "Your data, your model, one cell")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    table = [line for line in lines if line.startswith(("gdpfed_star: client", "┏", "┃", "┡", "│", "└"))]
    assert "".join(f"    {line}\n" for line in table) in PAGE.read_text("utf-8")
    assert lines[-1] == repr(names["run"])
    assert names["run"].settings["privacy"]["client_budgets"] == [6.0] * 30 + [2.0] * 30
    assert "<table>" in names["run"]._repr_html_()
    assert gdpfed.audit_run(names["run"].path).passed


def test_the_command_of_the_page_is_the_one_that_is_printed(capsys):
    text = PAGE.read_text("utf-8").partition("### The same run from a shell")[2]
    shown = [block for block in blocks_of(text) if block.kind in ("python", "commands")][:2]
    exec(compile(shown[0].text, "page", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == shown[1].text


def test_plan_train_and_look(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = executed("library.md", "Plan, train, look")
    assert names["frame"]["round"].tolist() == [1, 2, 3, 4, 5]
    assert names["frame"]["test/accuracy"].iloc[-1] == names["run"].records[-1].accuracy
    assert names["predicted"].labels.shape == (1,)


def test_a_loop_of_ones_own():
    names = executed("library.md", "A loop of your own")
    assert names["ledger"].spent() == pytest.approx([2.0, 8.0], rel=0.02)
    assert names["accuracy"] > 0.6


def test_what_a_party_has_spent(capsys):
    names = executed("library.md", "What a party has spent")
    out = capsys.readouterr().out
    assert "after spring: epsilon 2.00" in out
    assert "has had its update already" in out
    assert names["ledger"].epsilon(1e-5) > 2.5
    assert names["ledger"].from_dict(names["kept"]).epsilon(1e-5) == names["ledger"].epsilon(1e-5)


def test_a_strategy_of_flowers_own():
    names = executed("library.md", "In a strategy of Flower's own")
    assert names["strategy"].privacy_spent().epsilon == 0


def test_a_sum_without_a_look_at_the_summands():
    names = executed("library.md", "A sum that nobody sees the summands of")
    assert names["result"].survivors == (0, 1, 2, 4, 5)
    assert np.allclose(names["total"], 1.2, atol=1e-4)


def test_what_is_registered_is_trained_with_and_bounded_as_anything_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def far_off(outputs, targets):
        return 1e30 * outputs.sum(dim=-1) + 0 * targets

    def halves(data, num_clients, seed):
        return np.array_split(np.arange(len(data.train)), num_clients)

    for registry in (LOSSES, PARTITIONS, SCHEDULES):
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    gdpfed.register("loss", "far_off", far_off)
    gdpfed.register("partition", "halves", halves)
    gdpfed.register("schedule", "late", lambda index, rounds: 1.0 if index else 0.5)
    settings = (
        "dataset=digits",
        "secagg=off",
        "run.num_rounds=2",
        "simulation.workers=1",
    )
    chosen = ("dataset.loss=far_off", "dataset.partition=halves", "training.schedule=late")
    run = gdpfed.simulate(*settings, *chosen)
    # An update without a bound would be 1e29 long.
    assert (
        max(float(each.detach().abs().max()) for each in gdpfed.load_model(run.path).module.parameters())
        < 100
    )
    assert gdpfed.audit_run(run.path).passed
    with pytest.raises(gdpfed.InputError, match="nothing of kind 'clip' to register: choose client_state, "):
        gdpfed.register("clip", "none", far_off)
    with pytest.raises(gdpfed.InputError, match="there is a loss 'far_off' already"):
        gdpfed.register("loss", "far_off", halves)
