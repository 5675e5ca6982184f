"""Tests of reading YAML: two parsers, one of them in C, give the same result or the same error."""

import random

import pytest
import yaml

from gdpfed.yaml_files import read_yaml
from testing.project import PROJECT

OPTIONS = PROJECT / "conf"
TEXTS = [path.read_text("utf-8") for path in sorted(OPTIONS.glob("*/*.yaml"))]
SIGNS = "[]{}:,-?&*!|>'\"%@`# \t\n\r\x85\u2028\ufeff\x00\xe9\\~<=0a."


def read(text, as_texts):
    try:
        return repr(read_yaml(text, as_texts=as_texts))
    except ValueError as error:
        return f"refused: {error}"
    except (AttributeError, TypeError) as error:
        return type(error).__name__


def damaged(draw):
    """Return some lines of an option file, with a few characters replaced by special characters of YAML."""
    text = draw.choice(TEXTS)
    start = draw.randrange(len(text))
    text = text[start : start + draw.randrange(5, 120)]
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(text) + 1)
        text = text[:at] + draw.choice(SIGNS) + text[at + draw.randrange(2) :]
    return text


def test_both_parsers_read_the_same_or_refuse_in_the_same_words(monkeypatch):
    draw = random.Random(1)
    texts = [*TEXTS[:10], *(damaged(draw) for _ in range(400))]
    of_both = [read(text, as_texts) for text in texts for as_texts in (False, True)]
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert of_both == [read(text, as_texts) for text in texts for as_texts in (False, True)]
    assert 100 < sum(each.startswith("refused: ") for each in of_both) < 700


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
@pytest.mark.parametrize("length", [2_000, 1_000_000])
def test_a_text_of_any_depth_is_refused_in_one_line(opening, length):
    """YAML that is nested too deeply is refused in one line, even where it would crash the C parser."""
    with pytest.raises(ValueError, match=r"this is not YAML: (while|maximum recursion)"):
        read_yaml(opening * (length // len(opening)))


def test_a_usual_text_is_read_by_the_parser_in_c(monkeypatch):
    monkeypatch.setattr(yaml, "SafeLoader", None)
    assert read_yaml("rate: 0.5\nname: no\n") == {"rate": 0.5, "name": False}
