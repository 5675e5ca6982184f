"""A finished run on one page: no other file and no network is needed to read it."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jinja2
from markdown_it import MarkdownIt

from gdpfed.errors import ReportError
from gdpfed.files import save_whole
from gdpfed.methods import METHODS
from gdpfed.report.comparison import TRUSTED, whom_it_holds_against
from gdpfed.report.console import Table
from gdpfed.report.finished_run import FinishedRun, cohorts_shown
from gdpfed.report.metric_display import MetricDisplay, dataset_label
from gdpfed.report.plots import cohort_curve, phase_areas
from gdpfed.runs.file_formats import ACCURACY_PICTURE, BUDGET_PICTURE, CONFIG_FILE, MODEL_CARD_FILE
from gdpfed.runs.round_log import RoundLogEntry

PAGE_FILE = "report.html"
TEMPLATE = Path(__file__).with_name("run_page.html")
HIDDEN = (
    "Cohorts, dropouts and times are not on this page: epsilon holds against those who are told nothing of "
    "them. rounds.jsonl has them, for the server."
)


@dataclass(frozen=True)
class Checked:
    """What an audit of the run's files came to: whether they passed, in a sentence, and figure by figure."""

    passed: bool
    verdict: str
    findings: Sequence[str] = ()
    table: Table | None = None


@dataclass(frozen=True)
class _Picture:
    title: str
    png: bytes

    @property
    def source(self) -> str:
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


def write_page(run: FinishedRun, checked: Checked) -> Path:
    """Write report.html into a run's directory, and return its path.

    The page has the result, budgets, pictures, the audit's figures, the model card and the settings. Cohorts
    and times are left out where epsilon rests on nobody knowing them.

    Raises ReportError: a file of the run that is shown is missing. RunError: the page cannot be written.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    settings = run.settings["dataset"]
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    page = template.render(
        title=f"{_method(run)} on {dataset_label(settings['name'], settings.get('path'))}",
        path=run.path.name,
        tiles=_tiles(run),
        checked=checked,
        pictures=_pictures(run),
        hidden="" if cohorts_shown(run.plan, run.settings) else HIDDEN,
        card=markdown.render(_read(run, MODEL_CARD_FILE).decode()),
        settings=_read(run, CONFIG_FILE).decode(),
    )
    target = run.path / PAGE_FILE
    save_whole(target, page.encode())
    return target


def _method(run: FinishedRun) -> str:
    """Its label, or the name of one that is not installed."""
    name = str(run.settings["method"]["name"])
    return METHODS.get(name).label if name in METHODS.names() else name


def _tiles(run: FinishedRun) -> list[tuple[str, str, str]]:
    """Heading, figure and note."""
    shown, groups = MetricDisplay.of(run.metric), run.plan["groups"]
    spent = run.records[-1].spent_epsilon
    pairs = [(each, group["epsilon"]) for each, group in zip(spent, groups, strict=True)]
    against = whom_it_holds_against(run.plan)
    against = {TRUSTED: "all but the server"}.get(against, against)
    budgets = " ".join(f"{each:.2f}/{budget:g}" for each, budget in pairs if each is not None and budget)
    sizes = " + ".join(str(group["clients"]) for group in groups)
    unit = run.plan.get("record_is", run.plan["unit"])
    return [
        (shown.heading, f"{run.final_result:{shown.form}}", f"after {len(run.records)} rounds"),
        (
            "epsilon",
            budgets or "none",
            f"spent/budget against {against}" if budgets else "no privacy is promised",
        ),
        ("what is protected", f"one {unit}" if budgets else "nothing", f"delta {run.plan['delta']:.3g}"),
        ("clients", str(sum(group["clients"] for group in groups)), f"{sizes} by budget group"),
    ]


def _pictures(run: FinishedRun) -> list[_Picture]:
    drawn = [
        _Picture("Result after every round", _read(run, ACCURACY_PICTURE)),
        _Picture("Epsilon spent, below the budgets", _read(run, BUDGET_PICTURE)),
    ]
    if cohorts_shown(run.plan, run.settings):
        drawn.append(_Picture("Clients asked, and those in the sums", _drawn(cohort_curve, run.records)))
        if any(len(record.seconds) > 1 for record in run.records):
            drawn.append(_Picture("Seconds of a round by phase", _drawn(phase_areas, run.records)))
    return drawn


def _drawn(draw: Callable[[Sequence[RoundLogEntry], Path], None], records: Sequence[RoundLogEntry]) -> bytes:
    with TemporaryDirectory() as directory:
        draw(records, picture := Path(directory) / "picture.png")
        return picture.read_bytes()


def _read(run: FinishedRun, name: str) -> bytes:
    try:
        return (run.path / name).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ReportError(
            f"{run.path / name}, which the page shows, cannot be read ({reason}): restore it, or resume the "
            "run, which writes it again"
        ) from None
