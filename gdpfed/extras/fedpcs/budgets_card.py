"""The model card's section for runs whose clients choose their budgets."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from gdpfed.extras.fedpcs.own_spending import OwnSpending, planned_spending
from gdpfed.privacy.mechanism_options import sampling_rule
from gdpfed.privacy.mechanisms.sampled.report import ClientReport
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.mechanism_reports import CardSubject, MechanismReport
from gdpfed.runs.round_log import RoundLogEntry

if TYPE_CHECKING:
    from gdpfed.extras.fedpcs.fedpcs import FedPCS
    from gdpfed.methods.base import Method

_RECORDS_NOT_COVERED = """\
* the client as a whole: what is typical of its records may be learnt
* how many records every client has: it is public
"""
_CHOSEN_BY_RELEASES = """\
* the figure of this run, over the rounds that were taken: who is asked follows from what clients released, \
so what is promised is the figure of a client that is asked as often as it may be
"""
_NOT_COVERED = """\
* what every client spends in every round: it is public
* whether a client takes part in a round: it adds its noise itself, so its absence may show
* the choice of budgets: they must not be chosen by looking at data, and nothing makes aversions true
* what is true of the population as a whole, which a model may reveal whoever takes part
* the test set of the server, if there are results above that were measured on one
* other runs on the same records, and choices made by looking at results: budgets of several runs add up"""


IN_WORDS = {
    ("record", "replace_one"): ("any one record of any client", "this record were another"),
    ("record", "zero_out"): ("any one record of any client", "this record had counted as zero in every step"),
    ("client", "zero_out"): (
        "any client, with everything it holds",
        "it had sent nothing but its noise in every round that it took part in",
    ),
    ("client", "replace_one"): ("any client, with everything it holds", "it had had any other data"),
}


class BudgetsReport(ClientReport):
    """Writes the model card's privacy promise for plans in which clients choose their budgets."""

    smaller_budgets: ClassVar[str] = "set a smaller method.budget_scale"

    def promise(self, subject: CardSubject) -> list[str]:
        plan, spending = subject.plan, planned_spending(subject.plan)
        against_server = subject.against_server[0]
        whose, otherwise = IN_WORDS[plan.unit, plan.adjacency]
        mechanism, sampling = plan.made_by(OwnSpending), list[str]()
        if mechanism.rule is not None:
            if mechanism.rule == "delta":
                what = "the noised gradients that clients released when they were last asked, each read alone"
            else:
                what = (
                    "how many records of each class clients have, which every client released once, before "
                    f"the first round, at {mechanism.counts_rho:g} zCDP: under noise of standard deviation "
                    f"{mechanism.counts_noise:.4g} in every count. That is in every total, also of who was "
                    "never asked"
                )
            sampling = [f"Who was asked follows from {what}.", ""]
        quantiles = {"least": 0.0, "median": 0.5, "most": 1.0}
        rows = [(name, *spending.most_spent(each, plan.delta)) for name, each in quantiles.items()]
        return [
            f"Take {whose}. Whoever sees the models of this run, or every single message, can hardly tell "
            f"them from those that came out if {otherwise}: the probability of "
            "anything they might conclude changes at most by the factor exp(epsilon), up to "
            f"delta = {plan.delta:.3g}. That is {plan.unit}-level differential privacy "
            f"({plan.adjacency.replace('_', ' ')}). Every client has an epsilon of its own, "
            f"{spending.made_of}:",
            "",
            f"| client | {spending.spent_in} if it is asked as often as it may be | epsilon |",
            "|---|---|---|",
            *(f"| {name} | {spent} | {epsilon:.4g} |" for name, spent, epsilon in rows),
            "",
            *sampling,
            f"In this run the client that spent most has epsilon {against_server:.4g}, counted over the "
            "rounds that it took part in. Every client added its noise itself, so the figures hold against "
            "everybody. `rewards.json` says what each has earned, and no money moves. `gdpfed audit` "
            "computes the totals a second time.",
            "",
            "Accuracy here measures spending as well: with more budget there is less noise, however clients "
            "are sampled.",
        ]

    def not_covered(self, subject: CardSubject) -> list[str]:
        plan = subject.plan
        whole = _RECORDS_NOT_COVERED if plan.about_records else ""
        return [whole + (_CHOSEN_BY_RELEASES if sampling_rule(plan.mechanism) else "") + _NOT_COVERED]

    def budgets(self, plan: PrivacyPlan) -> Counter[float]:
        return Counter(planned_spending(plan).most_epsilons(plan.delta).tolist())

    def spent(self, record: RoundLogEntry) -> Sequence[float | None]:
        # What a group has spent is as if a client were asked in every round; this is by the rounds it was in.
        return record.epsilon_against_server

    def spent_in_short(self, spent: float, budget: float, clients: int) -> str:
        return f"{spent:.4g} of {budget:.4g}, the most of {clients} clients"

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        return f"{super().promise_in_short(plan)} against everyone"

    def cost_in_short(self, method: "Method", messages: float) -> str:
        noise = cast("FedPCS", method).noise_per_step
        return f"noise of {noise:.3g} in a step of 1; {MechanismReport.cost_in_short(self, method, messages)}"

    def warnings(self, plan: PrivacyPlan) -> Iterator[str]:
        """Yield no warnings, since each client's noise follows only from the budget that the client chose."""
        yield from ()
