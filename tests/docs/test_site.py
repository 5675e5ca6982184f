"""Test of the documents as a website: it builds without a broken link."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from testing.project import PROJECT


def build(config, into):
    """Build the site in strict mode: a broken link, or a page outside the navigation, is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    return subprocess.run(
        [*command, "--config-file", config, "--site-dir", into],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT), "NO_MKDOCS_2_WARNING": "1"},
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
    dead = [
        (page, link)
        for page, text in pages.items()
        for link in re.findall(r'href="(?!https?:|mailto:|#)([^"#]+)', text)
        if page.name != "404.html" and not (tmp_path / page.parent / link).exists()
    ]
    assert dead == []
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("privacy.budgets=clients" in section["text"] for section in index["docs"])
    assert {"clipping", "norm"} <= set(re.split(index["config"]["separator"], "privacy.clipping_norm"))
    assert "privacy.clipping_norm" in pages[Path("reference/settings/index.html")]
    assert 'id="app-signature"' in pages[Path("refusals/index.html")]
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
