"""Runs the examples in a page of docs/ (Python, files, commands), and records their output."""

import re
import runpy
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from testing.project import DOCS, SHARED_DATA

PYTHON = "the page's Python"
FAILING: Mapping[str, Collection[str]] = {
    "own_table.md": {"gdpfed check patients.csv"},
    "hospitals.md": {"gdpfed check exported.csv tables/columns.yaml"},
}
"""Commands in the documentation that are expected to fail, by page."""
FILES: Mapping[str, Mapping[str, Path]] = {
    "eicu.md": {"patient.csv": SHARED_DATA / "eicu-demo" / "patient.csv"}
}
"""Files that a page tells readers to put into their folder, by page, and where they are here."""
NEEDS_FILES = "## The same with four real hospitals"
"""The section from which on a page needs files that the source tree does not have."""

_PRINTED = "<!-- printed -->\n\n```text\n{text}```\n"
_BLOCK = re.compile(
    r"^<!-- printed -->\n\n```text\n(?P<printed>(?:.*\n)*?)```\n|"
    r"^```python\n(?P<python>(?:.*\n)*?)```\n|(?P<indented>^ {4}.*\n(?:(?:\n)*^ {4}.*\n)*)",
    re.MULTILINE,
)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
_FILE = re.compile(r"`([\w/.]+\.(?:py|csv|sql|toml|yaml))`")


@dataclass(frozen=True)
class Block:
    """A part of a page in docs/: text, a code block or an indented block.

    Attributes:
        kind: what it is; an `excerpt` is the beginning of a file that a command has made.
        text: it, without its indentation or its fence; `printed`: what the block before it printed.
        name: of the file that it is, or begins.
        end: where it ends in the page.
    """

    kind: Literal["text", "python", "commands", "file", "excerpt", "printed"]
    text: str
    name: str = ""
    end: int = 0


def blocks_of(text: str) -> list[Block]:
    """Divide a page of docs/ into its parts, in order."""
    found, end = list[Block](), 0
    for block in _BLOCK.finditer(text):
        before, end = text[end : block.start()], block.end()
        if before.strip():
            found.append(Block("text", before))
        if block["printed"] is not None:
            found.append(Block("printed", block["printed"], end=end))
        elif block["python"] is not None:
            found.append(Block("python", block["python"], end=end))
        else:
            found.append(replace(_indented(before, block["indented"]), end=end))
    return [*found, *([Block("text", text[end:])] if text[end:].strip() else [])]


def _indented(before: str, block: str) -> Block:
    text = re.sub("^    ", "", block, flags=re.MULTILINE)
    paragraph = " ".join(before.rstrip().rpartition("\n\n")[2].split())
    named = _FILE.search(paragraph)
    if text.startswith(("gdpfed ", "python ")):
        return Block("commands", text)
    if named is None:
        return Block("text", block)
    return Block("excerpt" if paragraph.endswith("begins so:") else "file", text, named[1])


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block, each on one line."""
    return block.text.replace("\\\n", " ").splitlines()


def follow(text: str, printed: Callable[[], str], failing: Collection[str] = ()) -> dict[str, str]:
    """Run all examples of a page; return what each command and the Python code printed.

    `printed` returns what was printed since it was last asked. The commands that are `failing` exit with 1.
    """
    said = dict[str, str]()
    for _, outputs in steps(text, printed, failing):
        for command, output in outputs.items():
            said[command] = (said.get(PYTHON, "") if command == PYTHON else "") + output
    return said


def steps(
    text: str, printed: Callable[[], str], failing: Collection[str] = ()
) -> Iterator[tuple[Block, dict[str, str]]]:
    """Run a page's examples block by block; yield each block with its outputs."""
    from gdpfed.cli import main

    names = dict[str, Any]()
    for block in blocks_of(text):
        said = dict[str, str]()
        if block.kind == "excerpt":
            if not Path(block.name).read_text(encoding="utf-8").startswith(block.text):
                raise ValueError(f"{block.name} does not begin as the page says")
        elif block.kind == "file":
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, "page", "exec"), names)  # noqa: S102
            said[PYTHON] = printed()
        elif block.kind == "commands":
            for command in commands_of(block):
                program, *words = shlex.split(command)
                if program == "python":
                    runpy.run_path(words[0], run_name="__main__")
                elif (status := main(words)) != (command in failing):
                    raise ValueError(f"{command} ended with status {status}: {printed()}")
                said[command] = printed()
        yield block, said


def with_outputs(text: str, outputs: Iterable[tuple[Block, str]]) -> str:
    """Return the page with the outputs of these blocks replaced by new ones."""
    for block, output in sorted(outputs, key=lambda shown: shown[0].end, reverse=True):
        after = text[block.end :].lstrip("\n")
        earlier = _BLOCK.match(after)
        if earlier and earlier["printed"] is not None:
            after = after[earlier.end() :].lstrip("\n")
        text = f"{text[: block.end]}\n{_PRINTED.format(text=output)}{after and chr(10)}{after}"
    return text


def examples_of(page: str) -> dict[str, str]:
    """Return the first Python block of each section of a page in docs/, by heading."""
    examples, title = dict[str, str](), ""
    for block in blocks_of((DOCS / page).read_text("utf-8")):
        if block.kind == "python":
            examples.setdefault(title, block.text)
        title = next(reversed(_HEADING.findall(block.text)), title) if block.kind == "text" else title
    return examples


def executed(page: str, title: str) -> dict[str, Any]:
    """Run an example of a page in the current directory; return the variables that it defines."""
    names: dict[str, Any] = {}
    exec(compile(examples_of(page)[title], title, "exec"), names)  # noqa: S102
    return names
