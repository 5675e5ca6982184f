"""The documents as a site: every link leads somewhere, and every kind of error has its heading."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import conf
import deploy
import edge_app
import gdpfed
from gdpfed.errors import ConfigError, GDPFedError, line_of

ROOT = Path(__file__).resolve().parents[2]


def build(config, into):
    """Build the site, in which a link that leads nowhere and a page without a place are errors."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", config, "--site-dir", into],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def test_site_is_built_with_its_reference_and_asks_no_other_host(tmp_path):
    built = build("mkdocs.yml", tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    pages = {
        page.relative_to(tmp_path): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")
    }
    asked = {
        found
        for page in pages.values()
        for found in re.findall(r'(?:src|<link [^>]*href)="(https?:[^"]+)', page)
    }
    assert asked == set()
    assert "privacy.clipping_norm" in pages[Path("reference/settings/index.html")]
    assert 'id="gdpfed.library.simulate"' in pages[Path("reference/python/index.html")]
    cells = json.loads((tmp_path / "attacks.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell["cell_type"] for cell in cells[1::2]] == ["code"] * 3
    day = json.loads((tmp_path / "hospitals.ipynb").read_text(encoding="utf-8"))["cells"]
    begins = [cell["source"].split()[0] for cell in day if cell["cell_type"] == "code"]
    assert begins[:5] == ["%%writefile", "!python", "!gdpfed", "%%writefile", "!gdpfed"]
    assert "\\\n" not in "".join(cell["source"] for cell in day if cell["source"].startswith("!"))
    for page in ("own_table", "own_budgets", "hospitals", "attacks"):
        assert f'href="../{page}.ipynb"' in pages[Path(page, "index.html")]
    assert "gdpfed audit --canaries" in pages[Path("reference/commands/index.html")]


def every_error():
    for package in (conf, deploy, edge_app, gdpfed):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    waiting = [GDPFedError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        yield error


def test_every_kind_of_error_has_a_heading():
    headings = re.findall(
        r"^### (.+)$", (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = {kind for heading in headings for kind in heading.split(", ")}
    kinds = {
        line_of(error.__new__(error))[2:-1]
        for error in every_error()
        if error is not GDPFedError and error.__module__.split(".")[0] != "tests"
    }
    assert len(kinds) > 20
    assert kinds - documented == set()


@pytest.mark.parametrize(("error", "line"), [(ConfigError("x=1 must be 2"), "x=1 must be 2 [config]")])
def test_line_ends_with_its_kind(error, line):
    assert line_of(error) == line
