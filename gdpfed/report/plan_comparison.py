"""Plans side by side: a block for each meaning of epsilon, and in words what each means."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table

from gdpfed.methods.base import Method
from gdpfed.privacy.mechanisms.scheduled_sums import limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.client_report import number_or_none
from gdpfed.report.console import Fitted
from gdpfed.report.turns_report import against_whom

EVERYBODY = "everybody in every round"
OUTSIDERS = "Epsilon against outsiders (privacy.against=outsiders): the sample is a secret"
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
    return Group(
        *_block([row for row in rows if row.against == "outsiders"], _outsiders_table()),
        "",
        *_block([row for row in rows if row.against == "everyone"], _everyones_table(rows)),
        "",
        NOISE_IN_WORDS,
    )


def _block(rows: Sequence[ComparedPlan], table: Table) -> Iterator[Fitted | str]:
    reasons = list(dict.fromkeys(row.planned for row in rows if isinstance(row.planned, str)))
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


def _outsiders_table() -> Table:
    return _empty_table(OUTSIDERS, "epsilon, outsiders", "epsilon, server", "turns, 99 %", *COST)


def _everyones_table(rows: Sequence[ComparedPlan]) -> Table:
    hidden = all(row.planned.plan.sums_hidden for row in rows if not isinstance(row.planned, str))
    title, whom = (EVERYONE, "everyone") if hidden else (ALL_BUT_THE_SERVER, "all but server")
    return _empty_table(title, f"epsilon, {whom}", "turns at most", "rounds apart", *COST)


def _empty_table(title: str, *figures: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    for heading in ("method", "accountant"):
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def _groups(against: str, plan: PrivacyPlan) -> Iterator[tuple[str, ...]]:
    """The columns between accountant and cost, of every group."""
    if against == "everyone":
        for group, own in zip(plan.groups, limits_of(plan), strict=True):
            yield f"{group.epsilon:g}", str(own.most_turns), str(own.separation)
        return
    for group in plan.groups:
        most = str(group.participations_p99)
        yield number_or_none(group.epsilon, "g"), number_or_none(group.epsilon_against_server, ".2f"), most


def _words(rows: Sequence[ComparedPlan]) -> Iterator[str]:
    """What the epsilons of a block mean, and of everybody in every round whether it has the least noise."""
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
