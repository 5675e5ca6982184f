"""Tests of the paper: each number in its text and each of its tables comes from a measured table."""

import re

import pytest

from paper.pictures import figures_in, write_pictures
from paper.tables import measured_tables
from testing.project import PROJECT

TEXT = " ".join((PROJECT / "paper" / "paper.typ").read_text(encoding="utf-8").split())
WORD = r'"((?:[^"\\\\]|\\\\.)*)"'
NUMBERS = re.findall(rf"#number\({WORD}, {WORD}, {WORD}\)", TEXT)
TABLES = re.findall(rf"#measured\( ?{WORD}", TEXT)


@pytest.fixture(scope="module")
def tables():
    return measured_tables()


def test_each_figure_of_the_text_stands_in_a_measured_table(tables):
    assert len(NUMBERS) > 5
    for name, row, heading in NUMBERS:
        assert heading in tables[name].headings, (name, heading)
        assert row in [each[0] for each in tables[name].rows], (name, row)


def test_each_table_of_the_text_was_measured(tables):
    assert len(TABLES) > 9
    assert [name for name in TABLES if name not in tables] == []


def test_what_the_text_cites_is_in_the_list_and_nothing_else_is():
    entries = set(
        re.findall(r"^@\w+\{(\w+),", (PROJECT / "paper" / "references.bib").read_text(), re.MULTILINE)
    )
    labels = set(re.findall(r"<([\w-]+)>", TEXT))
    cited = set(re.findall(r"@([a-z][\w-]*)", TEXT))
    assert cited - labels == entries


def test_pictures_are_vector_graphics_of_the_tables(tables, tmp_path):
    write_pictures(tables, tmp_path)
    for name in re.findall(r'image\("build/(\S+)"', TEXT):
        assert (tmp_path / name).read_text().lstrip().startswith("<?xml")
    assert figures_in("89.7 ± 1.0") == [89.7, 1.0]
    assert figures_in("17,236") == [17236]


def test_a_second_table_of_a_caption_has_a_name_of_its_own(tmp_path):
    (tmp_path / "docs").mkdir()
    table = "**A table, 1 %**\n\n| a | b |\n| --- | ---: |\n| `c` | {} |\n"
    block = f"<!-- measured by: x -->\n\n{table}\n<!-- end -->\n"
    (tmp_path / "docs" / "page.md").write_text(block.format("[1](x.md)") + "\n" + block.format(2))
    found = measured_tables(tmp_path)
    assert list(found) == ["page-a-table-1", "page-a-table-1-2"]
    assert found["page-a-table-1"].to_csv() == "a,b\nc,1\n"
