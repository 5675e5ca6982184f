"""A privacy plan as a table, several side by side for each meaning of epsilon, and proposals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import fill

from rich.console import Console, Group
from rich.text import Text

from gdpfed.methods.base import Method
from gdpfed.methods.choose import Choice
from gdpfed.privacy.mechanisms.scheduled.mechanism import limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import WIDTH, Fitted, rich_table
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.plan_lines import against_whom, number_or_none, replacement_line


def plan_table(method: Method) -> Fitted | Group:
    """Return the method's own tables, or the one of its mechanism."""
    if own := method.plan_tables():
        parts: list[Fitted | str] = []
        for each in own:
            table = rich_table(each.title, each.headings, each.rows, left=each.text_columns)
            parts += [Fitted(table), *each.notes]
        if method.plan.private:
            parts.append(replacement_line(method.plan))
        return Group(*parts)
    return Fitted(report_of(method.plan).table(method))


def plan_lines(method: Method) -> list[str]:
    """The table as plain text lines, for a log."""
    console = Console(file=StringIO(), width=WIDTH, no_color=True, record=True, force_jupyter=False)
    console.print(plan_table(method))
    return console.export_text().splitlines()


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


def choice_report(choice: Choice) -> Group:
    """Return a table of the numbers of rounds, a reason for each setting, and all of them to paste."""
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
    parts = [fill(WHAT_IT_IS, CHOICE_WIDTH), *reasons, f"to paste:\n{paste}\n"]
    if not choice.candidates:
        parts[0] = fill(OF_RECORDS, CHOICE_WIDTH)
    tables = [Fitted(rich_table("rounds compared", headings, rows))] if rows else []
    return Group(*tables, *(Text(part) for part in parts))


EVERYBODY = "everybody in every round"
OUTSIDERS = "Epsilon against outsiders (privacy.against=outsiders): the sample is a secret"
OUTSIDERS_HEADINGS = ("epsilon, outsiders", "epsilon, server", "turns, 99 %")
EVERYONE = "Epsilon against everyone (privacy.against=everyone): nothing is a secret"
ALL_BUT_THE_SERVER = (
    "Epsilon against all but the server (privacy.against=everyone with secagg=off): it sees every update"
)
ROUNDING = 1e-9
COST = ("messages a round", "noise per step")
NOISE_IN_WORDS = (
    "Noise per step: what a round adds to a parameter, for a step of one clipping norm; of noise that is "
    "taken back, what stays in the last model. Messages: updates, and corrections, by which members take "
    "back noise that they have added."
)


@dataclass(frozen=True)
class ComparedPlan:
    """One row: whom epsilon holds against, the method, its accountant, and its plan or why it is refused."""

    against: str
    name: str
    accountant: str
    planned: Method | str


def plan_comparison(rows: Sequence[ComparedPlan]) -> Group:
    """Return a table for each meaning of epsilon, one line a group; below it why any plan was refused."""
    hidden = all(row.planned.plan.sums_hidden for row in rows if not isinstance(row.planned, str))
    title, whom = (EVERYONE, "everyone") if hidden else (ALL_BUT_THE_SERVER, "all but server")
    headings = f"epsilon, {whom}", "turns at most", "rounds apart"
    return Group(
        *_block([row for row in rows if row.against == "outsiders"], OUTSIDERS, OUTSIDERS_HEADINGS),
        "",
        *_block([row for row in rows if row.against == "everyone"], title, headings),
        "",
        NOISE_IN_WORDS,
    )


def _block(rows: Sequence[ComparedPlan], title: str, figures: Sequence[str]) -> Iterator[Fitted | str]:
    reasons = list(dict.fromkeys(row.planned for row in rows if isinstance(row.planned, str)))
    left = ("method", "accountant")
    table = rich_table(title, (*left, *figures, *COST), (), left=left, show_lines=True)
    for row in rows:
        if isinstance(row.planned, str):
            table.add_row(row.name, row.accountant, f"refused ({reasons.index(row.planned) + 1})")
            continue
        plan = row.planned.plan
        columns = ("\n".join(column) for column in zip(*_groups(row.against, plan), strict=True))
        noise = row.planned.weighting.noise_per_step(plan)
        table.add_row(row.name, row.accountant, *columns, f"{plan.messages_a_round:.1f}", f"{noise:.5f}")
    yield Fitted(table)
    yield from _words(rows)
    yield from (f"({number}) {reason}" for number, reason in enumerate(reasons, start=1))


def _groups(against: str, plan: PrivacyPlan) -> Iterator[tuple[str, ...]]:
    """The columns between accountant and cost, for each group."""
    if against == "everyone":
        for group, own in zip(plan.groups, limits_of(plan), strict=True):
            yield f"{group.epsilon:g}", str(own.most_turns), str(own.separation)
        return
    for group in plan.groups:
        most = str(group.participations_p99)
        yield number_or_none(group.epsilon, "g"), number_or_none(group.epsilon_against_server, ".2f"), most


def _words(rows: Sequence[ComparedPlan]) -> Iterator[str]:
    """Say what the epsilons of a block mean, and whether asking everybody every round has least noise."""
    planned = {row.name: row.planned for row in rows if not isinstance(row.planned, str)}
    private = [each.plan for each in planned.values() if each.plan.private]
    if not private:
        return
    if rows[0].against == "everyone":
        yield f"{against_whom(private[0])} No party of these has a larger figure."
        if EVERYBODY in planned:
            yield _everybody(planned)
        return
    larger = "against them epsilon, server holds, of a client with as many turns as 99 of 100 have at most."
    seen = "secure aggregation is off, the server sees every update, and nothing holds against it."
    yield (
        "Epsilon, outsiders: against whoever gets the models and is told nothing of who took part when. It "
        "does not hold against the server, which draws the sample, nor against members of the same sums: "
        f"{larger if private[0].sums_hidden else seen}"
    )


def _everybody(planned: Mapping[str, Method]) -> str:
    noise = {name: each.weighting.noise_per_step(each.plan) for name, each in planned.items()}
    least = noise[EVERYBODY] <= min(noise.values()) * (1 + ROUNDING)
    return (
        f"{EVERYBODY.capitalize()} sends {planned[EVERYBODY].plan.messages_a_round:.0f} messages a round and "
        f"has plain noise, {'' if least else 'not '}the least noise here: best where messages allow it "
        "(privacy.sampling_rate=1 privacy.noise_taps=0)."
    )
