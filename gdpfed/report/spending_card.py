"""What a model card says of a run whose clients spend what each has chosen."""

import numpy as np

from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.spending import Spending, epsilon_of_total

SPENDING_NOT_COVERED = """\
* the client as a whole: what is typical of its records may be learnt
* how many records every client has and what it spends in every round: both are public
* whether a client takes part in a round: it adds its noise itself, so its absence may show
* the choice of budgets: they must not be chosen by looking at data, and nothing makes aversions true
* what is true of the population as a whole, which a model may reveal whoever takes part
* the test set of the server, on which the accuracy above was measured
* other runs on the same records, and choices made by looking at results: budgets of several runs add up"""


def spending_promise(plan: PrivacyPlan, spending: Spending, against_server: float) -> list[str]:
    """The lines on what is promised to every record."""
    totals = spending.worst_totals(spending.num_rounds)
    quantiles = {"least": 0.0, "median": 0.5, "most": 1.0}
    rows = [(name, float(np.quantile(totals, each))) for name, each in quantiles.items()]
    return [
        "Take any one record of any client. Whoever sees the models of this run, or every single message, "
        "can hardly tell them from those that came out if this record were another: the probability of "
        "anything they might conclude changes at most by the factor exp(epsilon), up to "
        f"delta = {plan.delta:.3g}. That is record-level differential privacy (replace one). Every client "
        "has an epsilon of its own, that of one Gaussian mechanism of its total zCDP:",
        "",
        "| client | zCDP if it is asked as often as it may be | epsilon |",
        "|---|---|---|",
        *(f"| {name} | {rho:.5g} | {epsilon_of_total(rho, plan.delta):.4g} |" for name, rho in rows),
        "",
        f"In this run the client that spent most has epsilon {against_server:.4g}, counted over the rounds "
        "that it took part in. Every client added its noise itself, so the figures hold against everybody. "
        "`rewards.json` says what each has earned, and no money moves. `gdpfed audit` computes the totals a "
        "second time.",
        "",
        "Accuracy here measures spending as well: with more budget there is less noise, however clients are "
        "sampled.",
    ]
