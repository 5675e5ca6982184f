"""The tables of a comparison of runs: results and costs, differences seed by seed, and budgets."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdpfed.errors import ReportError, printable
from gdpfed.record_steps import kind_of
from gdpfed.report.comparison import Line
from gdpfed.report.console import Table
from gdpfed.report.evaluated import NOTE
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.metric_display import ABSENT, MetricDisplay, Spread

KILO = 1000

RESULT_HEADINGS = ("run", "seeds", "rounds", "{metric}", "Lambda", "up (kB)", "down (kB)", "s / round")
BUDGET_HEADINGS = (
    *("run", "group", "clients", "rate q", "noise", "against", "epsilon budget", "spent", "vs server"),
)
TRUSTED = "all but server"


def figure_of(line: Line, measure: Callable[[FinishedRun], float | None]) -> Spread | None:
    """Return mean and standard deviation of a quantity over those runs that measured it; None if none did."""
    values = [value for value in map(measure, line.runs) if value is not None]
    return Spread.of(values) if values else None


def one_metric(lines: Sequence[Line]) -> str:
    """Return the name of the metric that all compared configurations show.

    Raises ReportError: they show different ones.
    """
    by_name = {line.metric: line.label for line in reversed(lines)}
    if len(by_name) > 1:
        named = ", ".join(f"{label}: {name}" for name, label in by_name.items())
        raise ReportError(f"the runs show different metrics ({named}): report on those of one metric")
    return next(iter(by_name))


def kilobytes_up(run: FinishedRun) -> float | None:
    """Return how many kB a client sends in a round that it takes part in."""
    return None if run.upload_bytes is None else run.upload_bytes / KILO


def kilobytes_down(run: FinishedRun) -> float:
    """Return how many kB of model a client receives in a round that it takes part in."""
    return run.download_bytes / KILO


def noise_magnitude(run: FinishedRun) -> float:
    """Return Lambda from a run's plan: the noise magnitude of the GDPFed paper (variance per parameter)."""
    return float(run.plan["weighting"]["noise_magnitude"])


def results_table(lines: Sequence[Line]) -> Table:
    """Return a table of results and costs with one row for each configuration.

    Raises ReportError: lines that show different metrics.
    """
    metric = MetricDisplay.of(one_metric(lines))
    seeds = max(len(line.runs) for line in lines)
    spread = ", mean ± standard deviation over the seeds" if seeds > 1 else ""
    unknown = "" if all(line.evaluated for line in lines) else f" {NOTE}"
    timed = all(run.seconds_a_round is not None for line in lines for run in line.runs)
    hidden = "" if timed else f" Seconds: {ABSENT} where they tell of a secret draw (run.show_cohorts)."
    sums = all(run.upload_bytes is not None for line in lines for run in line.runs)
    unsent = "" if sums else f"; {ABSENT}: no round made a sum"
    measures = ((noise_magnitude, ".3g"), (kilobytes_up, ".1f"), (kilobytes_down, ".1f"))
    rows = []
    for line in lines:
        costs = [(figure_of(line, measure), form) for measure, form in measures]
        seconds = figure_of(line, lambda run: run.seconds_a_round)
        rows.append(
            [
                line.label,
                str(len(line.runs)),
                str(len(line.runs[0].records)),
                line.final_result.text(MetricDisplay.of(line.metric).form),
                *(ABSENT if cost is None else format(cost.mean, form) for cost, form in costs),
                ABSENT if seconds is None else seconds.text(".2f"),
            ]
        )
    return Table(
        title=f"{metric.words[0].upper()}{metric.words[1:]} and cost",
        headings=[heading.format(metric=metric.heading) for heading in RESULT_HEADINGS],
        rows=rows,
        note=(
            f"Test {metric.words} after the last round{spread}. Lambda: noise magnitude, the expected "
            "squared noise a parameter. Up and down: update and model as they are sent, in kB for a client "
            f"in a round that it takes part in{unsent}.{hidden}{unknown}"
        ),
    )


def differences_table(lines: Sequence[Line]) -> Table | None:
    """Return a table of how each configuration's result differs from the first one's.

    It is None if no configuration has two seeds in common with the first.

    With differences d_1, ..., d_n of the seeds that both lines have, the interval is
    mean(d) ± t(0.975, n - 1) sd(d) / sqrt(n), Student's t.
    """
    first, shown = lines[0], MetricDisplay.of(one_metric(lines))
    of_first = {run.seed: run.final_result for run in first.runs}
    rows = []
    for line in lines[1:]:
        if not (first.evaluated and line.evaluated):
            continue
        paired = [run.final_result - of_first[run.seed] for run in line.runs if run.seed in of_first]
        if len(paired) < 2:
            continue
        differences = Spread.of(paired)
        shown_differences = differences.text(shown.form), ends_of(differences, shown.form)
        rows.append([line.label, str(differences.count), *shown_differences])
    if not rows:
        return None
    return Table(
        title=f"Differences to {first.label}, by seed",
        headings=("run", "seeds", f"{shown.heading} more", "95 % interval"),
        rows=rows,
        note=(
            "Mean ± standard deviation of the differences of runs with the same seed. An interval with zero "
            "in it shows no order of the two."
        ),
    )


def ends_of(spread: Spread, form: str = ".1f") -> str:
    """Write the mean's 95 % interval, as "+0.4 to +1.6" with signs; nothing for one value."""
    half = spread.half_width()
    return "" if half is None else f"{spread.mean - half:+{form}} to {spread.mean + half:+{form}}"


def seeds_table(lines: Sequence[Line]) -> Table:
    """Return a table of plain numbers with one row for each run, for other programs to read."""
    groups = max(len(run.plan["groups"]) for line in lines for run in line.runs)
    headings = (
        "run",
        "dataset",
        "method",
        "seed",
        "metric",
        "result",
        "lambda",
        "kb_up",
        "kb_down",
        "seconds",
    )
    rows = []
    for line in lines:
        for run in line.runs:
            names = [line.label, *(str(run.settings[group]["name"]) for group in ("dataset", "method"))]
            spent = [*run.records[-1].spent_epsilon, *[None] * groups][:groups]
            figures = (run.final_result, noise_magnitude(run), kilobytes_up(run), kilobytes_down(run))
            numbers = [
                "" if each is None or math.isnan(each) else f"{each:.10g}"
                for each in (*figures, run.seconds_a_round, *spent)
            ]
            rows.append([*names, str(run.seed), run.metric, *numbers, printable(str(run.path))])
    return Table(
        title="Every run",
        headings=[*headings, *(f"spent_{index}" for index in range(groups)), "path"],
        rows=rows,
    )


def budgets_table(lines: Sequence[Line]) -> Table:
    """Return a table of budgets and spent epsilon, with one row for each group of clients."""
    return Table(
        title="Privacy budgets",
        headings=BUDGET_HEADINGS,
        rows=[
            [
                line.label if index == 0 else "",
                str(index),
                str(group["clients"]),
                f"{100 * group['sampling_rate']:.2f} %",
                _noise(group),
                whom_it_holds_against(line.runs[0].plan),
                _epsilon([group["epsilon"]]),
                _epsilon([run.records[-1].spent_epsilon[index] for run in line.runs]),
                _epsilon([group["epsilon_against_server"]]),
            ]
            for line in lines
            for index, group in enumerate(line.runs[0].plan["groups"])
        ],
        note=(
            "Budget and spent hold against those that the column against names. Outsiders do not know who "
            "was sampled; the server and the members of a sum may know it. Against these the figure in the "
            "column vs server holds. It assumes a client that takes part in as many rounds as 99 of 100 "
            "clients do not exceed. None: no bound holds against the server, which sees single updates. "
            "Noise is that of the plan, a standard deviation in clipping norms: of a client's update, or of "
            "a record's gradient in a step."
        ),
    )


def _noise(group: Mapping[str, Any]) -> str:
    """Return the noise of a group in a plan: that of its records if these are protected, else of its sum."""
    if "spending" in group:
        return "each client's"
    return f"{group.get('records', group)['noise_multiplier']:.4g}"


def whom_it_holds_against(plan: Mapping[str, Any]) -> str:
    """Return against whom a saved plan's epsilon holds, such as everyone; a dash for no privacy.

    Batches of records are drawn on the clients, unknown to everybody, and noise of a client's own hides its
    contribution from whoever sees it: there it needs no secret sample of clients.
    """
    if not plan["private"]:
        return ABSENT
    if all(kind_of(work).own_noise for work in plan["works"]):
        return "everyone"
    if plan["sampling"] != "scheduled" and plan["mechanism"] != "record_sums":
        return "outsiders"
    return "everyone" if plan["sums_hidden"] else TRUSTED


def _epsilon(values: Sequence[float | None]) -> str:
    """Return the largest of these epsilons as text; "none" if one of them is None (has no bound)."""
    bounded = [value for value in values if value is not None]
    return f"{max(bounded):.3g}" if len(bounded) == len(values) else "none"
