"""Runs the examples of tutorials in docs/, and writes command outputs and pictures into the tutorials.

    python -m testing.page_outputs own_table.md hospitals.md eicu.md omop.md own_budgets.md

Private runs draw their noise anew, so figures differ from one time to the next.
"""

import os
import shutil
import sys
import tempfile
import textwrap
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from testing.page_examples import FAILING, FILES, NEEDS_FILES, steps, with_outputs
from testing.project import DOCS

PICTURES = {
    "own_table.md": {"own_table_accuracy.png": "stays/accuracy.png"},
    "eicu.md": {"eicu_auc.png": "worth/epsilon.png"},
}
"""By page: the name of each picture in docs/, and the file of a run that it is copied from."""
COLUMNS, MOST_LINES, FIRST_LINES = 100, 28, 14


def shown(output: str, folder: str) -> str:
    """Return an output for readers: without this machine's folders, long outputs shortened in the middle."""
    text = output.replace(f"{folder}/", "").replace(folder, ".")
    lines = [
        part
        for line in text.rstrip().splitlines()
        for part in textwrap.wrap(line, 116, drop_whitespace=False) or [""]
    ]
    if len(lines) > MOST_LINES:
        lines = [*lines[:FIRST_LINES], "...", *lines[FIRST_LINES - MOST_LINES :]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def write_outputs(page: str) -> None:
    """Run a page's examples in a new folder, and write what its commands printed into the page."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    printed = StringIO()

    def newly() -> str:
        said = printed.getvalue()
        printed.seek(0)
        printed.truncate()
        return said

    with (
        tempfile.TemporaryDirectory() as made,
        chdir(made),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        folder = str(Path.cwd())
        for name, place in FILES.get(page, {}).items():
            shutil.copy(place, name)
        done = [
            (block, shown("".join(said.values()), folder))
            for block, said in steps(text.partition(NEEDS_FILES)[0], newly, FAILING.get(page, ()))
            if "".join(said.values()).strip()
        ]
        for picture, file in PICTURES.get(page, {}).items():
            shutil.copy(file, DOCS / picture)
    path.write_text(with_outputs(text, done), encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = str(COLUMNS)
    for name in sys.argv[1:]:
        write_outputs(name)
