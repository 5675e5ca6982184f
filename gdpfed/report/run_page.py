"""Writes an HTML page about one run: result, parties, budgets, rounds, audit and model card."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from markdown_it import MarkdownIt

from gdpfed.errors import ReportError, printable
from gdpfed.files import save_whole
from gdpfed.methods import METHODS
from gdpfed.report.comparison_tables import TRUSTED, whom_it_holds_against
from gdpfed.report.console import Table
from gdpfed.report.ending import run_without_privacy
from gdpfed.report.evaluated import Result
from gdpfed.report.finished_run import FinishedRun, cohorts_shown
from gdpfed.report.metric_display import dataset_label
from gdpfed.report.pages import Picture, drawn_picture, page_of
from gdpfed.report.parts import Parts, parts_table
from gdpfed.report.round_pictures import (
    TurnGroup,
    TurnRow,
    draw_rounds,
    draw_turns,
    shown_clients,
    shown_rounds,
)
from gdpfed.report.run_clients import RunClients
from gdpfed.runs.file_formats import (
    ACCURACY_PICTURE,
    BUDGET_PICTURE,
    CONFIG_FILE,
    MODEL_CARD_FILE,
    PAGE_FILE,
    PAGE_SEAL_FILE,
    SEAL_FILE,
    save_result,
)
from gdpfed.runs.round_log import failed_in, read_rounds

TEMPLATE = "run_page.html"
FAILURES_SHOWN = 8
HIDDEN = (
    "Cohorts, dropouts and times are not on this page: epsilon holds against those who are told nothing of "
    "them. rounds.jsonl has them, for the server."
)


@dataclass(frozen=True)
class Checked:
    """What a run's page shows of the audit: whether the run passed, the verdict, findings, and a table."""

    passed: bool
    verdict: str
    findings: Sequence[str] = ()
    table: Table | None = None


def write_page(run: FinishedRun, checked: Checked) -> Path:
    """Write report.html into a run's directory, with a file of hashes beside it.

    Returns its path. The page has the result, budgets, pictures, the audit's figures, the model card and the
    settings. Cohorts and times are left out where epsilon rests on nobody knowing them, and so is the epsilon
    of a run that does not pass its audit.

    Raises ReportError: a file of the run that is shown is missing. RunError: the page cannot be written.
    """
    settings, parts = run.settings["dataset"], Parts.read(run.path)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    name = str(run.settings["method"]["name"])
    method = METHODS.get(name).label if name in METHODS.names() else name
    by_party = None if parts is None else parts_table([("", parts)], run.metric)
    if by_party is not None:
        # The first column names the run, as the page does at its top.
        rows = [row[1:] for row in by_party.rows]
        by_party = replace(by_party, headings=by_party.headings[1:], rows=rows)
    page = page_of(
        TEMPLATE,
        title=f"{method} on {dataset_label(settings['name'], settings.get('path'))}",
        path=printable(run.path.name),
        tiles=_tiles(run, checked),
        checked=checked,
        parts=by_party,
        pictures=[
            Picture("Result after every round", _read(run, ACCURACY_PICTURE)),
            Picture("Epsilon spent, below the budgets", _read(run, BUDGET_PICTURE)),
        ],
        rounds=_round_pictures(run),
        failures=_failure_lines(run),
        hidden="" if cohorts_shown(run.plan, run.settings) else HIDDEN,
        card=markdown.render(_read(run, MODEL_CARD_FILE).decode()),
        settings=_read(run, CONFIG_FILE).decode(),
    )
    target, seal = run.path / PAGE_FILE, run.path / SEAL_FILE
    save_whole(target, page.encode())
    of_run = {SEAL_FILE: sha256(seal.read_bytes()).hexdigest()} if seal.is_file() else {}
    save_result(
        run.path / PAGE_SEAL_FILE, {"sha256": {PAGE_FILE: sha256(page.encode()).hexdigest(), **of_run}}
    )
    return target


def _tiles(run: FinishedRun, checked: Checked) -> list[tuple[str, str, str]]:
    """Return the boxes at the top of a run's page, each with a heading, a main value and a note."""
    result, groups = Result.of(run.path, run.records[-1]), run.plan["groups"]
    spent = run.records[-1].spent_epsilon
    pairs = [(each, group["epsilon"]) for each, group in zip(spent, groups, strict=True)]
    against = whom_it_holds_against(run.plan)
    against = {TRUSTED: "all but the server"}.get(against, against)
    budgets = " ".join(f"{each:.2f}/{budget:g}" for each, budget in pairs if each is not None and budget)
    sizes = " + ".join(str(group["clients"]) for group in groups)
    unit = run.plan.get("record_is", run.plan["unit"])
    tiles = [("result", result.figure, f"{result.note} after {len(run.records)} rounds".strip())]
    beside = run_without_privacy(run.path, run.settings) if run.plan["private"] else None
    if beside is not None:
        known = Result.of(beside, read_rounds(beside)[-1])
        note = f"{known.note} as in {beside.name}, beside this run; no budget covers it".strip()
        tiles.append(("without privacy", known.figure, note))
    return [
        *tiles,
        (
            "epsilon",
            (budgets or "none") if checked.passed else "unproved",
            f"spent/budget against {against}" if budgets else "no privacy is promised",
        ),
        ("what is protected", f"one {unit}" if budgets else "nothing", f"delta {run.plan['delta']:.3g}"),
        ("clients", str(sum(group["clients"] for group in groups)), f"{sizes} by budget group"),
    ]


def _round_pictures(run: FinishedRun) -> list[Picture]:
    """Return pictures of who took part in each round and how long stages took; [] if these are secret."""
    if not cohorts_shown(run.plan, run.settings):
        return []
    drawn = [_turns_picture(run)] if any(record.turns for record in run.records) else []
    shown = shown_rounds(run.records)
    few = "" if len(shown) == len(run.records) else f", {len(shown)} of {len(run.records)} rounds"
    title = f"Clients asked and in the sums, and seconds by stage{few}"
    return [*drawn, Picture(title, drawn_picture(lambda path: draw_rounds(run.records, path)))]


def _turns_picture(run: FinishedRun) -> Picture:
    """Draw the rounds in which each client took part, as the run's log records them."""
    clients = RunClients.of(run)
    groups = [
        TurnGroup(members, group["epsilon"], list(group.get("turns", {}).get("taps", ())))
        for members, group in zip(clients.groups, run.plan["groups"], strict=True)
    ]
    known = any(record.taken_back for record in run.records)
    rows = []
    for number, client in shown_clients(groups):
        turns = [record.round for record in run.records if record.turns and client in record.turns[number]]
        # Where the client subtracted a part of its earlier noise, by the log.
        backs = [
            record.round
            for record in run.records
            if any(client == member for pairs in record.taken_back for member, _ in pairs)
        ]
        rows.append(TurnRow(clients.called(client), number, turns, backs if known else None))
    some = "" if len(rows) == sum(map(len, clients.groups)) else ", the first clients of each group"
    title = f"Whose turn it was, and when noise is taken back{some}"
    return Picture(title, drawn_picture(lambda path: draw_turns(rows, groups, len(run.records), path)))


def _failure_lines(run: FinishedRun) -> list[str]:
    """Return the last secure sums that failed, with the reasons; return [] if these must stay secret."""
    if not cohorts_shown(run.plan, run.settings):
        return []
    found = [
        f"{failed_in(record.round, name)}: {reason}"
        for record in run.records
        for name, reason in record.failures.items()
    ]
    earlier = len(found) - FAILURES_SHOWN
    before = [f"{earlier} failures before these are in rounds.jsonl"] if earlier > 0 else []
    return [*before, *found[-FAILURES_SHOWN:]]


def _read(run: FinishedRun, name: str) -> bytes:
    try:
        return (run.path / name).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ReportError(
            f"{run.path / name}, which the page shows, cannot be read ({reason}): restore it, or resume the "
            "run, which writes it again"
        ) from None
