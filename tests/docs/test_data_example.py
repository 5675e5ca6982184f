"""The example of docs/data.md, run as it stands there."""

import re
import shlex
from pathlib import Path

from gdpfed.cli import main
from gdpfed.runs.round_log import read_rounds

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
BLOCK = r"\n\n((?:    .*\n)+)"


def unindented(block):
    return re.sub("^    ", "", block, flags=re.MULTILINE)


def test_the_small_example_runs_word_for_word(tmp_path, monkeypatch, capsys):
    section = PAGE.read_text(encoding="utf-8").partition("## A small example\n")[2].partition("\n## ")[0]
    for name, text in re.findall(r"`([\w.]+)` [^\n]*:" + BLOCK, section):
        (tmp_path / name).write_text(unindented(text))
    assert {path.name for path in tmp_path.iterdir()} == {"columns.yaml", "patients.csv"}
    commands = [line for line in unindented(section).splitlines() if line.startswith("gdpfed ")]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    out = capsys.readouterr().out
    for word in ("By party and by budget", "east", "north", "west"):
        assert word in out
    assert read_rounds(tmp_path / "stays")[-1].shown[0] == "accuracy"
