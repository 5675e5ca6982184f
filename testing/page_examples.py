"""What is to be run in a page of docs/, as it stands there: Python, files to write, and commands."""

import re
import runpy
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PYTHON = "the page's Python"
DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(
    r"^```python\n(?P<python>(?:.*\n)*?)```\n|(?P<indented>^ {4}.*\n(?:(?:\n)*^ {4}.*\n)*)", re.MULTILINE
)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
_FILE = re.compile(r"`([\w/.]+\.(?:py|csv|yaml))`")


@dataclass(frozen=True)
class Block:
    """A part of a page.

    Attributes:
        kind: what it is; an `excerpt` is the beginning of a file that a command has made.
        text: it, without its indentation or its fence.
        name: of the file that it is, or begins.
    """

    kind: Literal["text", "python", "commands", "file", "excerpt"]
    text: str
    name: str = ""


def blocks_of(text: str) -> list[Block]:
    """All of a page, in order. An indented block is commands, or the file that its paragraph names first."""
    found, end = list[Block](), 0
    for block in _BLOCK.finditer(text):
        before, end = text[end : block.start()], block.end()
        if before.strip():
            found.append(Block("text", before))
        python, indented = block["python"], block["indented"]
        found.append(_indented(before, indented) if python is None else Block("python", python))
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
    """The commands of a block, each on one line."""
    return block.text.replace("\\\n", " ").splitlines()


def follow(text: str, printed: Callable[[], str], failing: Collection[str] = ()) -> dict[str, str]:
    """Do all that a page says, in the current directory; returns what each command and its Python printed.

    `printed` returns what was printed since it was last asked. The commands that are `failing` exit with 1.
    """
    from gdpfed.cli import main

    said, names = dict[str, str](), dict[str, Any]()
    for block in blocks_of(text):
        if block.kind == "excerpt":
            if not Path(block.name).read_text(encoding="utf-8").startswith(block.text):
                raise ValueError(f"{block.name} does not begin as the page says")
        elif block.kind == "file":
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, "page", "exec"), names)  # noqa: S102
            said[PYTHON] = said.get(PYTHON, "") + printed()
        elif block.kind == "commands":
            for command in commands_of(block):
                program, *words = shlex.split(command)
                if program == "python":
                    runpy.run_path(words[0], run_name="__main__")
                elif (status := main(words)) != (command in failing):
                    raise ValueError(f"{command} ended with status {status}: {printed()}")
                said[command] = printed()
    return said


def examples_of(page: str) -> dict[str, str]:
    """The first block of Python of each section of a page in docs/, by its heading."""
    examples, title = dict[str, str](), ""
    for block in blocks_of((DOCS / page).read_text("utf-8")):
        if block.kind == "python":
            examples.setdefault(title, block.text)
        title = next(reversed(_HEADING.findall(block.text)), title) if block.kind == "text" else title
    return examples


def executed(page: str, title: str) -> dict[str, Any]:
    """Run an example in the current directory; the names that it leaves behind."""
    names: dict[str, Any] = {}
    exec(compile(examples_of(page)[title], title, "exec"), names)  # noqa: S102
    return names
