"""The model card: it says what was trained, what is promised to whom, and what is not."""

import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.report.card_for_everybody import base_rate_lines, in_plain_words, who_and_what
from gdpfed.report.mechanism_reports import CardSubject, report_of
from gdpfed.report.metric_display import MetricDisplay
from gdpfed.report.plan_warnings import chosen_by_data_lines
from gdpfed.report.vote_lines import vote_section
from gdpfed.runs.round_log import RoundLogEntry

if TYPE_CHECKING:
    from gdpfed.rounds.held_out import HeldOutResult

PACKAGES = ("gdpfed", "flwr", "torch", "dp-accounting")
NOTHING_PROMISED = "Nothing: updates were neither clipped nor noised."
NOTHING_COVERED = "Everything, see above."


def model_card(subject: CardSubject) -> str:
    """The card as Markdown."""
    config, records = subject.config, subject.records
    report, private = report_of(subject.plan), subject.plan.private
    return "\n".join(
        [
            f"# {config.dataset.model} on {config.dataset.name}, trained by {config.method.name}",
            "",
            f"* data set: {config.dataset.name}, {config.dataset.num_clients} clients, "
            f"{config.dataset.partition} partition",
            f"* model: {config.dataset.model}, {_steps(subject)} a round",
            f"* method: {config.method.name}, secure aggregation {config.secagg.mode}",
            f"* rounds: {_rounds(subject)}",
            *(
                ["* released: an average of the models of all rounds"]
                if config.method.average != "none"
                else []
            ),
            *([*_results(records), *base_rate_lines(subject)] if config.run.evaluation != "nodes" else []),
            f"* date: {datetime.now(UTC):%Y-%m-%d}",
            f"* versions: {_versions()}",
            "",
            *in_plain_words(subject),
            *who_and_what(subject),
            *vote_section(subject.plan, subject.vote),
            *_at_clients(subject),
            *_by_party(subject),
            "## What is promised",
            "",
            *(report.promise(subject) if private else [NOTHING_PROMISED]),
            "",
            "## What is not covered",
            "",
            *(report.not_covered(subject) if private else [NOTHING_COVERED]),
            *(f"* {line}" for line in chosen_by_data_lines(subject.config)),
            "",
        ]
    )


def _results(records: Sequence[RoundLogEntry]) -> list[str]:
    if not records:
        return ["* accuracy on the server's test set: not measured yet"]
    found = records[-1].metrics or {DEFAULT: records[-1].accuracy}
    shown = [(MetricDisplay.of(name), value) for name, value in found.items()]
    return [f"* {each.words} on the server's test set: {each.text(value)}" for each, value in shown]


def _at_clients(subject: CardSubject) -> list[str]:
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
    return [
        "## Results on records that clients hold out",
        "",
        f"One sum over {found.clients} clients, in which {found.weighs} count alike, with noise of standard "
        f"deviation {found.noise_stddev:.3g} in every count. In brackets is what noise and chance leave open "
        "(95 %).",
        "",
        *(f"* {line}" for line in found.lines),
        "",
        *_by_client(subject, found),
        f"{left}None of these records was trained on. {cost}",
        "",
    ]


def _by_client(subject: CardSubject, found: "HeldOutResult") -> list[str]:
    """A row a client, where each has counts of its own."""
    if not found.parties:
        return []
    from gdpfed.rounds.held_out import in_percent

    names = list(found.metrics)
    return [
        f"Each client's own counts carry noise of {found.noise_stddev / math.sqrt(found.clients):.3g}.",
        "",
        f"| records of | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
        *(
            f"| {subject.parties[each.client] if subject.parties else f'client {each.client}'} | "
            f"{' | '.join(in_percent(each.metrics[name]) for name in names)} |"
            for each in found.parties
        ),
        "",
    ]


def _by_party(subject: CardSubject) -> list[str]:
    if subject.parts is None or not subject.records:
        return []
    names = list(subject.parts.all[0].metrics)
    shown = [MetricDisplay.of(name) for name in names]
    return [
        "## Results by party and by budget",
        "",
        f"| test examples of | number | {' | '.join(each.words for each in shown)} |",
        "|---|---:|" + "---:|" * len(names),
        *(
            f"| {part.name} | {part.examples} | "
            f"{' | '.join(each.text(part.metrics[name]) for each, name in zip(shown, names, strict=True))} |"
            for part in subject.parts.all
        ),
        "",
        "These examples were not trained on, and the figures carry no noise: no budget covers them.",
        "",
    ]


def _steps(subject: CardSubject) -> str:
    """The local steps; of records as many as the plan has, which may differ from round to round."""
    steps = sorted({each.record_steps for group in subject.plan.groups for each in group.ranges})
    if not steps[-1]:
        return f"{subject.config.training.local_steps} local steps"
    return f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"


def _rounds(subject: CardSubject) -> str:
    done, planned = len(subject.records), subject.plan.num_rounds
    if done >= planned:
        return f"{planned}, complete"
    if subject.config.run.stop_after_round is not None and done >= subject.config.run.stop_after_round:
        return f"{done} of {planned}, paused: it may go on"
    return f"{done} of {planned}, ended early"


def _versions() -> str:
    return ", ".join(
        [*(f"{name} {_version(name)}" for name in PACKAGES), f"Python {platform.python_version()}"]
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed as a package)"
