"""The parts of a model card that a data protection officer asks for: who, what, why, and how much is told."""

from collections.abc import Sequence

import numpy as np

from gdpfed.learning.task import Task
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.party_lines import MOST_NAMED, group_of


def base_rate(task: Task) -> tuple[str, float] | None:
    """The most frequent class of the test examples, by name, and its share of them; None of numbers."""
    data = task.load()
    if data.num_classes < 2 or not len(data.test):
        return None
    counts = np.bincount(data.test.y.astype(np.int64), minlength=data.num_classes)
    largest = int(counts.argmax())
    name = data.columns.class_names[largest] if data.columns is not None else str(largest)
    return name, float(counts[largest] / counts.sum())


def base_rate_lines(subject: CardSubject) -> list[str]:
    """What is reached without any model."""
    if subject.base_rate is None:
        return []
    name, share = subject.base_rate
    return [f"* without any model: answering '{name}' always would be right for {100 * share:.1f} % of it"]


def in_plain_words(subject: CardSubject) -> list[str]:
    """One paragraph for people who have never heard of any of this."""
    count = subject.config.dataset.num_clients
    named = 0 < len(subject.parties) <= MOST_NAMED
    who = _listed(subject.parties) if named else f"{count} participants"
    columns = subject.columns
    what = (
        ""
        if columns is None
        else f" It tells '{columns.label}' from {len(columns.inputs)} facts about a case."
    )
    return [
        "## In plain words",
        "",
        f"{who} have made one model together.{what} {_how_much(subject)} The model knows no more than was in "
        "the data that it learnt from, and it errs; this card says how often.",
        "",
    ]


def _how_much(subject: CardSubject) -> str:
    """How well anybody can tell whether a single one was among what was learnt."""
    plan = subject.plan
    if not plan.private:
        return (
            "Nothing was done to hide what it learnt from: whoever has the model may find out facts of "
            "single cases, so it is to be kept as safe as the data themselves."
        )
    one = "participant" if plan.unit == "client" else "person" if plan.record_is == "person" else "case"
    bounds: dict[int, list[int]] = {}
    for index in range(len(plan.groups)):
        numbers = range(max(1, len(plan.mechanism.record_groups(index))))
        accuracies = [
            plan.inference_bound(index, subject.charged_rounds, number).accuracy_at_even_odds
            for number in numbers
        ]
        bounds.setdefault(int(np.ceil(100 * max(accuracies))), []).append(index)
    rights = [f"in {right} of 100 tries{_of_whom(subject, bounds, right)}" for right in sorted(bounds)]
    several = " A person with several cases is protected less than one case." if one == "case" else ""
    if plan.works != ("dp_sgd",) and not plan.sums_hidden:
        several += " Whoever ran the server saw what each one handed over, and from them nothing is hidden."
    return (
        "Chance was mixed into all that it learnt, to hide from everybody who has the model whether a single "
        f"{one} was among what it learnt from. A coin is right in 50 of 100 tries; even somebody who knows "
        f"everything else is right at most {', and '.join(rights)}.{several}"
    )


def _of_whom(subject: CardSubject, bounds: dict[int, list[int]], right: int) -> str:
    """Whose cases a figure is about, where not all have the same."""
    if len(bounds) == 1:
        return ""
    clients = [client for index in bounds[right] for client in subject.plan.groups[index].clients]
    if len(subject.parties) > MOST_NAMED or not subject.parties:
        return f" for {len(clients)} of the participants"
    return f" for {_listed([subject.parties[client] for client in sorted(clients)])}"


def who_and_what(subject: CardSubject) -> list[str]:
    """The parties with their budgets, the purpose, the period and the columns."""
    lines, columns = [], subject.columns
    if columns is not None:
        lines += [
            f"* purpose: {columns.purpose or 'not declared'}",
            f"* records from: {columns.period or 'not declared'}",
            f"* predicted: {columns.label}, {_outcomes(subject)}",
            f"* from these columns: {', '.join(columns.inputs)}",
        ]
    if 0 < len(subject.parties) <= MOST_NAMED:
        plan = subject.plan
        offered: Sequence[float] = subject.config.privacy.client_budgets or ()
        lines += ["", "| party | budget epsilon | offered | spent so far |", "|---|---:|---:|---:|"]
        for client, name in enumerate(subject.parties):
            group = group_of(plan, client)
            budget, spent = (
                (f"{plan.groups[group].epsilon:g}", f"{subject.spent[group]:.2f}")
                if plan.private
                else ("none", "")
            )
            own = f"{offered[client]:g}" if offered else budget
            lines.append(f"| {name} | {budget} | {own} | {spent} |")
    return ["## Who and what", "", *lines, ""] if lines else []


def _outcomes(subject: CardSubject) -> str:
    columns = subject.columns
    if columns is None or columns.label_range is None:
        return "" if columns is None else " or ".join(columns.class_names)
    low, high = columns.label_range
    return f"a number from {low:g} to {high:g}"


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
