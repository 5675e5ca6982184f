"""Reports of plans that protect clients: the plan's table, promise in the model card, and warnings."""

from collections.abc import Iterator
from math import exp, isinf
from typing import ClassVar

from rich.table import Table

from conf.schema import FIRST_SEEN
from gdpfed.decimal_numbers import counted
from gdpfed.methods.base import Method
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import rich_table
from gdpfed.report.facts import Fact
from gdpfed.report.mechanism_reports import CardSubject, MechanismReport
from gdpfed.report.plan_lines import common_facts, inference_lines, large_delta_lines, number_or_none
from gdpfed.report.trust_lines import lying_server_lines

ADJACENCY_IN_WORDS = {
    "zero_out": "had sent nothing but noise in every round",
    "replace_one": "had had any other data",
}
TOLD_TO_MEMBERS = {
    "active": "who else is in it, by lasting numbers",
    "curious": "how many are in it, though not who",
    "off": "how many are in it, though not who",
}
NOT_COVERED = """\
* who took part and when: connections, cohort sizes, dropouts and timing are visible to the server
* what is true of the population as a whole, which a model may reveal whoever takes part
* the test set of the server, if there are results above that were measured on one
* other runs on the same clients, such as those by which settings were chosen: budgets of several runs add up
* members of a cohort who collude with the server beyond `secagg.corrupt_tolerance`"""
SERVER_MAY_SEE = (
    "* **single updates: secure aggregation was off, so nothing at all is promised against the server**"
)
SERVER_FOLLOWS = (
    "* a server that does not follow the protocol (`secagg.mode=active` withstands one that lies)"
)

SERVER_SEEN_FIRST = (
    "* a server that lied from the start about who the clients are: they believed the roster that it sent "
    "first (`secagg.identities=first_seen`)"
)
HEADINGS = ("group", "epsilon", "epsilon, server", "clients", "sampling rate", "clients a round", "noise")
DETAILS = ("turns, 99 %", "noise variance", "share kept", "weight")
MOST_SHOWN = 6
"""Figures by group, that stand on one line; of more the ends are told."""


class ClientReport(MechanismReport):
    """Describes plans in which clients are sampled and their summed updates get noise.

    `members`: whom the figure against members is for.
    """

    members: ClassVar[str] = "members of the same sums"

    def promise(self, subject: CardSubject) -> list[str]:
        plan = subject.plan
        words = ADJACENCY_IN_WORDS[plan.adjacency]
        lines = [
            "Take any client, with everything it holds. Whoever sees the models of this run, and is told "
            f"nothing of who took part in its rounds, can hardly tell them from those that came out if it "
            f"{words}: the probability of anything they might conclude changes at most by the factor "
            f"exp(epsilon), up to delta = {plan.delta:.3g}. That is client-level ({plan.adjacency}) "
            "differential privacy.",
            "",
            *(f"**Weak: {line}.**\n" for line in large_delta_lines(plan)),
            "| group | clients | budget epsilon | spent so far | rounds K | against the server after K "
            "| against members of its sums after K |",
            "|---|---|---|---|---|---|---|",
        ]
        for index, (group, spent) in enumerate(zip(plan.groups, subject.spent, strict=True)):
            most = group.participations_p99
            members = plan.epsilon_against_members(index, most)
            lines.append(
                f"| {index} | {len(group.clients)} | {group.epsilon:g} | {spent:.2f} | {most} "
                f"| {_figure(group.epsilon_against_server)} | {_figure(members)} |"
            )
        return [
            *lines,
            "",
            f"{in_plain_words(plan)} The server knows whom it asked, and every member of a sum is told "
            f"{TOLD_TO_MEMBERS[subject.config.secagg.mode]}. So against them the larger figures hold, of "
            "a client that takes part in K rounds: 99 of 100 take part in no more. (How often anybody did is "
            f"a secret of the server, which the epsilon rests on.) Accounted with {plan.accountant} for "
            f"{plan.sampling} sampling and {plan.noise} noise; `gdpfed audit` computes the figures a second "
            "time.",
            *inference_lines(plan, subject.charged_rounds),
            "",
        ]

    def not_covered(self, subject: CardSubject) -> list[str]:
        if not subject.plan.sums_hidden:
            return [SERVER_MAY_SEE, NOT_COVERED]
        secagg = subject.config.secagg
        if secagg.mode == "curious":
            return [
                SERVER_FOLLOWS,
                *(f"* {line}" for line in lying_server_lines(subject.plan, subject.config)),
                NOT_COVERED,
            ]
        return [*([SERVER_SEEN_FIRST] if secagg.identities == FIRST_SEEN else []), NOT_COVERED]

    def table(self, method: Method, *, details: bool = False) -> Table:
        """Return the plan's table, with one row for each group: its budget, noise and rates."""
        plan = method.plan
        against = f" against {plan.against}" if plan.against else ""
        promise = f"{plan.unit}-level DP{against}" if plan.private else "no privacy"
        headings = (*HEADINGS, *(DETAILS if details else ()))
        weighting = method.weighting
        rows = [
            (
                str(index),
                number_or_none(group.epsilon, "g"),
                number_or_none(group.epsilon_against_server, ".2f"),
                str(len(group.clients)),
                f"{100 * group.sampling_rate:.2f} %",
                f"{group.expected_cohort_size:.1f}",
                f"{group.noise_multiplier:.3f}",
                str(group.participations_p99),
                f"{group.noise_variance_multiplier:.3f}",
                f"{weighting.keep_fractions[index]:g}",
                f"{weighting.group_weights[index]:.5f}",
            )[: len(headings)]
            for index, group in enumerate(plan.groups)
        ]
        rounds = counted(plan.num_rounds, "round")
        return rich_table(f"{method.name}: {promise}, {rounds}", headings, rows)

    def facts(self, method: Method) -> list[Fact]:
        """Return facts for the plan's report: what sampling hides, and how the noise was accounted."""
        plan = method.plan
        if not plan.private:
            return []
        most = ", ".join(str(group.participations_p99) for group in plan.groups)
        orders = " (whole orders)" if (plan.accountant, plan.renyi_orders) == ("rdp", "whole") else ""
        hidden = (
            f"the larger epsilons hold, and against {self.members}: a client that takes part K = "
            f"{most} times, the 99th percentile"
            if plan.sums_hidden
            else "Secure aggregation is off: nothing is promised against the server."
        )
        return [
            Fact("against", "outsiders, who get the models and are told nothing of who takes part when"),
            Fact("against the server", hidden),
            *common_facts(plan),
            Fact("accountant", f"{plan.accountant}{orders}", True),
            Fact("sampling", f"{plan.sampling}, {plan.adjacency} adjacency", True),
            *noise_facts(method, f"{plan.noise} noise"),
            Fact("Lambda", f"{method.weighting.noise_magnitude(plan):.3f}", True),
        ]

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        words = super().promise_in_short(plan)
        if not plan.sample_is_secret:
            return words
        epsilons = [number_or_none(group.epsilon_against_server, ".2f") for group in plan.groups]
        told = ", ".join(epsilons) if len(epsilons) <= MOST_SHOWN else f"{epsilons[0]} to {epsilons[-1]}"
        server = "nothing" if {*epsilons} == {"none"} else f"epsilon {told}"
        return f"{words}; against the server {server}"

    def cost_in_short(self, method: Method, messages: float) -> str:
        noise = method.weighting.noise_per_step(method.plan)
        return f"noise of {noise:.3g} in a step of 1; {super().cost_in_short(method, messages)}"

    def warnings(self, plan: PrivacyPlan) -> Iterator[str]:
        """Yield a warning if the noise in a coordinate exceeds the largest sum of the clients' updates."""
        shares = [
            group.noise_stddev / (max(group.expected_cohort_size, 1.0) * group.clipping_norm)
            for group in plan.groups
        ]
        if min(shares) > 1.0:
            least = min(group.epsilon for group in plan.groups)
            yield (
                f"a budget of {least:g} asks for noise in every coordinate of {min(shares):.3g} times what "
                "all clients of a sum can add up to: next to nothing will be learnt. Raise the budgets, "
                "privacy.sampling_rate or dataset.num_clients"
            )


def noise_facts(method: Method, noise: str) -> list[Fact]:
    """Return facts, shown as details, on clipping, noise and the server's learning rate."""
    plan, rate = method.plan, method.server_learning_rate
    counting = "does not train: its clients count right answers on records that they hold out"
    kept, adapted, adaptive = 1.0, "", plan.adaptive_clipping
    if adaptive is not None:
        kept = adaptive.update_share
        more = 100 * (1 / adaptive.update_share - 1)
        adapted = (
            f" at first, then where {100 * adaptive.quantile:g} % of the updates are within it (which costs "
            f"{more:.2g} % more noise)"
        )
    norms = [kept * group.clipping_norm for group in plan.groups]
    apart = f" on average, by group {', '.join(f'{norm:.3f}' for norm in norms)}"
    shared = f", one sum with noise of standard deviation {plan.groups[0].noise_stddev:.3f}"
    clipping = (
        f"{plan.clipping_norm:g}{adapted}"
        f"{apart if len(set(norms)) > 1 else ''}{shared if plan.one_sum else ''}"
    )
    return [
        Fact("clipping norm", clipping, True),
        Fact("noise", f"{noise}; in the table in units of the clipping norm (sigma)", True),
        *([] if rate == 1.0 else [Fact("server's step", f"times {rate:.3g}", True)]),
        *([Fact("last round", counting)] if plan.last_round_counts else []),
    ]


def _figure(value: float) -> str:
    return "no bound" if isinf(value) else f"{value:.2f}"


def in_plain_words(plan: PrivacyPlan) -> str:
    """Return a text that explains epsilon: the factor by which a client's data may change any probability."""
    factors = (f"{exp(min(group.epsilon, 700)):.3g} (group {m})" for m, group in enumerate(plan.groups))
    return (
        "In plain words: what a client's data contributed, its turns and its noise aside, multiplies the "
        f"probability of anything by at most {', '.join(factors)}, except with probability delta = "
        f"{plan.delta:.3g}."
    )
