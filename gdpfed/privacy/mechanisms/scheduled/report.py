"""Reports of plans with scheduled rounds (turns): the plan's table, and the promise in the model card."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from gdpfed.decimal_numbers import counted
from gdpfed.methods.base import Method
from gdpfed.privacy.mechanisms.sampled.report import (
    ADJACENCY_IN_WORDS,
    ClientReport,
    in_plain_words,
    noise_facts,
)
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums, limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import rich_table
from gdpfed.report.facts import Fact
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.plan_lines import against_whom, common_facts, large_delta_lines, number_or_none

TURN_HEADINGS = (
    *("group", "epsilon", "clients", "turns", "rounds between turns", "clients a round"),
    *("clipping norm", "noise"),
)


class TurnsReport(ClientReport):
    """Describes plans with few scheduled rounds for clients, where later rounds subtract earlier noise."""

    def promise(self, subject: CardSubject) -> list[str]:
        plan = subject.plan
        lines = [
            "Take any client, with everything it holds. Whoever sees the models and sums of this run, and "
            "knows who took part when, can hardly tell them from those that came out if it "
            f"{ADJACENCY_IN_WORDS[plan.adjacency]}: the probability of anything they might conclude changes "
            f"at most by the factor exp(epsilon), up to delta = {plan.delta:.3g}. That is client-level "
            f"({plan.adjacency}) differential privacy. {against_whom(plan)}",
            "",
            *(f"**Weak: {line}.**\n" for line in large_delta_lines(plan)),
            "| group | clients | budget epsilon | spent so far | turns at most | rounds apart |",
            "|---|---|---|---|---|---|",
        ]
        limits = limits_of(plan)
        for index, (group, spent) in enumerate(zip(plan.groups, subject.spent, strict=True)):
            own = limits[index]
            lines.append(
                f"| {index} | {len(group.clients)} | {group.epsilon:g} | {spent:.2f} | {own.most_turns} "
                f"| {own.separation} |"
            )
        return [
            *lines,
            "",
            f"{in_plain_words(plan)} Nothing rests on a secret: neither who takes part when, nor how many "
            "do. What turns cost is computed exactly; `gdpfed audit` computes it a second time, from the "
            "turns of every client.",
            "",
        ]

    def table(self, method: Method, *, details: bool = False) -> Table:
        plan = method.plan
        rounds = counted(plan.num_rounds, "round")
        title = f"{method.name}: client-level DP against {plan.against}, {rounds}"
        rows = [
            (
                str(index),
                number_or_none(group.epsilon, "g"),
                str(len(group.clients)),
                str(own.most_turns),
                str(own.separation),
                f"{group.expected_cohort_size:.1f}",
                f"{group.clipping_norm:.3f}",
                f"{group.noise_multiplier:.3f}",
            )
            for index, (group, own) in enumerate(zip(plan.groups, limits_of(plan), strict=True))
        ]
        return rich_table(title, TURN_HEADINGS, rows)

    def facts(self, method: Method) -> list[Fact]:
        plan = method.plan
        rate = plan.groups[0].sampling_rate * plan.num_rounds
        some = f", and {100 * rate:.3g} % of the clients do" if round(rate, 6) < 1 else ""
        turns = f"at most this many a client, with at least these rounds between them{some}"
        # Messages that bring no update, and only subtract earlier noise.
        corrections = plan.messages_a_round - sum(group.expected_cohort_size for group in plan.groups)
        messages = f"{corrections:.1f} of {plan.messages_a_round:.1f} messages a round"
        return [
            Fact("against", against_whom(plan)),
            *common_facts(plan),
            Fact("turns", turns, True),
            Fact("adjacency", plan.adjacency, True),
            Fact("corrections", messages if corrections else "none", True),
            *noise_facts(method, _noise(plan)),
        ]

    def draw(self, plan: PrivacyPlan, names: Sequence[str], path: Path) -> bool:
        """Draw a picture of clients' scheduled rounds, and of the rounds that subtract earlier noise."""
        # What draws takes half a second to import.
        from gdpfed.report.round_pictures import TurnGroup, TurnRow, draw_turns, shown_clients

        groups = [
            TurnGroup(group.clients, group.epsilon, own.taps)
            for group, own in zip(plan.groups, limits_of(plan), strict=True)
        ]
        # For each group, by round: the scheduled clients of all groups that are summed together with it.
        schedules = [plan.made_by(ScheduledSums).schedule(m, plan.groups) for m in range(len(groups))]
        due = [[schedule.due(number) for number in range(plan.num_rounds)] for schedule in schedules]
        rows = [
            TurnRow(
                names[client] if names else f"client {client}",
                m,
                [number for number, clients in enumerate(due[m], start=1) if client in clients],
            )
            for m, client in shown_clients(groups)
        ]
        draw_turns(rows, groups, plan.num_rounds, path)
        return True

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        honest = ", an honest server too" if plan.sums_hidden else ""
        return f"client-level DP (delta {plan.delta:.3g}) against {plan.against}{honest}"


def _noise(plan: PrivacyPlan) -> str:
    """Return a text on the new noise in a round's sum, and on how much of it the next rounds subtract."""
    each_sum = list(zip(plan.groups, limits_of(plan), strict=True))[: 1 if plan.one_sum else None]
    noises = []
    for group, own in each_sum:
        shares = ", ".join(f"{tap:g}" for tap in own.taps)
        if not own.taps:
            taken = "of which nothing is subtracted later"
        elif len(own.taps) == 1:
            taken = f"of which the next round subtracts the share {shares}"
        else:
            taken = f"of which the next {len(own.taps)} rounds subtract the shares {shares}"
        noises.append(f"new noise of standard deviation {group.noise_stddev:.3f} a round, {taken}")
    if plan.one_sum:
        return f"one sum, {noises[0]}"
    return "; ".join(["one sum a group", *(f"group {m}: {noise}" for m, noise in enumerate(noises))])
