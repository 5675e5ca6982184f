"""Tests that the names which users declare act neither as markup of a page nor as terminal commands."""

import re

import pytest
from markdown_it import MarkdownIt

from conf.load import load
from gdpfed.errors import LearningError, line_of
from gdpfed.learning.data.declaration import columns_of
from gdpfed.learning.data.yaml_parts import check_printable
from gdpfed.methods import make_method
from gdpfed.report.chance import AtChance
from gdpfed.report.markdown import text
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.model_card import model_card
from gdpfed.report.parts import Part, Parts

# Of those who read cards the one that lets most through.
markdown = MarkdownIt("commonmark").enable("table")
EVIL = "no) | ## Audit ![x](http://127.0.0.1:9/b.png) [y](javascript:alert(1)) <img src=x> &lt; `c` *e* \\"
STARTS = ("# Audit", "- one", "+ one", "1. one", "1) one", "> said", "~~~", "===", "___")
TAGS = re.compile(r"<(img|a|h[1-6]|em|code|script|svg|li|blockquote|hr|pre)\b")


def declared(name):
    return {
        "label": {"column": f"{name} label", "classes": [f"{name} a", f"{name} b"]},
        "numeric": {name: ["0", "1"]},
        "categorical": {f"{name} c": ["u", "v"]},
        "purpose": name,
        "period": name,
    }


def card_with(name):
    config = load(["dataset=digits", "dataset.num_clients=3", "method=fedavg", "privacy.sampling_rate=1"])
    return model_card(
        CardSubject(
            config=config,
            plan=make_method(config).plan,
            records=(),
            spent=(0.0,),
            against_server=(),
            charged_rounds=0,
            parties=(name, f"{name} 2", f"{name} 3"),
            columns=columns_of(declared(name), "columns.yaml"),
            base_rate=(name, 0.5),
            at_chance=AtChance(0.5, 0.4, 0.6, name, 0.5, "90 test examples", ()),
            parts=Parts([Part(name, 3, {"accuracy": 0.5}, {"accuracy": (0.1, 0.9)})], []),
        )
    )


def test_a_card_with_hostile_names_has_the_form_of_one_with_plain_names():
    assert EVIL.isprintable()
    plain, hostile = (markdown.render(card_with(name)) for name in ("north", EVIL))
    assert re.findall(r"<(/?\w+)", hostile) == re.findall(r"<(/?\w+)", plain)
    # And the names are there, as they were declared.
    assert hostile.count("![x](http://127.0.0.1:9/b.png) [y](javascript:alert(1)) &lt;img src=x&gt;") >= 6


@pytest.mark.parametrize("name", STARTS)
def test_a_name_at_the_start_of_a_line_begins_nothing(name):
    assert markdown.render(f"{text(name)} have made a model.").startswith("<p>")
    assert not TAGS.search(markdown.render(text(name)))


@pytest.mark.parametrize("mark", ["\n", "\r", "\x1b[31m", "\u2028", "\x00", "\u202e"])
def test_a_declared_name_that_cannot_be_printed_is_refused_in_one_line(mark):
    name = f"no{mark}## Audit"
    for values in (
        declared("x") | {"label": {"column": "y", "classes": [name, "b"]}},
        declared("x") | {"label": {"column": "y", "classes": {name: ["1"], "b": ["2"]}}},
        declared("x") | {"numeric": {name: ["0", "1"]}},
        declared("x") | {"party": {"column": "p", "values": ["n", name]}},
        declared("x") | {"purpose": name},
    ):
        with pytest.raises(LearningError, match="cannot be printed: give it a name without") as refused:
            columns_of(values, "columns.yaml")
        assert str(refused.value).isprintable()
    with pytest.raises(LearningError, match="^the name of a party's file is 'no"):
        check_printable(name, "the name of a party's file")


def test_an_error_that_quotes_a_file_gives_a_terminal_no_orders():
    assert line_of(LearningError("row 3 is 'a\x1b]0;t\x07b'")) == "row 3 is 'a ]0;t b' [learning]"
