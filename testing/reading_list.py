"""List the source files that one training round with secure aggregation over Flower uses.

    python -m testing.reading_list              prints the list of ARCHITECTURE.md, and how long it is
    python -m testing.reading_list --write      writes them into ARCHITECTURE.md

A run of two rounds is made first, which imports all that it needs; then one of one round is watched, in which
nothing is imported any more. What a node does is called in this process, as a grid without Flower's runtime
hands messages to the real handlers.
"""

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from types import FrameType
from typing import Any

from gdpfed.errors import FailedError
from gdpfed.rounds.loop import RoundLoop
from testing.project import PROJECT
from testing.small_runs import run

ROOMS = ("client_app", "conf", "fastgrad", "gdpfed", "secagg", "server_app")
DOCUMENT = PROJECT / "ARCHITECTURE.md"
MOST_FILES, MOST_LINES = 100, 19_000
SETTINGS = (
    "method=gdpfed_plus",
    "privacy.against=outsiders",
    "dataset.num_rounds=1",
    "privacy.sampling_rate=1",
)

CHAPTERS = {
    "how a round goes on the server: draw, charge, ask, sum, step, record": (
        "gdpfed/rounds/loop",
        "gdpfed/rounds/prepared",
        "gdpfed/rounds/state",
        "gdpfed/rounds/",
        "gdpfed/rounds/fleet",
        "gdpfed/rounds/pairwise",
        "gdpfed/rounds/extensions/",
    ),
    "what a method asks for, and how it makes a step of the sums": (
        "gdpfed/methods/base",
        "gdpfed/methods/",
    ),
    "what a round costs: plan, events, accountant, cohorts, ledger": (
        "gdpfed/privacy/plan",
        "gdpfed/privacy/group_plan",
        "gdpfed/privacy/",
        "gdpfed/privacy/mechanisms/",
        "gdpfed/privacy/accountants/",
        "gdpfed/privacy/sampling/",
        "gdpfed/privacy/ledgers/",
    ),
    "how messages travel between server and nodes": (
        "server_app/",
        "gdpfed/federation/server/",
        "client_app/",
    ),
    "what a node lets pass, and what it signs": ("gdpfed/federation/node/",),
    "what a client does for a request": ("gdpfed/record_steps", "gdpfed/clients/", "gdpfed/clients/works/"),
    "data, model and local training": (
        "gdpfed/learning/task",
        "gdpfed/learning/",
        "gdpfed/learning/data/",
        "gdpfed/learning/labels/",
        "gdpfed/learning/models/",
        "gdpfed/learning/training/",
        "fastgrad/",
    ),
    "how sums are masked, noised and unmasked": (
        "conf/schema/secagg_config",
        "secagg/protocol/parameters",
        "secagg/protocol/",
        "secagg/arithmetic/",
        "secagg/crypto/",
    ),
    "what a run writes": ("gdpfed/runs/", "gdpfed/files", "gdpfed/registry", "gdpfed/late_import"),
    "how a run is shown, which is not a part of the kernel": ("gdpfed/report/",),
}
"""The order in which to read the files: the chapters, and in each the beginnings of paths."""


class Watch:
    """Records in which source files a function was called.

    Attributes:
        run: in the whole run.
        round: in its round, from the draw of a cohort to the record, on whichever thread.
    """

    def __init__(self) -> None:
        self.run: set[str] = set()
        self.round: set[str] = set()
        self._in_round = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        path = frame.f_code.co_filename
        if not path.startswith(f"{PROJECT}/"):
            return
        name = path.removeprefix(f"{PROJECT}/")
        if name.split("/")[0] in ROOMS:
            self.run.add(name)
            if self._in_round:
                self.round.add(name)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record calls inside the ``with`` block, in this thread and in threads started there."""
        original = RoundLoop._round

        def watched(*arguments: Any) -> Any:
            self._in_round = True
            try:
                return original(*arguments)
            finally:
                self._in_round = False

        RoundLoop._round = watched  # type: ignore[assignment, method-assign]
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            RoundLoop._round = original  # type: ignore[method-assign]


def called() -> tuple[list[str], list[str]]:
    """Return the files whose functions one round calls, and those whose functions the whole run calls."""
    with TemporaryDirectory() as folder:
        run(Path(folder) / "first", [*SETTINGS, "run.seed=1", "dataset.num_rounds=2"])
        watch = Watch()
        with watch.on():
            run(Path(folder) / "second", [*SETTINGS, "run.seed=2"])
    return sorted(watch.round), sorted(watch.run)


def lines_of(name: str) -> int:
    """Return how many lines a file has."""
    return len((PROJECT / name).read_text().splitlines())


def chapter_of(name: str) -> tuple[int, int]:
    """Return a file's chapter in the reading list, and its place in that chapter, both as indices.

    Raises FailedError if no chapter has the file.
    """
    matching = [
        (len(path), chapter, place)
        for chapter, paths in enumerate(CHAPTERS.values())
        for place, path in enumerate(paths)
        if name.startswith(path)
    ]
    if not matching:
        raise FailedError(f"no chapter of the reading list has {name}: name it in CHAPTERS of {__file__}")
    _, chapter, place = max(matching)
    return chapter, place


def in_words(names: Sequence[str]) -> str:
    """Format a list of files as ARCHITECTURE.md shows it: a table with one row for each chapter."""
    chapters = {
        title: sorted((name for name in names if chapter_of(name)[0] == index), key=chapter_of)
        for index, title in enumerate(CHAPTERS)
    }
    return "\n".join(
        ["| read | which files, in this order | lines |", "|---|---|---:|"]
        + [
            f"| {title} | {_by_folder(own)} | {sum(map(lines_of, own)):,} |"
            for title, own in chapters.items()
        ]
    )


def _by_folder(names: Sequence[str]) -> str:
    return "; ".join(
        f"`{folder}/`: {', '.join(name.rpartition('/')[2].removesuffix('.py') for name in own)}"
        for folder, own in groupby(names, key=lambda name: name.rpartition("/")[0])
    )


def length_in_words(in_round: Sequence[str], in_run: Sequence[str]) -> str:
    """Return the sentence of ARCHITECTURE.md on the number of files and lines that a round uses."""
    (files, lines), (all_files, all_lines) = _counts(in_round), _counts(in_run)
    return "\n".join(
        wrap(
            f"It is {files} files with {lines} thousand lines; with what happens before and after the round, "
            f"a run calls {all_files} files with {all_lines} thousand lines. The aim is {MOST_FILES} files "
            f"and {MOST_LINES // 1000} thousand lines.",
            120,
            break_on_hyphens=False,
        )
    )


def _counts(names: Sequence[str]) -> tuple[int, str]:
    return len(names), f"{sum(map(lines_of, names)) / 1000:.1f}"


def write(listed: str, length: str) -> None:
    """Replace the list of files, and the sentence on its length, in ARCHITECTURE.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    text, lists = re.subn(
        r"(?<=\n\n)\| read \| which files.*?(?=\n\n)", lambda _: listed, text, flags=re.DOTALL
    )
    text, lengths = re.subn(
        r"(?<=\n\n)It is \d+ files with .*?(?=\n\n|\n\Z)", lambda _: length, text, flags=re.DOTALL
    )
    if (lists, lengths) != (1, 1):
        raise FailedError(f"{DOCUMENT} has {lists} lists and {lengths} lengths: it must have one of each")
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    in_round, in_run = called()
    listed, length = in_words(in_round), length_in_words(in_round, in_run)
    print(listed)
    for title, names in (("round", in_round), ("run", in_run)):
        files, lines = _counts(names)
        print(f"{title}: {files} files, {lines}k lines")
    if "--write" in sys.argv[1:]:
        write(listed, length)
