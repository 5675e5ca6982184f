"""Tests of the mechanism table: an entry names all parts of a privacy mechanism, which lie in one folder."""

from importlib import import_module

import pytest

from gdpfed.audit.mechanisms import AUDIT_CARDS, AUDIT_RULES, NODE_ENTRIES
from gdpfed.mechanism_table import MECHANISMS
from gdpfed.privacy.ledgers.terms import TERMS, Terms
from gdpfed.privacy.mechanism import Mechanism
from gdpfed.report.mechanism_reports import MECHANISM_REPORTS

FOUND = (TERMS, MECHANISM_REPORTS, AUDIT_RULES, NODE_ENTRIES, AUDIT_CARDS)


@pytest.mark.parametrize("name", MECHANISMS)
def test_one_entry_names_all_that_is_looked_for_by_a_mechanism_and_its_folder_has_it(name):
    assert set(MECHANISMS[name]) == {registry.entry_point_group for registry in FOUND}
    for registry in FOUND:
        module, _, attribute = MECHANISMS[name][registry.entry_point_group].partition(":")
        assert registry.get(name) is getattr(import_module(module), attribute)
    folder = MECHANISMS[name]["gdpfed.terms"].rpartition(".terms:")[0]
    assert MECHANISMS[name]["gdpfed.mechanism_reports"].startswith(f"{folder}.report:")
    own = vars(import_module(f"{folder}.mechanism")).values()
    made = [each for each in own if isinstance(each, type) and issubclass(each, Mechanism)]
    assert [each for each in made if getattr(each, "kind", "") == name]
    assert TERMS.get(name).kind == name
    assert import_module(f"{folder}.planner")


@pytest.mark.parametrize("base", [Mechanism, Terms])
def test_what_all_mechanisms_have_is_twelve_methods_at_most(base):
    written = [
        name
        for name, value in vars(base).items()
        if not name.startswith("__") and (callable(value) or isinstance(value, property | classmethod))
    ]
    assert len(written) <= 12, written
