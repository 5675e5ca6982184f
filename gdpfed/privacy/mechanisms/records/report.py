"""Reports of plans that protect records: the plan's table, and the promise in the model card."""

import math

from rich.table import Table

from gdpfed.decimal_numbers import counted
from gdpfed.methods.base import Method
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.record_steps import kind_of
from gdpfed.report.console import rich_table
from gdpfed.report.facts import Fact
from gdpfed.report.mechanism_reports import CardSubject, MechanismReport
from gdpfed.report.plan_lines import common_facts, inference_lines
from gdpfed.report.record_comparison import noise_of_learning, steps_in

HEADINGS = (
    *("group", "epsilon", "clients", "records", "records a batch", "clipping norm", "noise", "steps"),
    "steps allowed",
)

SERVER_MAY_SEE = (
    "* **the server: secure aggregation was off, so it saw every client's sum of gradients without noise, "
    "and nothing at all is promised against it**"
)
UNKNOWN_BATCHES = "Batches were drawn on the clients, unknown to everybody else"
NOT_COVERED = """\
* the client as a whole: a patient with several records, or a hospital with many, is protected far less than
  one record, and what is typical of a hospital's patients may be learnt
* how many records every client has, which the server is told, and when a client stops, which follows from the
  plan
* who took part and when: connections, dropouts and timing are visible to the server
* what is true of the population as a whole, which a model may reveal whoever takes part
* the test set of the server, if there are results above that were measured on one
* other runs on the same records: budgets of several runs add up
* choices made by looking at results, such as a norm, a rate or a number of steps: they are not accounted"""


ROWS_OF_PERSONS = (
    """\
* the client as a whole: a patient with several records, or a hospital with many, is protected far less than
  one record, and what is typical of a hospital's patients may be learnt
* how many records every client has""",
    """\
* the client as a whole: a hospital with many persons is protected far less than one of them, and what is
  typical of its patients may be learnt
* a person with rows at {elsewhere}: the figures above hold for each part of them, and add up
* how many persons every client has""",
)
"""What a card says of rows, and of persons."""


class RecordReport(MechanismReport):
    """Describes plans that protect records by DP-SGD: batches are drawn, and each step or sum gets noise."""

    def promise(self, subject: CardSubject) -> list[str]:
        plan = subject.plan
        word, parties = plan.record_is, _parties(plan)
        clients = "one client" if parties == 1 else f"up to {parties} clients"
        whole = "" if word == "record" else f", with all its rows at {clients},"
        lines = [
            f"Take any one {word} of any client. Whoever sees the models of this run, the server included, "
            f"can hardly tell them from those that came out if this {word}{whole} had had no influence (its "
            "gradient were zero in every step): the probability of anything they might conclude changes at "
            f"most by the factor exp(epsilon), up to delta = {plan.delta:.3g}. That is {word}-level "
            "differential privacy.",
            "",
            f"| group | clients | share of their {word}s | budget epsilon | spent so far "
            "| factor exp(epsilon) |",
            "|---|---|---|---|---|---|",
        ]
        for index, (group, first) in enumerate(zip(plan.groups, subject.spent, strict=True)):
            for number, each in enumerate(record_groups(plan.mechanism, index)):
                done = f"{first:.2f}" if number == 0 else "as group 0"
                lines.append(
                    f"| {index} | {len(group.clients)} | {100 * each.share:g} % | {each.epsilon:g} | {done} "
                    f"| {math.exp(min(each.epsilon, 700)):.3g} |"
                )
        return [
            *lines,
            "",
            f"{UNKNOWN_BATCHES}{self.against_others(plan)} Accounted with {plan.accountant}; `gdpfed audit` "
            "computes the figures a second time.",
            *([_at_several(parties)] if parties > 1 else []),
            *inference_lines(plan, subject.charged_rounds),
            "",
        ]

    def against_others(self, plan: PrivacyPlan) -> str:
        """Return a text that says against whom epsilons hold, which depends on who adds the noise."""
        if all(kind_of(work).own_noise for work in plan.works):
            return (
                ", and each client added all of its noise itself, so the same figures hold against the "
                "server and the other clients."
            )
        if not plan.sums_hidden:
            return ". Noise was added to their sum, so the same figures hold against the other clients."
        return (
            ", so the same figures hold against a server that follows the protocol, and against the other "
            "clients: each of them knows its own share of a sum's noise, and the noise was sized without it."
        )

    def not_covered(self, subject: CardSubject) -> list[str]:
        seen = subject.plan.works != ("dp_sgd",) and not subject.plan.sums_hidden
        persons = subject.plan.record_is == "person"
        rows, of_persons = ROWS_OF_PERSONS
        parties = _parties(subject.plan)
        elsewhere = "several clients" if parties == 1 else f"more than {parties} clients"
        covered = NOT_COVERED
        if persons:
            covered = covered.replace(rows, of_persons.format(elsewhere=elsewhere))
        return [SERVER_MAY_SEE, covered] if seen else [covered]

    def table(self, method: Method, *, details: bool = False) -> Table:
        """Return the plan's table, with one row for each budget of records."""
        plan = method.plan
        title = f"{method.name}: {plan.record_is}-level DP, {counted(plan.num_rounds, 'round')}"
        headings = [heading.replace("record", plan.record_is) for heading in HEADINGS]
        table = rich_table(title, headings if details else headings[:-1], ())
        for index, (group, records) in enumerate(zip(plan.groups, records_of(plan), strict=True)):
            steps = steps_in(plan.charges(index))
            for number, each in enumerate(records.groups):
                cells = (
                    str(index) if len(records.groups) == 1 else f"{index}.{number}",
                    f"{each.epsilon:g}",
                    str(len(group.clients)),
                    f"{100 * each.share:g} %",
                    f"{100 * each.batch_rate:.3g} %",
                    f"{records.clipping_norm:.4g}",
                    f"{records.noise_multiplier:.4f}",
                    str(steps),
                    str(records.steps_allowed),
                )
                table.add_row(*cells[: len(table.columns)])
        return table

    def facts(self, method: Method) -> list[Fact]:
        """Return the facts in the plan's report: the attacker, each group's steps, noise, accountant."""
        plan, parties = method.plan, _parties(method.plan)
        seen = plan.works == ("gradient_sum",) and not plan.sums_hidden
        whom, server = "everybody", ""
        if seen:
            whom = "everybody but the server"
            server = " Secure aggregation is off: nothing is promised against the server."
        against = f"{whom}: batches are drawn on the client. One {plan.record_is} is protected.{server}"
        facts = [Fact("against", against), *common_facts(plan)]
        if parties > 1:
            facts.append(Fact("at several clients", _at_several(parties)))
        if plan.sampling_rate < 1:
            most = max(group.participations_p99 for group in plan.groups)
            drawn = (
                f"at rate {plan.sampling_rate:g} ({plan.sampling}), which is not accounted; one takes part "
                f"in at most {most} rounds"
            )
            facts.append(Fact("clients drawn", drawn))
        if plan.held_out is not None:
            counts = (
                "after it clients count on records that they hold out, in one sum with noise of "
                f"{plan.held_out.noise_stddev:.3g} in every count; such a record pays for it alone, epsilon "
                f"{plan.held_out.epsilon:.3g}"
            )
            facts.append(Fact("last round", counts))
        for index, group in enumerate(plan.groups):
            steps = ", then ".join(
                f"{each.record_steps or 'none'} in {each.num_rounds} "
                f"round{'s' if each.num_rounds != 1 else ''}"
                for each in group.ranges
            )
            ends = sorted({1, plan.num_rounds // 4, plan.num_rounds // 2, plan.num_rounds} - {0})
            grows = ", ".join(f"{plan.epsilon_after(index, end):.3g} after {end}" for end in ends)
            facts.append(Fact(f"steps of group {index}", f"{steps}; epsilon {grows} rounds", True))
        noise = "sigma C on every client's own batch, in every step"
        if plan.works == ("gradient_sum",):
            root = "" if parties == 1 else f"sqrt({parties}) "
            noise = f"{root}sigma C once on the sum of all clients, which they share"
        return [
            *facts,
            Fact("noise", noise, True),
            Fact("accountant", f"{plan.accountant}, {plan.adjacency} adjacency", True),
        ]

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        words = super().promise_in_short(plan)
        if plan.mechanism.kind != "record_sums":
            return words
        seen = plan.works == ("gradient_sum",) and not plan.sums_hidden
        whom = "all but the server" if seen else "everyone"
        return f"{words} against {whom}"

    def cost_in_short(self, method: Method, messages: float) -> str:
        noise = noise_of_learning(method.plan, by_batch=method.weighs_by_batch)
        return f"noise of {noise:.3g} in a step of 1; {super().cost_in_short(method, messages)}"


def _parties(plan: PrivacyPlan) -> int:
    return max(each.parties for each in records_of(plan))


def _at_several(parties: int) -> str:
    return (
        f"A person may be at up to {parties} clients, and its steps at all of them are paid for. Where their "
        "budgets differ, the largest of those at which it is holds for it."
    )
