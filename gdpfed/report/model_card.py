"""Writes the model card: what was trained, and what the privacy guarantee covers and does not cover."""

import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from gdpfed.clients.versions import versions_here
from gdpfed.decimal_numbers import counted
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.learning.task import Task
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.report.chance import base_rate_line
from gdpfed.report.markdown import in_markdown
from gdpfed.report.mechanism_reports import CardSubject, report_of
from gdpfed.report.metric_display import ABSENT, TOO_FEW, MetricDisplay
from gdpfed.report.parts import INTERVALS
from gdpfed.report.party_lines import MOST_NAMED, group_of
from gdpfed.report.plan_lines import chosen_by_data_lines, given_lines, norm_section, vote_section
from gdpfed.runs.round_log import last_evaluated

if TYPE_CHECKING:
    from gdpfed.rounds.extensions.held_out import HeldOutResult

NOTHING_PROMISED = "Nothing: updates were neither clipped nor noised."
ONE = {"client": "participant", "record": "case", "person": "person"}
"""What a card calls what is protected."""
CHOSEN = (
    "* these figures are of the released model, which an extension chose: it is not that of the last round"
)
COUNTS_ALONE = " It predicts nothing: its numbers are noised counts, and statistics.json says what they tell."
NOTHING_COVERED = "Everything, see above."


def model_card(subject: CardSubject) -> str:
    """Write the model card in Markdown; names from users' data are escaped."""
    subject = in_markdown(subject)
    config = subject.config
    report, private = report_of(subject.plan), subject.plan.private
    # Steps may differ between rounds.
    steps = sorted({each.record_steps for group in subject.plan.groups for each in group.ranges})
    local = "" if steps[-1] else "local "
    if not steps[-1]:
        steps = [config.training.local_steps]
    many = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]}"
    return "\n".join(
        [
            f"# {config.dataset.model} on {config.dataset.name}, trained by {config.method.name}",
            "",
            f"* data set: {config.dataset.name}, {counted(config.dataset.num_clients, 'client')}, "
            f"{config.dataset.partition} partition",
            f"* model: {config.dataset.model}, {many} {local}step{'' if many == '1' else 's'} a round",
            f"* method: {config.method.name}, secure aggregation {config.secagg.mode}",
            f"* loss: {config.dataset.loss}, metrics: {_named(config.dataset.metrics, 'the usual ones')}, "
            f"extensions: {_named(config.run.extensions, 'none')}",
            f"* rounds: {_rounds_done(subject)}",
            *(
                ["* released: an average of the models of all rounds"]
                if config.method.average != "none"
                else []
            ),
            *(_server_test_lines(subject) if subject.predicts else []),
            *([] if subject.at_chance is None else [f"* **{subject.at_chance.line}**"]),
            f"* date: {datetime.now(UTC):%Y-%m-%d}",
            f"* versions: {versions_here()}",
            "",
            *in_plain_words(subject),
            *who_and_what(subject),
            *vote_section(subject.plan, subject.vote),
            *norm_section(subject.plan, subject.norms),
            *_held_out_section(subject),
            *_parts_section(subject),
            "## What is promised",
            "",
            *(report.promise(subject) if private else [NOTHING_PROMISED]),
            "",
            "## What is not covered",
            "",
            *(report.not_covered(subject) if private else [NOTHING_COVERED]),
            *(f"* {line}" for line in chosen_by_data_lines(subject.config)),
            *(f"* {line}" for line in given_lines(subject.config)),
            "",
        ]
    )


def _named(names: Collection[str] | None, otherwise: str) -> str:
    return ", ".join(names or ()) or otherwise


def _server_test_lines(subject: CardSubject) -> list[str]:
    """Return the model's metrics on the server's test data, or say that the server did not test."""
    if subject.config.run.evaluation == "nodes":
        sums = "there is no sum of their counts" if subject.held_out is None else "the sum stands below"
        return [
            "* on the server's test set: not evaluated; run.evaluation=nodes has clients count on records "
            f"that they hold out, and {sums}"
        ]
    lines = [*_metric_lines(subject), *base_rate_lines(subject)]
    if subject.labels_beyond and subject.labels_beyond[0]:
        beyond, count = subject.labels_beyond
        share = f"{beyond} of {count} ({100 * beyond / count:.1f} %)"
        lines.append(
            f"* labels of the test set beyond the declared range: {share}. Training takes the end of the "
            "range for such a label; these errors are against the labels as they are"
        )
    return lines


def labels_beyond(task: Task) -> tuple[int, int] | None:
    """Count test labels beyond the declared range, and all test labels; None if labels are not numbers."""
    data = task.load()
    if data.target_range is None or not len(data.test):
        return None
    return int(data.beyond_range.sum()), len(data.test)


def _metric_lines(subject: CardSubject) -> list[str]:
    records, end = subject.records, subject.end
    if not records:
        return ["* accuracy on the server's test set: not measured yet"]
    last = last_evaluated(records)
    judged = last if end is None else end.judged(last)
    found = judged.metrics or {DEFAULT: judged.accuracy}
    shown = [(MetricDisplay.of(name), value) for name, value in found.items()]
    after = "" if judged is not last or last is records[-1] else f" after round {last.round}"
    lines = [f"* {each.words} on the server's test set{after}: {each.text(value)}" for each, value in shown]
    return lines if judged is last else [*lines, CHOSEN]


def _held_out_section(subject: CardSubject) -> list[str]:
    found, planned = subject.held_out, subject.plan.held_out
    if found is None:
        return []
    if planned is not None:
        cost = f"A record that is held out pays for this alone: epsilon {planned.epsilon:.3g}."
    elif subject.plan.private:
        cost = "It is paid for as the last round of the budgets below."
    else:
        cost = "Nothing was promised for them."
    both = subject.config.run.evaluation == "both"
    left = "" if both else "No record left its client. "
    # How many clients there were may reveal the draw of the last round.
    secret = subject.plan.sample_is_secret and not subject.config.run.show_cohorts
    hidden = secret and found.weighs == "clients"
    who = "the clients of the last round" if hidden else f"{found.clients} clients"
    # Clients may have sent averages alone, without numbers of records.
    cases = "" if found.cases is None else f", about {max(0.0, found.cases):.0f} records"
    return [
        "## Results on records that clients hold out",
        "",
        f"One sum over {who}, in which {found.weighs} count alike{cases}, with noise of standard deviation "
        f"{found.noise_stddev:.3g} in every count. In brackets is what noise and chance leave open (95 %).",
        "",
        *(f"* {line}" for line in found.lines),
        "",
        *held_out_by_client(subject, found),
        f"{left}None of these records was trained on. {cost}",
        "",
    ]


def held_out_by_client(subject: CardSubject, found: "HeldOutResult") -> list[str]:
    """Return a Markdown table of each client's results on held-out records; [] if only sums are known."""
    if not found.parties:
        return []
    from gdpfed.rounds.extensions.held_out import in_percent

    names = list(found.metrics)
    rows = []
    for each in found.parties:
        called = subject.parties[each.client] if subject.parties else f"client {each.client}"
        figures = [in_percent(each.metrics[name]) for name in names]
        shown = figures if each.cases >= FEWEST else [TOO_FEW] * len(names)
        rows.append(f"| {called} | {max(0.0, each.cases):.0f} | {' | '.join(shown)} |")
    return [
        f"Each client's own counts carry noise of {found.noise_stddev / math.sqrt(found.clients):.3g}. The "
        f"number of its records is the sum of such counts. Of fewer than {FEWEST} records nothing is shown.",
        "",
        f"| records of | number, about | {' | '.join(names)} |",
        "|---|---:|" + "---|" * len(names),
        *rows,
        "",
    ]


def _parts_section(subject: CardSubject) -> list[str]:
    if subject.parts is None or not subject.records:
        return []
    names = list(subject.parts.all[0].metrics)
    shown = [MetricDisplay.of(name) for name in names]
    rows = []
    for part in subject.parts.all:
        cells = [
            figure if interval == ABSENT else f"{figure} ({interval})"
            for figure, interval in map(part.shown, names)
        ]
        rows.append(f"| {part.name} | {part.examples} | {' | '.join(cells)} |")
    return [
        "## Results by party and by budget",
        "",
        f"| test examples of | number | {' | '.join(each.words for each in shown)} |",
        "|---|---:|" + "---:|" * len(names),
        *rows,
        "",
        f"{INTERVALS} These examples were not trained on, and the figures carry no noise: no budget covers "
        "them.",
        "",
    ]


def _rounds_done(subject: CardSubject) -> str:
    done, planned = len(subject.records), subject.plan.num_rounds
    if done >= planned:
        return f"{planned}, complete"
    if subject.config.run.stop_after_round is not None and done >= subject.config.run.stop_after_round:
        return f"{done} of {planned}, paused: it may go on"
    if subject.end is not None and subject.end.early:
        return f"{done} of {planned}, ended {subject.end.early}"
    return f"{done} of {planned}, ended early"


def base_rate(task: Task) -> tuple[str, float] | None:
    """Return the most frequent test class and its share of test examples; None without classes."""
    data = task.load()
    if not data.labels.is_one_class or not len(data.test):
        return None
    counts = data.labels.counts(data.test.y)
    largest = int(counts.argmax())
    return data.named_classes[largest], float(counts[largest] / counts.sum())


def base_rate_lines(subject: CardSubject) -> list[str]:
    """Return the model card's line on how often a constant guess of the most frequent class is right."""
    return [] if subject.base_rate is None else [base_rate_line(*subject.base_rate)]


def in_plain_words(subject: CardSubject) -> list[str]:
    """Explain the privacy guarantee in a paragraph for readers who do not know differential privacy."""
    count = subject.config.dataset.num_clients
    named = 0 < len(subject.parties) <= MOST_NAMED
    who = _listed(subject.parties) if named else f"{count} participants"
    columns = subject.columns
    if not subject.predicts:
        what = COUNTS_ALONE
    elif columns is None:
        what = ""
    else:
        what = f" It tells '{', '.join(columns.label_names)}' from {len(columns.inputs)} facts about a case."
    return [
        "## In plain words",
        "",
        f"{who} have made one model together.{what} {_how_much(subject)} The model knows no more than was in "
        "the data that it learnt from, and it errs; this card says how often.",
        "",
    ]


def _how_much(subject: CardSubject) -> str:
    """Say how well an attacker can tell whether one client or record was part of the training."""
    plan = subject.plan
    if not plan.private:
        return (
            "Nothing was done to hide what it learnt from: whoever has the model may find out facts of "
            "single cases, so it is to be kept as safe as the data themselves."
        )
    one = ONE[plan.protected]
    bounds: dict[int, list[int]] = {}
    for index in range(len(plan.groups)):
        numbers = range(max(1, len(record_groups(plan.mechanism, index))))
        accuracies = [
            plan.inference_bound(index, subject.charged_rounds, number).accuracy_at_even_odds
            for number in numbers
        ]
        bounds.setdefault(int(np.ceil(100 * max(accuracies))), []).append(index)
    rights = []
    for right, groups in sorted(bounds.items()):
        held = [plan.groups[index].clients for index in groups]
        if len(bounds) == 1:
            whom = ""
        elif len(subject.parties) > MOST_NAMED or not subject.parties:
            whom = f" for {sum(map(len, held))} of the participants"
        else:
            named = [subject.parties[client] for client in sorted(chain.from_iterable(held))]
            whom = f" for {_listed(named)}"
        rights.append(f"in {right} of 100 tries{whom}")
    several = " A person with several cases is protected less than one case." if one == "case" else ""
    if plan.works != ("dp_sgd",) and not plan.sums_hidden:
        several += " Whoever ran the server saw what each one handed over, and from them nothing is hidden."
    return (
        "Chance was mixed into all that it learnt, to hide from everybody who has the model whether a single "
        f"{one} was among what it learnt from. Suppose that a coin decides whether one {one} is, and "
        "somebody guesses what it showed: without the model that is right in 50 of 100 tries, and with it, "
        f"for who knows everything else, at most {', and '.join(rights)}. That is said of one {one} and one "
        "question: who knew before that it was probably there is right more often, with the model or "
        f"without, and the surest guess among many of them may be surer.{several}"
    )


def who_and_what(subject: CardSubject) -> list[str]:
    """Describe the data's purpose, period and columns, and list the parties with their privacy budgets."""
    lines, columns = [], subject.columns
    if columns is not None:
        lines += [
            f"* purpose: {columns.purpose or 'not declared'}",
            f"* records from: {columns.period or 'not declared'}",
            f"* predicted: {', '.join(columns.label_names)}{_labels_in_words(columns)}",
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


def _labels_in_words(columns: Columns) -> str:
    if columns.label_set:
        return ": none, one or several of them"
    if columns.times is not None:
        return f": the time to an event, in {columns.num_classes} intervals up to {columns.times.horizon:g}"
    if columns.label_range is None:
        return f", {' or '.join(columns.class_names)}"
    low, high = columns.label_range
    return f", a number from {low:g} to {high:g}"


def _listed(names: Sequence[str]) -> str:
    """Join names for a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
