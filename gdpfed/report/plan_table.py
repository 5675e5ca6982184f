"""Shows a privacy plan as a table, several plans side by side, or proposed settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import fill

from rich.console import Console, Group
from rich.text import Text

from conf.schema import SecAggConfig
from gdpfed.decimal_numbers import counted
from gdpfed.methods.base import Method
from gdpfed.methods.choose import Choice
from gdpfed.privacy.mechanisms.scheduled.mechanism import limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import WIDTH, Fitted, rich_table
from gdpfed.report.facts import Fact, FactLines, Notes
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.messages import messages_a_round
from gdpfed.report.plan_lines import number_or_none, replacement_fact


def plan_table(method: Method, *, details: bool = False, further: Sequence[Fact] = ()) -> Group:
    """Return a privacy plan for display: its tables, then lines with names and values."""
    if own := method.plan_tables():
        parts: list[Fitted | FactLines | Notes] = []
        for each in own:
            parts.append(Fitted(rich_table(each.title, each.headings, each.rows, left=each.text_columns)))
            parts.append(Notes(each.notes))
        facts = [*([replacement_fact(method.plan)] if method.plan.private else []), *further]
        return Group(*parts, FactLines(facts, details=details))
    report = report_of(method.plan)
    table, facts = report.table(method, details=details), [*report.facts(method), *further]
    return Group(Fitted(table), FactLines(facts, details=details))


def heading(method: Method, secagg: SecAggConfig) -> FactLines:
    """Return three lines about a plan: the clients and their budgets, the privacy guarantee, and the cost.

    `secagg`: how sums are made.
    """
    report, plan = report_of(method.plan), method.plan
    promise = (
        report.promise_in_short(plan) if plan.private else "none: updates are neither clipped nor noised"
    )
    cost = f"no noise; {counted(plan.num_rounds, 'round')}"
    if plan.private:
        cost = report.cost_in_short(method, messages_a_round(method, secagg))
    return FactLines([Fact("who", _clients_and_budgets(plan)), Fact("promise", promise), Fact("cost", cost)])


def _clients_and_budgets(plan: PrivacyPlan) -> str:
    """Write the number of clients in a plan, and how many have each budget."""
    clients = f"{plan.num_clients} clients"
    if not plan.private:
        return clients
    sizes = report_of(plan).budgets(plan)
    budgets = sorted(sizes)
    each = f", for each {plan.protected}" if plan.about_records else ""
    if len(budgets) == 1:
        return f"{clients}, a budget of epsilon {budgets[0]:g}{each}"
    if len(budgets) > MOST_BUDGETS:
        return f"{clients}, budgets of epsilon {budgets[0]:g} to {budgets[-1]:g}{each}"
    shares = ", ".join(f"{sizes[budget]} with {budget:g}" for budget in budgets)
    return f"{clients}, epsilon by budget: {shares}{each}"


def plan_lines(method: Method, secagg: SecAggConfig) -> list[str]:
    """Return a privacy plan's heading, table and values as plain lines of text, for a log."""
    console = Console(file=StringIO(), width=WIDTH, no_color=True, record=True, force_jupyter=False)
    console.print(heading(method, secagg))
    console.print(plan_table(method, details=True))
    return console.export_text().splitlines()


MOST_BUDGETS = 4
"""That are told one by one in a heading."""
CHOICE_WIDTH = 80
WHAT_IT_IS = (
    "Estimates in closed form, from the number of clients, their budgets and rate: no data was looked at, so "
    "no budget was spent. They are a start, and not optimal. Way: signal-to-noise ratio of all rounds, as a "
    "part of that of infinitely many rounds."
)

OF_RECORDS = (
    "Estimates in closed form, from the numbers of records, parties and parameters, and the budgets: no "
    "record was looked at, so no budget was spent. They are a start, and not optimal. A run takes them where "
    "nothing else is set."
)

WEAKER = (
    "Weaker than the plan without these settings: with them the budgets hold against outsiders alone, who "
    "are told nothing of who takes part when, and not against the server or members of the same sums. Rounds "
    "and step can be estimated for a secret sample alone. To keep the budgets against everyone, do not paste "
    "this, and choose run.num_rounds yourself; --compare shows both promises."
)


def choice_report(choice: Choice) -> Group:
    """Return the settings to paste, then each with its reason, and the numbers of rounds as a table."""
    rows = [
        (
            f"> {each.num_rounds}" if each.num_rounds == choice.rounds else str(each.num_rounds),
            f"{each.noise_per_step:.4f}",
            f"{100 * each.way:.0f} %",
            f"{each.step:.2f}",
            f"{each.participations:.1f}",
        )
        for each in choice.candidates
    ]
    headings = ("rounds", "noise/step", "way", "server's step", "a client's rounds")
    reasons = [
        fill(f"{each.override}: {each.reason}", CHOICE_WIDTH, subsequent_indent="    ")
        for each in choice.proposals
    ]
    paste = fill(" ".join(choice.overrides), CHOICE_WIDTH, break_on_hyphens=False, break_long_words=False)
    weaker = [f"{fill(WEAKER, CHOICE_WIDTH)}\n"] if choice.weaker else []
    what = WHAT_IT_IS if choice.candidates else OF_RECORDS
    parts = [*weaker, f"to paste:\n{paste}\n", *reasons, f"\n{fill(what, CHOICE_WIDTH)}\n"]
    tables = [Fitted(rich_table("rounds compared", headings, rows))] if rows else []
    return Group(*(Text(part) for part in parts), *tables)


EVERYBODY = "everybody in every round"
SIDE_BY_SIDE = (
    "method",
    "noise, outsiders",
    "epsilon, server",
    "noise, everyone",
    "turns",
    "messages a round",
)
ROUNDING = 1e-9
NOISE_IN_WORDS = (
    "Noise: what a round adds to a parameter, for a step of one clipping norm; of noise that is taken back, "
    "what stays in the last model. Less is better."
)
COLUMNS_IN_WORDS = (
    "Outsiders get the models and are told nothing of who took part when (privacy.against=outsiders). The "
    "budgets do not hold against the server, which draws the sample, nor against members of the same sums: {}"
)
EVERYONE_IN_WORDS = (
    "{}: the budgets hold against them as they are (privacy.against=everyone), by at most these turns. "
    "Messages are those of everyone: updates, and corrections, by which members take back noise that they "
    "have added."
)


@dataclass(frozen=True)
class ComparedPlan:
    """A row of the comparison of privacy plans: one method, its plan or error, and its messages a round.

    Attributes:
        against: whom epsilon holds against.
        name, accountant: of the method.
        planned: the method with its plan, or why it was refused.
        messages: how many clients send in a round on average; 0 where it was refused.
    """

    against: str
    name: str
    accountant: str
    planned: Method | str
    messages: float = 0.0


def plan_comparison(rows: Sequence[ComparedPlan]) -> Group:
    """Return a table of methods with their noise: for promises against outsiders, and against everyone."""
    reasons = list(dict.fromkeys(row.planned for row in rows if isinstance(row.planned, str)))
    cells = dict[str, dict[str, tuple[str, ...]]]()
    for row in rows:
        cells.setdefault(row.name, {})[row.against] = _comparison_cells(row, reasons)
    nothing = ("", "", "")
    shown = [
        (
            name,
            *by_whom.get("outsiders", nothing)[:2],
            *by_whom.get("everyone", nothing)[:2],
            by_whom.get("everyone", by_whom.get("outsiders", nothing))[2],
        )
        for name, by_whom in cells.items()
    ]
    accountant = next((row.accountant for row in rows if row.against == "outsiders"), "")
    table = rich_table(
        f"methods side by side, accountant {accountant}", SIDE_BY_SIDE, shown, left=("method",)
    )
    refused = [f"({number}) refused: {reason}" for number, reason in enumerate(reasons, start=1)]
    return Group(Fitted(table), Notes([*_comparison_notes(rows), *refused]))


def _comparison_cells(row: ComparedPlan, reasons: Sequence[str]) -> tuple[str, ...]:
    """Return three table cells: noise; a client's round limit or its epsilon (see below); messages per round.

    The limit of rounds is shown if the epsilon holds against everyone, else epsilon against the server.
    """
    if isinstance(row.planned, str):
        return f"refused ({reasons.index(row.planned) + 1})", "", ""
    plan = row.planned.plan
    noise, messages = row.planned.weighting.noise_per_step(plan), f"{row.messages:.1f}"
    if not plan.private:
        return "none", "none", messages
    if row.against == "everyone":
        by_group = [str(own.most_turns) for own in limits_of(plan)]
    else:
        by_group = [number_or_none(group.epsilon_against_server, ".2f") for group in plan.groups]
    return f"{noise:.5f}", ", ".join(dict.fromkeys(by_group)), messages


def _comparison_notes(rows: Sequence[ComparedPlan]) -> Iterator[str]:
    """Explain the columns of the comparison of plans in sentences."""
    planned = [(row, row.planned) for row in rows if not isinstance(row.planned, str)]
    private = [(row, method) for row, method in planned if method.plan.private]
    yield NOISE_IN_WORDS
    outsiders = [method.plan for row, method in private if row.against == "outsiders"]
    if outsiders:
        larger = (
            "against them epsilon, server holds, of a client with as many turns as 99 of 100 have at most."
        )
        seen = "secure aggregation is off, the server sees every update, and nothing holds against it."
        yield COLUMNS_IN_WORDS.format(larger if outsiders[0].sums_hidden else seen)
    everyone = {row.name: method for row, method in private if row.against == "everyone"}
    messages = {row.name: row.messages for row, _ in private if row.against == "everyone"}
    if everyone:
        hidden = all(method.plan.sums_hidden for method in everyone.values())
        yield EVERYONE_IN_WORDS.format(
            "Everyone" if hidden else "All but the server, which sees every update"
        )
    if EVERYBODY in everyone:
        noise = {name: each.weighting.noise_per_step(each.plan) for name, each in everyone.items()}
        least = noise[EVERYBODY] <= min(noise.values()) * (1 + ROUNDING)
        yield (
            f"{EVERYBODY.capitalize()} sends {messages[EVERYBODY]:.0f} messages a round and "
            f"has plain noise, {'' if least else 'not '}the least noise here: best where messages allow it "
            "(privacy.sampling_rate=1 privacy.noise_taps=0)."
        )
