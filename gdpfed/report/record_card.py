"""The model card's section about a run that protects records."""

from collections.abc import Sequence
from math import exp

from gdpfed.privacy.plan import PrivacyPlan

SERVER_MAY_SEE = (
    "* **the server: secure aggregation was off, so it saw every client's sum of gradients without noise, "
    "and nothing at all is promised against it**"
)
NOT_COVERED = """\
* the client as a whole: a patient with several records, or a hospital with many, is protected far less than
  one record, and what is typical of a hospital's patients may be learnt
* how many records every client has, which the server is told, and when a client stops, which follows from the
  plan
* who took part and when: connections, dropouts and timing are visible to the server
* what is true of the population as a whole, which a model may reveal whoever takes part
* the test set of the server, on which the accuracy above was measured
* other runs on the same records: budgets of several runs add up
* choices made by looking at results, such as a norm, a rate or a number of steps: they are not accounted"""


def record_promise(plan: PrivacyPlan, spent: Sequence[float]) -> list[str]:
    """The lines on what is promised to every record."""
    lines = [
        "Take any one record of any client. Whoever sees the models of this run, the server included, can "
        "hardly tell them from those that came out if this record had had no influence (its gradient were "
        "zero in every step): the probability of anything they might conclude changes at most by the factor "
        f"exp(epsilon), up to delta = {plan.delta:.3g}. That is record-level differential privacy.",
        "",
        "| group | clients | share of their records | budget epsilon | spent so far | factor exp(epsilon) |",
        "|---|---|---|---|---|---|",
    ]
    for index, (group, first) in enumerate(zip(plan.groups, spent, strict=True)):
        for number, each in enumerate(plan.mechanism.record_groups(index)):
            done = f"{first:.2f}" if number == 0 else "as group 0"
            lines.append(
                f"| {index} | {len(group.clients)} | {100 * each.share:g} % | {each.epsilon:g} | {done} "
                f"| {exp(min(each.epsilon, 700)):.3g} |"
            )
    return [
        *lines,
        "",
        "Batches were drawn on the clients, unknown to everybody else, so the same figures hold against the "
        f"server and the other clients. Accounted with {plan.accountant}; `gdpfed audit` computes the "
        "figures a second time.",
    ]


def record_not_covered(plan: PrivacyPlan) -> list[str]:
    """The lines on what is not promised."""
    seen = plan.works != ("dp_sgd",) and not plan.sums_hidden
    return [SERVER_MAY_SEE, NOT_COVERED] if seen else [NOT_COVERED]
