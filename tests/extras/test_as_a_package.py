"""Tests of extras as installed packages: a method that comes in such a package runs and is audited."""

from importlib import import_module

import pytest

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import ConfigError
from gdpfed.extras_table import EXTRAS
from gdpfed.methods import METHODS
from gdpfed.registry import Registry
from gdpfed.simulation import simulate
from testing.project import PROJECT
from testing.small_runs import small_config


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Remove the built-in method MR-MTL, and install the same method as another author's package."""
    site = tmp_path / "site"
    metadata = site / "stranger-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gdpfed.methods]\nmr_mtl = stranger_of_ours:MRMTL\n")
    source = (PROJECT / "gdpfed/extras/mr_mtl.py").read_text(encoding="utf-8")
    (site / "stranger_of_ours.py").write_text(source, encoding="utf-8")
    own = [point for point in METHODS._built_in if point.name != "mr_mtl"]
    monkeypatch.setattr(METHODS, "_built_in", own)
    with pytest.raises(ConfigError, match="method 'mr_mtl' is not known"):
        METHODS.get("mr_mtl")
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("elsewhere")
def test_a_method_of_a_package_runs_as_an_extra_does(tmp_path):
    assert METHODS.get("mr_mtl").__module__ == "stranger_of_ours"
    words = [
        "method=mr_mtl",
        "privacy=record_level",
        "secagg=off",
        "run.num_rounds=1",
        "privacy.accountant=rdp",
    ]
    simulate(small_config(tmp_path / "run", [*words, "privacy.budgets=[8]"]))
    assert (tmp_path / "run" / "personal.safetensors").is_file()
    assert audit_run(tmp_path / "run").findings == ()


def test_each_name_of_the_table_leads_somewhere():
    for group, names in EXTRAS.items():
        registry: Registry[object] = Registry("item", group)
        for name in names:
            assert registry.get(name) is not None, (group, name)


def test_an_extra_is_named_in_its_table_and_nowhere_else():
    """Code outside the extras contains no name of an extra's module, not even in a string."""
    folders = [PROJECT / name for name in ("client_app", "conf", "gdpfed", "secagg", "server_app")]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    others = {file for file in files if "extras" not in str(file.relative_to(PROJECT))}
    assert [file for file in others if "gdpfed.extras." in file.read_text(encoding="utf-8")] == []
    assert load([]).method.name in METHODS.names()
    assert import_module("gdpfed.extras").__doc__
