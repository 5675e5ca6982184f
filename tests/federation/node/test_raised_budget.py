"""Tests of a node whose budget was raised since the ledger's last run: its operator must confirm that."""

import re
from dataclasses import replace

import pytest

from client_app.carried import settings_of
from gdpfed.federation.node import budget
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms
from testing.local_grid import make_context
from tests.federation.node.test_record_budget import DP_SGD


def terms(run, noise=20.0):
    event = SampledGaussian(
        sampling="poisson", sampling_rate=1.0, group_size=10, noise_stddev=noise, clipping_norm=1.0
    )
    return SumTerms(
        run=run,
        group=0,
        epsilon=0.2,
        delta=1e-5,
        accountant="rdp",
        charges=(Charge(event=event, count=1),),
        sums_hidden=True,
    )


def test_a_budget_that_grew_is_refused_until_its_operator_says_so(tmp_path, caplog):
    def node(epsilon, **more):
        settings = {key.replace("_", "-"): value for key, value in more.items()}
        told = {"epsilon": epsilon, "ledger": str(tmp_path / "ledger.json"), **settings}
        return settings_of(make_context(0, told)).budgets

    budget.begin(node(0.5), terms("one"))
    budget.begin(node(0.5), terms("two"))
    with pytest.raises(budget.BudgetRefusedError, match="was raised since its last run, and not confirmed"):
        budget.begin(node(6.0), terms("three"))
    assert (
        "epsilon is 6, and in this ledger's last run it was 0.5: start the node with epsilon=0.5"
        in caplog.text
    )
    with pytest.raises(budget.BudgetRefusedError):
        budget.begin(node(6.0, raised_from=0.4), terms("three"))
    # A run that it has begun goes on, and less is no question.
    budget.begin(node(6.0), terms("two"))
    budget.begin(node(0.45), terms("three"))
    budget.begin(node(6.0, raised_from=0.45), terms("four"))
    budget.begin(node(6.0, raised_from=0.45), terms("five"))
    with pytest.raises(budget.BudgetRefusedError):
        budget.begin(node(7.0, raised_from=0.45), terms("six"))


@pytest.mark.parametrize(
    ("raised", "was", "words"),
    [
        ({"epsilon-record": "2,20"}, 4.0, "epsilon-record is '2,20', and in .* it was '2,4': .*='2,4' as"),
        ({"epsilon-record": "3,20"}, 2.0, "epsilon-record is '3,20', and in .* raised-from=2 beside it"),
        ({"epsilon-record": 3.0}, 2.0, "epsilon-record is 3, and in this ledger's last run it was '2,4'"),
        ({"delta-record": 1e-4}, 1e-5, "delta-record is 0.0001, and in .* it was 1e-05: .*raised-from=1e-05"),
    ],
    ids=["another group", "all groups", "one number for all", "delta"],
)
def test_whatever_was_raised_of_several_budgets_asks_for_the_word(tmp_path, caplog, raised, was, words):
    def node(**settings):
        own = {"epsilon-record": "2,4", "ledger": str(tmp_path / "ledger.json")}
        return settings_of(make_context(0, own | settings)).budgets

    budget.begin(node(), replace(DP_SGD, run="one"))
    for more in ({}, {"raised-from": 7.0}):
        with pytest.raises(budget.BudgetRefusedError, match="was raised since its last run"):
            budget.begin(node(**raised, **more), replace(DP_SGD, run="two"))
    assert re.search(words, caplog.text)
    budget.begin(node(**raised, **{"raised-from": was}), replace(DP_SGD, run="two"))
    # A smaller number needs no confirmation, whichever it is.
    budget.begin(node(**{"epsilon-record": "1.9,3", "delta-record": 1e-6}), replace(DP_SGD, run="three"))
