"""A budget above that of the ledger's last run needs a word: another command may have started the node."""

import pytest

from client_app.carried import settings_of
from gdpfed.federation.node import budget
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms
from testing.local_grid import make_context


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
