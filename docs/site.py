"""Adds generated pages to the docs site: README and others, notebooks, settings, commands, Python names.

mkdocs calls `on_files` with the files of docs/: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gdpfed
import gdpfed.methods  # It hands the methods to conf.
from conf.settings import SettingGroup, setting_groups
from gdpfed.cli.app import COMMANDS, load_command, main
from testing.page_examples import Block, blocks_of, commands_of

ROOT = Path(__file__).resolve().parents[1]
NEIGHBOURS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "CITATION.cff": "CITATION.cff",
}
NOTEBOOKS = ("attacks", "hospitals", "library", "own_budgets", "own_table")
_NEIGHBOUR = re.compile(r"\]\((?:\.\./)?(" + "|".join(map(re.escape, NEIGHBOURS)) + r")")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site's files, so that MkDocs checks links to and from these pages."""
    made = {page: _neighbour(name) for name, page in NEIGHBOURS.items()}
    for page in NOTEBOOKS:
        made[f"{page}.ipynb"] = _notebook((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    made["reference/commands.md"] = "\n".join(_commands())
    made["reference/settings.md"] = "\n".join(_settings())
    made["reference/python.md"] = "\n".join(_names())
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files outside docs/ lead to these files' pages; add a link to the page's notebook."""
    markdown = _with_pages_for_neighbours(markdown)
    name = page.file.src_uri.removesuffix(".md")
    return f"{markdown}\n\n[This page as a notebook]({name}.ipynb)\n" if name in NOTEBOOKS else markdown


def _notebook(text: str) -> str:
    """Return a page of docs/ as a notebook: commands and files become code cells, prose becomes text."""
    code: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    words = {"cell_type": "markdown", "metadata": {}}
    cells: list[dict[str, Any]] = []
    for block in blocks_of(text):
        if block.kind == "printed":
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": block.text}]
        else:
            cells.append((words if block.kind in ("text", "excerpt") else code) | {"source": _source(block)})
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}, indent=1)


def _source(block: Block) -> str:
    if block.kind == "commands":
        return "\n".join(f"!{command}" for command in commands_of(block))
    if block.kind == "file":
        return f"%%writefile {block.name}\n{block.text}"
    return f"```\n{block.text}```" if block.kind == "excerpt" else block.text


def _neighbour(name: str) -> str:
    """Return the text of a file outside docs/, with its links changed so that they work within docs/."""
    return _with_pages_for_neighbours((ROOT / name).read_text(encoding="utf-8").replace("](docs/", "]("))


def _with_pages_for_neighbours(text: str) -> str:
    return _NEIGHBOUR.sub(lambda found: f"]({NEIGHBOURS[found[1]]}", text)


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    for name in COMMANDS:
        yield f"## gdpfed {name}\n\n{load_command(name).help.capitalize()}.\n\n```text\n{_help(name)}```\n"


def _help(name: str) -> str:
    os.environ["COLUMNS"] = "80"
    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        main([name, "--help"])
    return printed.getvalue()


def _settings() -> Iterator[str]:
    yield "# Settings\n\n`group=option` chooses a file of options, `group.key=value` sets one value.\n"
    for group in setting_groups():
        yield from _group(group)


def _group(group: SettingGroup) -> Iterator[str]:
    yield f"## {group.name}\n"
    for option, words in group.options.items():
        yield f"- `{group.name}={option}`: {words}"
    yield "\n| setting | default | values | meaning |\n| --- | --- | --- | --- |"
    for each in group.settings:
        kind = f"{each.kind}; as {each.source}" if each.source else each.kind
        cells = (f"`{each.key}`", f"`{each.default}`", kind, each.words)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _names() -> Iterator[str]:
    yield "# Names for Python\n\nThese stay; [the library](../library.md) shows what each is for.\n"
    for name in dir(gdpfed):
        if name != "__version__":
            home = getattr(gdpfed, name).__module__
            yield f"::: {home}.{name}\n    options:\n      heading: gdpfed.{name}\n"
