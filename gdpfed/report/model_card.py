"""The model card: it says what was trained, what is promised to whom, and what is not."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import exp, isinf

from conf.schema import FIRST_SEEN, Config
from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.methods.plan_tables import CardText
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.inference_lines import inference_lines
from gdpfed.report.metric_display import MetricDisplay
from gdpfed.report.parts import Parts
from gdpfed.report.plan_warnings import chosen_by_data_lines, large_delta_lines
from gdpfed.report.record_card import record_not_covered, record_promise
from gdpfed.runs.round_log import RoundLogEntry

PACKAGES = ("gdpfed", "flwr", "torch", "dp-accounting")

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
* the test set of the server, on which the results above were measured
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


@dataclass(frozen=True, kw_only=True)
class CardSubject:
    """The contents of a card: configuration, plan, records, and spent epsilon.

    Attributes:
        records: of the rounds so far.
        spent: epsilon of every group.
        against_server: epsilon against the server of every group, of the client that took part most often. It
            follows from the cohorts, and is shown where these are no secret.
        charged_rounds: how many rounds the ledger was charged.
        own: what the method says of its promise.
        parts: results by party and by budget; None where test examples have no owners.
    """

    config: Config
    plan: PrivacyPlan
    records: Sequence[RoundLogEntry]
    spent: Sequence[float]
    against_server: Sequence[float]
    charged_rounds: int
    own: CardText
    parts: Parts | None = None


def model_card(subject: CardSubject) -> str:
    """The card as Markdown."""
    config, records = subject.config, subject.records
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
            *_results(records),
            f"* date: {datetime.now(UTC):%Y-%m-%d}",
            f"* versions: {_versions()}",
            "",
            *_by_party(subject),
            "## What is promised",
            "",
            *_promise(subject),
            "",
            "## What is not covered",
            "",
            *_not_covered(subject),
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
    plan = subject.plan
    if plan.unit == "client":
        return f"{subject.config.training.local_steps} local steps"
    steps = sorted({each.record_steps for group in plan.groups for each in group.ranges})
    return f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"


def _rounds(subject: CardSubject) -> str:
    done, planned = len(subject.records), subject.plan.num_rounds
    if done >= planned:
        return f"{planned}, complete"
    if subject.config.run.stop_after_round is not None and done >= subject.config.run.stop_after_round:
        return f"{done} of {planned}, paused: it may go on"
    return f"{done} of {planned}, ended early"


def _promise(subject: CardSubject) -> list[str]:
    plan, own = subject.plan, subject.own
    if not plan.private:
        return ["Nothing: updates were neither clipped nor noised."]
    if own.promise:
        return [*own.promise]
    if plan.unit == "record":
        inference = inference_lines(plan, subject.charged_rounds)
        return [*record_promise(plan, subject.spent), *inference, "", *own.also]
    words = ADJACENCY_IN_WORDS[plan.adjacency]
    lines = [
        "Take any client, with everything it holds. Whoever sees the models of this run, and is told nothing "
        f"of who took part in its rounds, can hardly tell them from those that came out if it {words}: "
        "the probability of anything they might conclude changes at most by the factor exp(epsilon), up to "
        f"delta = {plan.delta:.3g}. That is client-level ({plan.adjacency}) differential privacy.",
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
    factors = [f"{_factor(group.epsilon)} (group {index})" for index, group in enumerate(plan.groups)]
    return [
        *lines,
        "",
        "In plain words: that a client takes part multiplies the probability of anything by at most "
        f"{', '.join(factors)}. The server knows whom it asked, and every member of a sum is told "
        f"{TOLD_TO_MEMBERS[subject.config.secagg.mode]}. So against them the larger figures hold, of "
        "a client that takes part in K rounds: 99 of 100 take part in no more. (How often anybody did is a "
        f"secret of the server, which the epsilon rests on.) Accounted with {plan.accountant} for "
        f"{plan.sampling} sampling and {plan.noise} noise; `gdpfed audit` computes the figures a second "
        "time.",
        *inference_lines(plan, subject.charged_rounds),
        "",
        *own.also,
    ]


def _not_covered(subject: CardSubject) -> list[str]:
    if not subject.plan.private:
        return ["Everything, see above."]
    if subject.own.not_covered:
        return [*subject.own.not_covered]
    if subject.plan.unit == "record":
        return record_not_covered(subject.plan)
    if not subject.plan.sums_hidden:
        return [SERVER_MAY_SEE, NOT_COVERED]
    secagg = subject.config.secagg
    if secagg.mode == "curious":
        return [SERVER_FOLLOWS, NOT_COVERED]
    return [*([SERVER_SEEN_FIRST] if secagg.identities == FIRST_SEEN else []), NOT_COVERED]


def _figure(value: float) -> str:
    return "no bound" if isinf(value) else f"{value:.2f}"


def _factor(epsilon: float) -> str:
    return f"{exp(min(epsilon, 700)):.3g}"


def _versions() -> str:
    return ", ".join(
        [*(f"{name} {_version(name)}" for name in PACKAGES), f"Python {platform.python_version()}"]
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed as a package)"
