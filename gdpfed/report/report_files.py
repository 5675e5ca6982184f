"""A report as files: Markdown with CSV and pictures of lines side by side, or one run on one page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from markdown_it import MarkdownIt

from gdpfed.errors import ReportError
from gdpfed.files import save_whole
from gdpfed.methods import METHODS
from gdpfed.report.comparison import (
    TRUSTED,
    Line,
    figure_of,
    kilobytes_down,
    kilobytes_up,
    noise_magnitude,
    one_metric,
    seeds_table,
    whom_it_holds_against,
)
from gdpfed.report.console import Table
from gdpfed.report.ending import run_without_privacy
from gdpfed.report.epsilon_picture import EPSILON_PICTURE, cost_points, draw_cost, without_privacy
from gdpfed.report.finished_run import FinishedRun, cohorts_shown
from gdpfed.report.metric_display import MetricDisplay, Spread, dataset_label
from gdpfed.report.pages import page_of
from gdpfed.report.parts import Parts, parts_table
from gdpfed.report.plots import (
    Dots,
    cohort_curve,
    draw_curves,
    draw_dots,
    height_inches,
    method_styles,
    new_figure,
    new_panels,
    phase_areas,
    save,
    shared_legend,
    styled,
)
from gdpfed.report.report_tables import chance_lines, tables_of
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
from gdpfed.runs.round_log import RoundLogEntry, read_rounds

FINAL_PICTURE = "final_accuracy.png"
BUDGETS_PICTURE = "budgets.png"
COST_PICTURE = "cost.png"


def draw_all(lines: Sequence[Line], directory: Path) -> list[str]:
    """Write every picture; returns their names."""
    pictures = {
        ACCURACY_PICTURE: accuracy_picture,
        FINAL_PICTURE: final_picture,
        BUDGETS_PICTURE: budgets_picture,
        COST_PICTURE: cost_picture,
    }
    for name, draw in pictures.items():
        draw(lines, directory / name)
    points = cost_points(lines)
    if points:
        draw_cost(points, without_privacy(lines), one_metric(lines), directory / EPSILON_PICTURE)
    return [*([EPSILON_PICTURE] if points else []), *pictures]


@styled
def accuracy_picture(lines: Sequence[Line], path: Path) -> None:
    """The metric that is shown after every round, mean and band over the seeds."""
    figure = new_figure(6.4, 3.8)
    (axes,) = new_panels(figure, 1, columns=1)
    styles = method_styles([line.runs[0].settings["method"]["name"] for line in lines])
    curves = [(style, line.label, line.results()) for style, line in zip(styles, lines, strict=True)]
    draw_curves(axes, curves, one_metric(lines))
    shared_legend(figure, [axes])
    save(figure, path)


@styled
def final_picture(lines: Sequence[Line], path: Path) -> None:
    """The metric that is shown after the last round."""
    figure = new_figure(6.4, height_inches(len(lines)))
    (axes,) = new_panels(figure, 1, columns=1)
    values = [line.final_result for line in lines]
    bounds = [each.mean + sign * (each.stddev or 0.0) for each in values for sign in (-1, 1)]
    shown = MetricDisplay.of(one_metric(lines))
    low, high = shown.axis(bounds)
    unit = f"{shown.heading} after the last round, axis from {low:.4g} to {high:.4g}"
    draw_dots(axes, _labels(lines), [Dots(shown.words, values)], unit)
    axes.set_xlim(low, high)
    save(figure, path)


@styled
def budgets_picture(lines: Sequence[Line], path: Path) -> None:
    """Draw the spent epsilon of every group beside its budget."""
    names, spent, budgets = [], [], []
    for line in lines:
        for index, group in enumerate(line.runs[0].plan["groups"]):
            names.append(f"{line.label}, group {index}")
            spent.append(_over_seeds(line, index))
            budgets.append(None if group["epsilon"] is None else Spread.of([group["epsilon"]]))
    figure = new_figure(6.4, height_inches(len(names), kinds=2))
    (axes,) = new_panels(figure, 1, columns=1)
    draw_dots(axes, names, [Dots("spent", spent), Dots("budget", budgets, hollow=True)], "epsilon")
    axes.set_xlim(left=0)
    shared_legend(figure, [axes])
    save(figure, path)


def _over_seeds(line: Line, group: int) -> Spread | None:
    spent = [run.records[-1].spent_epsilon[group] for run in line.runs]
    bounded = [epsilon for epsilon in spent if epsilon is not None]
    return Spread.of(bounded) if bounded else None


@styled
def cost_picture(lines: Sequence[Line], path: Path) -> None:
    """Noise, traffic and time, a panel each."""
    panels: list[tuple[str, dict[str, Callable[[FinishedRun], float | None]]]] = [
        ("noise magnitude Λ", {"Λ": noise_magnitude}),
        ("kB a client and round", {"up": kilobytes_up, "down": kilobytes_down}),
        ("seconds a round", {"time": lambda run: run.seconds_a_round}),
    ]
    figure = new_figure(8.0, height_inches(len(lines), kinds=2))
    axes = new_panels(figure, len(panels), columns=len(panels), sharey=True)
    for panel, (unit, measures) in zip(axes, panels, strict=True):
        dots = [
            Dots(label, [figure_of(line, measure) for line in lines]) for label, measure in measures.items()
        ]
        draw_dots(panel, _labels(lines), dots, unit)
        panel.set_xlim(left=0)
    shared_legend(figure, [axes[1]])
    save(figure, path)


def _labels(lines: Sequence[Line]) -> list[str]:
    return [line.label for line in lines]


REPORT_FILE, SEEDS_FILE = "report.md", "seeds.csv"


def write_report(lines: Sequence[Line], directory: Path) -> Path:
    """Write everything into a directory, made if need be; returns the Markdown file.

    Raises ReportError: the file system refuses.
    """
    tables = tables_of(lines)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            (directory / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        (directory / SEEDS_FILE).write_text(seeds_table(lines).to_csv(), encoding="utf-8")
        pictures = "\n\n".join(f"![{Path(name).stem}]({name})" for name in draw_all(lines, directory))
        runs = "\n".join(f"* {line.label}: {', '.join(str(run.path) for run in line.runs)}" for line in lines)
        texts = "\n".join(table.to_markdown() for table in tables.values())
        at_chance = "".join(f"{line}\n\n" for line in chance_lines(lines))
        text = f"# Comparison of runs\n\n{at_chance}{texts}\n{pictures}\n\nRuns:\n\n{runs}\n"
        (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"--output {directory} cannot be written: {error.strerror}") from None
    return directory / REPORT_FILE


TEMPLATE = "run_page.html"
HIDDEN = (
    "Cohorts, dropouts and times are not on this page: epsilon holds against those who are told nothing of "
    "them. rounds.jsonl has them, for the server."
)


@dataclass(frozen=True)
class Checked:
    """The result of an audit: whether it passed, in one sentence and figure by figure."""

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
    """Write report.html into a run's directory, with its hash and that of the run's seal beside it.

    Returns its path. The page has the result, budgets, pictures, the audit's figures, the model card and the
    settings. Cohorts and times are left out where epsilon rests on nobody knowing them, and so is the epsilon
    of a run that does not pass its audit.

    Raises ReportError: a file of the run that is shown is missing. RunError: the page cannot be written.
    """
    settings, parts = run.settings["dataset"], Parts.read(run.path)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    page = page_of(
        TEMPLATE,
        title=f"{_method(run)} on {dataset_label(settings['name'], settings.get('path'))}",
        path=run.path.name,
        tiles=_tiles(run, checked),
        checked=checked,
        parts=None if parts is None else parts_table([("", parts)], run.metric),
        pictures=_pictures(run),
        of_cohorts=_pictures_of_cohorts(run),
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


def _method(run: FinishedRun) -> str:
    """The method's label, or its name if it is not installed."""
    name = str(run.settings["method"]["name"])
    return METHODS.get(name).label if name in METHODS.names() else name


def _tiles(run: FinishedRun, checked: Checked) -> list[tuple[str, str, str]]:
    """The tiles of the page: heading, figure and note of each."""
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
        *_tile_without_privacy(run),
        (
            "epsilon",
            (budgets or "none") if checked.passed else "unproved",
            f"spent/budget against {against}" if budgets else "no privacy is promised",
        ),
        ("what is protected", f"one {unit}" if budgets else "nothing", f"delta {run.plan['delta']:.3g}"),
        ("clients", str(sum(group["clients"] for group in groups)), f"{sizes} by budget group"),
    ]


def _tile_without_privacy(run: FinishedRun) -> list[tuple[str, str, str]]:
    """The result of a run beside this one that trained the same without privacy, where there is one."""
    beside = run_without_privacy(run.path, run.settings) if run.plan["private"] else None
    if beside is None:
        return []
    name, value = read_rounds(beside)[-1].shown
    return [("without privacy", MetricDisplay.of(name).text(value), f"as in {beside.name}, beside this run")]


def _pictures(run: FinishedRun) -> list[_Picture]:
    return [
        _Picture("Result after every round", _read(run, ACCURACY_PICTURE)),
        _Picture("Epsilon spent, below the budgets", _read(run, BUDGET_PICTURE)),
    ]


def _pictures_of_cohorts(run: FinishedRun) -> list[_Picture]:
    """What depends on who was drawn, for the end of the page; nothing where it may not be shown."""
    if not cohorts_shown(run.plan, run.settings):
        return []
    drawn = [_Picture("Clients asked, and those in the sums", _drawn(cohort_curve, run.records))]
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
