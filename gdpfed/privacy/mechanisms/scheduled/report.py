"""Plans with turns: table and promise in the card."""

from rich.table import Table

from gdpfed.methods.base import Method
from gdpfed.privacy.mechanisms.sampled.report import (
    ADJACENCY_IN_WORDS,
    ClientReport,
    in_plain_words,
)
from gdpfed.privacy.mechanisms.scheduled.mechanism import limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import rich_table
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.plan_lines import (
    against_whom,
    inference_line,
    large_delta_lines,
    number_or_none,
    replacement_line,
    vote_lines,
)

TURN_HEADINGS = ("group", "epsilon", "clients", "turns k", "apart b", "cohort r", "norm C", "sigma")


class TurnsReport(ClientReport):
    """Describes plans with few turns for each client and noise that later rounds mostly remove."""

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

    def table(self, method: Method) -> Table:
        plan = method.plan
        title = f"{method.name}: client-level DP against {plan.against}, {plan.num_rounds} rounds"
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
        return rich_table(title, TURN_HEADINGS, rows, caption=_caption_of_turns(method))


def _caption_of_turns(method: Method) -> str:
    plan = method.plan
    return (
        f"{against_whom(plan)}\n"
        f"{_who(plan)}, at least b rounds apart; {plan.messages_a_round:.1f} messages "
        f"a round, {_kinds(plan)}. Delta {plan.delta:.3g}, {plan.adjacency} adjacency, clipping norm "
        f"{plan.clipping_norm:g} on average; {_noise(plan)}; noise for the step "
        f"{method.weighting.noise_per_step(plan):.5f}\n"
        f"{chr(10).join([*vote_lines(plan), replacement_line(plan), inference_line(plan)])}"
    )


def _who(plan: PrivacyPlan) -> str:
    rate = plan.groups[0].sampling_rate * plan.num_rounds
    some = f", and {100 * rate:.3g} % of the clients do" if round(rate, 6) < 1 else ""
    return f"A client takes part at most k times{some}"


def _noise(plan: PrivacyPlan) -> str:
    """Describe the new noise of a round and how much of it the next rounds remove."""
    each_sum = list(zip(plan.groups, limits_of(plan), strict=True))[: 1 if plan.one_sum else None]
    new = ", ".join(f"{group.noise_stddev:.3f}" for group, _ in each_sum)
    taken = "; ".join(", ".join(f"{tap:g}" for tap in own.taps) or "nothing" for _, own in each_sum)
    sums = "one sum with" if plan.one_sum else "one sum a group, each with"
    return f"{sums} new noise of standard deviation {new} a round, of which the next rounds take back {taken}"


def _kinds(plan: PrivacyPlan) -> str:
    """Say what kinds of messages the sums need."""
    updates = sum(group.expected_cohort_size for group in plan.groups)
    corrections = plan.messages_a_round - updates
    return f"{corrections:.1f} of them corrections alone" if corrections else "updates"
