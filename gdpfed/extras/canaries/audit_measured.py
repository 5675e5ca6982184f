"""The command ``gdpfed audit`` with ``--canaries`` (measure epsilon) or ``--attack`` (attack a model)."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from conf.load import load
from gdpfed.cli.audit_command import without_infinity
from gdpfed.cli.command import make_console, named_path
from gdpfed.decimal_numbers import counted
from gdpfed.errors import ConfigError, ReportError
from gdpfed.extras.canaries.loop_audit import audit_loop, named_loop
from gdpfed.extras.canaries.measure import Measurement, Settings, measure
from gdpfed.extras.canaries.membership import MembershipGuess
from gdpfed.extras.canaries.model_attack import ModelAttack, attack_run
from gdpfed.files import write_whole
from gdpfed.report.console import Fitted, rich_table
from gdpfed.report.plots import line_style, new_figure, new_panels, save, shared_legend, styled
from gdpfed.runs.resume import load_run

MARKS_IN_PICTURE = 8
NOT_ALL_COMPUTED = 3
SEEN_BY = {
    "sums": "all sums",
    "server": "server",
    "everyone": "everyone",
    "updates": "every update",
    "model": "last model",
}
JSON_FILE, PICTURE_FILE = "canaries.json", "canaries.png"


def measure_canaries(options: argparse.Namespace) -> int:
    """Measure epsilon with canaries in simulated runs, print the result, and return the exit status.

    0 where nothing above what is stated was measured and nothing unlike the plan was seen; 1 where it was, or
    where nothing was measured; `NOT_ALL_COMPUTED` where a view or a check could not be computed.
    """
    if options.loop is not None:
        run_and_measure = partial(
            audit_loop, named_loop(options.loop), num_runs=options.runs, confidence=options.confidence
        )
    else:
        words = options.overrides
        if not words or "=" in words[0] or not named_path(words[0]).is_dir():
            config = load(words)
        else:
            begun = load_run([f"run.resume={words[0]}", *words[1:]])
            config = replace(begun, run=replace(begun.run, resume=None))
        settings = Settings(
            kind=options.kind,
            num_runs=options.runs,
            confidence=options.confidence,
            marks=1 if options.output is None else MARKS_IN_PICTURE,
        )
        run_and_measure = partial(measure, config, settings)
    if options.output is not None:
        # Before the measurement, which takes minutes.
        with _writing(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=options.output).close()
    console = Console(stderr=True) if options.json else make_console()
    with Progress(
        TextColumn("simulated runs"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=options.runs)
        measurement = run_and_measure(announce=lambda done: progress.update(task, completed=done))
    if options.output is not None:
        with _writing(options.output):
            write_whole(options.output / JSON_FILE, _as_json(measurement).encode())
            epsilon_over_rounds(measurement, options.output / PICTURE_FILE)
    if options.json:
        print(_as_json(measurement))
    else:
        _print_measurement(console, measurement, options.output)
    if not measurement.passed:
        return 1
    return 0 if measurement.complete else NOT_ALL_COMPUTED


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise ReportError, which names the folder, if the `with` block fails with a file system error."""
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"--output {folder} cannot be written ({error.strerror}): name another folder"
        ) from None


def _as_json(measurement: Measurement) -> str:
    whole = asdict(measurement) | {
        "figures": [asdict(each) | {"held": each.held} for each in measurement.figures],
        "checks": [asdict(each) | {"held": each.held} for each in measurement.checks],
        "passed": measurement.passed,
        "complete": measurement.complete,
    }
    return json.dumps(without_infinity(whole), indent=2, allow_nan=False)


def _figures_table(measurement: Measurement) -> Fitted:
    """Return a table of stated and measured epsilon, one row for each group of clients and attacker."""
    rows: list[tuple[str, ...]] = [
        (
            str(each.group),
            SEEN_BY[each.view] + ("" if each.participations is None else f", K={each.participations}"),
            f"{each.stated:.3g}",
            f"{each.measured:.3g}",
            f"{100 * each.measured / each.stated:.0f} %",
            f"{each.any_law:.3g}",
            str(each.num_canaries),
            "yes" if each.held else "NO",
        )
        for each in measurement.final
    ]
    rows += [
        (each.of.removeprefix("group "), SEEN_BY[each.view], *["-"] * 5, "not computed")
        for each in measurement.not_computed
        if each.view in SEEN_BY
    ]
    return Fitted(
        rich_table(
            f"epsilon at delta {measurement.delta:.3g}, per {measurement.unit}",
            ("group", "seen by", "stated", "measured", "of it", "any law", "canaries", "held"),
            rows,
            left=("seen by",),
        )
    )


def _checks_table(measurement: Measurement) -> Fitted:
    """Return a table of the checks that compare the simulated runs with their privacy plan."""
    rows: list[tuple[str, ...]] = [
        (
            each.looked_at,
            each.of,
            each.measured,
            each.would_find,
            str(each.num_values),
            "yes" if each.held else "NO",
        )
        for each in measurement.checks
    ]
    rows += [
        (each.view, each.of, "-", "-", "0", "not computed")
        for each in measurement.not_computed
        if each.view not in SEEN_BY
    ]
    headings = ("looked at", "of", "measured", "would find", "values", "as planned")
    return Fitted(rich_table("what the program did", headings, rows, left=headings[:4]))


def _print_measurement(console: Console, measurement: Measurement, output: Path | None) -> None:
    settings = measurement.settings
    console.print(
        f"{measurement.method}: {counted(settings.num_runs, 'simulated run')} of "
        f"{counted(measurement.num_rounds, 'round')}, "
        f"{settings.kind} canaries, {measurement.sums_revealed} sums revealed",
        highlight=False,
    )
    console.print(_figures_table(measurement))
    console.print(
        f"measured: less is ruled out, with confidence {100 * settings.confidence:g} % of both tables "
        "together. Far below what is stated it says that the test was weak (give more --runs), not that "
        "privacy is better. any law: the same without the shape of the plan's losses.",
        highlight=False,
    )
    console.print(_checks_table(measurement))
    console.print(
        "in common: the largest correlation of new noise, or clients of two samples. would find: the "
        "smallest fault of this kind that these runs find, 95 times in 100. A fault of another kind is not "
        "looked for.",
        highlight=False,
    )
    for check in measurement.checks:
        if check.wrong:
            console.print(f"wrong, {check.looked_at} of {check.of}: {check.wrong}", highlight=False)
    for each in measurement.not_computed:
        name = SEEN_BY.get(each.view, each.view)
        console.print(
            f"not computed, {name} of {each.of}: {each.why}. It takes {each.remedy}.", highlight=False
        )
    if output is not None:
        console.print(f"The figures and a picture are in {output}", soft_wrap=True, highlight=False)
    if not measurement.sums_revealed:
        console.print("No sum was revealed, so nothing was measured. The statement is NOT confirmed.")
    elif not all(figure.held for figure in measurement.figures):
        console.print("More was measured than is stated: the statement does NOT hold.")
    elif not measurement.passed:
        console.print("The program does NOT do what its plan says.")
    elif not measurement.complete:
        console.print("Nothing wrong was found, and NOT everything was looked at.")
    else:
        console.print("Nothing above what is stated was measured, and nothing unlike the plan was seen.")


ATTACK_HEADINGS = (
    "guessed from",
    "records of",
    "members",
    "others",
    "AUC",
    "of nothing told",
    "TPR at 1 % FPR",
)
RECORD_WORDS = (
    "Members are training records, and others are test records, which were kept out without regard to their "
    "content. An AUC within that of nothing told shows nothing. epsilon: less is ruled out; detectable: the "
    "least epsilon at which so few records could have shown anything."
)

PARTY_WORDS = (
    "Members are the parties of the run, each with all its records. Others were not in it: tables of "
    "--outside, or test records dealt out at random where the clients' records are random."
)
NO_PARTIES = (
    "Whether a whole party was trained on is told from parties that were not: give --outside FOLDER, tables "
    "of such parties."
)


def attack_model(options: argparse.Namespace) -> int:
    """Attack a run's model and print the result; return 1 if a measured epsilon exceeds the stated one."""
    if len(options.overrides) != 1:
        raise ConfigError("name one run directory, whose model is attacked with its own data")
    attack = attack_run(named_path(options.overrides[0]), options.confidence, options.outside)
    if options.json:
        told = asdict(attack) | {"passed": attack.passed}
        print(json.dumps(without_infinity(told), indent=2, allow_nan=False))
        return 0 if attack.passed else 1
    console = make_console()
    console.print(_table("whose record was trained on", attack.membership, RECORD_WORDS))
    _print_stated(console, attack, "record", attack.stated)
    if attack.parties:
        console.print(_table("which whole party was trained on", attack.parties, PARTY_WORDS))
        _print_stated(console, attack, "party", attack.stated_of_party)
    else:
        console.print(NO_PARTIES, highlight=False)
    if attack.site is not None:
        site = attack.site
        console.print(
            f"The party of a test record is guessed from its prediction: {100 * site.right:.1f} % of "
            f"{site.records} rightly (at least {100 * site.low:.1f} %); the largest of {site.parties} has "
            f"{100 * site.base:.1f} %. What is typical of a party no budget of a record covers.",
            highlight=False,
        )
    console.print("No budget covers these figures, which have no noise.", highlight=False)
    passed = "No more was found than is stated."
    console.print(passed if attack.passed else "More was found than is stated: it does NOT hold.")
    return 0 if attack.passed else 1


def _table(title: str, guesses: Sequence[MembershipGuess], words: str) -> Fitted:
    headings, left = (*ATTACK_HEADINGS, "epsilon", "detectable"), ATTACK_HEADINGS[:2]
    rows = [
        (
            guess.seen,
            guess.whose,
            str(guess.members),
            str(guess.others),
            f"{guess.auc:.3f} ({guess.auc_low:.3f}-{guess.auc_high:.3f})",
            f"{guess.null_low:.3f}-{guess.null_high:.3f}",
            f"{100 * guess.tpr:.1f} %",
            f"{guess.epsilon:.3g}",
            f"{guess.detectable:.3g}",
        )
        for guess in guesses
    ]
    return Fitted(rich_table(title, headings, rows, left=left, caption=words))


def _print_stated(console: Console, attack: ModelAttack, one: str, stated: float | None) -> None:
    words = f"nothing is stated of a {one}" if stated is None else f"stated: epsilon {stated:.3g}"
    console.print(
        f"{words}, delta {attack.delta:.3g}, confidence {100 * attack.confidence:g} %", highlight=False
    )


PANEL_INCHES = (3.4, 3.0)
MOST_COLUMNS = 3
LINES = {
    "sums": ("stated: cohorts unknown", "measured: cohorts unknown"),
    "server": ("stated: against the server", "measured: against the server"),
    "everyone": ("stated: against everyone", "measured: against everyone"),
    "updates": ("stated: every update", "measured: every update"),
}


@styled
def epsilon_over_rounds(measurement: Measurement, path: Path) -> None:
    """Draw stated epsilon (lines) and measured epsilon (points) over rounds as PNG, one panel a group."""
    groups = range(len(measurement.budgets))
    columns = min(MOST_COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    panels = new_panels(figure, len(groups), columns=columns)
    for group, axes in zip(groups, panels, strict=True):
        for number, (view, (stated, measured)) in enumerate(LINES.items()):
            ours = [each for each in measurement.figures if (each.group, each.view) == (group, view)]
            if not ours:
                continue
            rounds = [each.rounds for each in ours]
            colour = line_style(number)["color"]
            axes.plot(rounds, [each.stated for each in ours], color=colour, label=stated)
            axes.plot(
                rounds,
                [each.measured for each in ours],
                color=colour,
                linestyle="none",
                marker=line_style(number)["marker"],
                label=measured,
            )
        axes.axhline(measurement.budgets[group], color="black", linewidth=0.8, linestyle=":", label="budget")
        axes.set_title(f"group {group}: budget {measurement.budgets[group]:g}")
        axes.set_xlabel("round")
        axes.set_ylabel("epsilon")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)
