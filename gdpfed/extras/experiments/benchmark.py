"""A benchmark of methods: mean ranks over all settings, results, costs, and a CSV row for each run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import rankdata

from gdpfed.decimal_numbers import counted
from gdpfed.extras.experiments.benchmark_entries import NOT_PRIVATE, SCHEMA, Entry
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.extras.experiments.runs import NOT_YET, Outcome
from gdpfed.report.console import Table
from gdpfed.report.metric_display import ABSENT, MetricDisplay, Spread, dataset_label
from gdpfed.report.plots import (
    Dots,
    draw_dots,
    height_inches,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)

EVERY = "all settings"
PICTURE_WIDTH_INCHES = 6.0
AGAINST = "privacy.against="
INTERVALS = "Mean ± half of its 95 % interval over the seeds (Student's t)."

Place = tuple[str, str, int]
"""A data set, a setting and a seed."""


@dataclass(frozen=True)
class Ranking:
    """The ranks of methods for each data set, setting and seed that all methods have tried; 1 is best.

    `by_place`: the rank of each method, ties shared. `against`: whom epsilon holds against in a setting.
    """

    by_place: Mapping[Place, Mapping[str, float]]
    against: Mapping[str, str]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], entries: Sequence[Entry]) -> "Ranking":
        """Rank the private methods by their results.

        One without a valid entry in a place, since it refuses the setting or an audit has found something,
        comes last there. Places where a run is still missing are left out, and those with one method.
        """
        found = {(each.dataset, each.setting, each.method, each.seed): each for each in entries}
        open_to_all = {each.method for each in entries if each.audit == NOT_PRIVATE}
        by_place: dict[Place, Mapping[str, float]] = {}
        for dataset, setting in dict.fromkeys(each.cell.place[::2] for each in outcomes):
            here = [
                each
                for each in outcomes
                if each.cell.place[::2] == (dataset, setting) and each.cell.row not in open_to_all
            ]
            for seed in sorted({run.seed for each in here for run in each.runs}):
                tried = [(each, found.get((dataset, setting, each.cell.row, seed))) for each in here]
                # A missing run may still be trained where its method accepts the setting.
                if any(entry is None and outcome.reason in (None, NOT_YET) for outcome, entry in tried):
                    continue
                scores = [
                    entry.result if entry and entry.valid and not math.isnan(entry.result) else -math.inf
                    for _, entry in tried
                ]
                if len(scores) < 2 or not any(map(math.isfinite, scores)):
                    continue
                ranks = rankdata([-each for each in scores]).tolist()
                names = (outcome.cell.row for outcome, _ in tried)
                by_place[dataset, setting, seed] = dict(zip(names, ranks, strict=True))
        return cls(by_place, adversaries_of(outcomes, entries))

    @property
    def methods(self) -> list[str]:
        """All ranked methods, best mean rank first."""
        names = dict.fromkeys(name for ranks in self.by_place.values() for name in ranks)
        return sorted(names, key=lambda name: self.mean(name).mean)

    @property
    def adversaries(self) -> list[str]:
        """The adversaries against whom the epsilons of the ranked settings hold, each listed once."""
        return list(dict.fromkeys(self.against[setting] for _, setting, _ in self.by_place))

    def mean(self, method: str, against: str | None = None) -> Spread:
        """Return a method's mean rank, with its spread over seeds."""
        by_seed: dict[int, list[float]] = {}
        for (_, setting, seed), ranks in self.by_place.items():
            if against in (None, self.against[setting]):
                by_seed.setdefault(seed, []).append(ranks[method])
        return Spread.of([math.fsum(each) / len(each) for each in by_seed.values()])


def adversaries_of(outcomes: Sequence[Outcome], entries: Sequence[Entry]) -> Mapping[str, str]:
    """Return, for each setting of a benchmark, the adversary that its epsilon holds against.

    It is the one of the experiment's column. Where the column names none, as with records, the runs say it.
    """
    found = {each.setting: each.against for each in entries if each.against is not None}
    for each in outcomes:
        values = [word.partition("=")[2] for word in each.cell.overrides if word.startswith(AGAINST)]
        if each.cell.column in found and values and values[-1] != "auto":
            found[each.cell.column] = values[-1]
    return found


def benchmark_presentation(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], entries: Sequence[Entry]
) -> Presentation:
    """Make the benchmark's tables, CSV rows and picture of ranks."""
    ranking = Ranking.of(outcomes, entries)
    tables = list[Table]()
    if ranking.by_place:
        several = ranking.adversaries if len(ranking.adversaries) > 1 else []
        settings = {place[:2] for place in ranking.by_place}
        ranks = [
            [
                experiment.rows[method].label,
                *(ranking.mean(method, against).with_interval(".2f") for against in (None, *several)),
            ]
            for method in ranking.methods
        ]
        tables.append(
            Table(
                f"{experiment.title}: mean rank",
                (experiment.row_heading, EVERY, *(f"against {each}" for each in several)),
                ranks,
                f"1 is the best of {len(ranks)}, over {counted(len(settings), 'setting')}. {INTERVALS} The "
                "settings are fixed: the interval says nothing of others. A method that refuses a setting "
                "comes last there.",
            )
        )
    for dataset in datasets:
        here = [each for each in entries if each.dataset == dataset]
        if here:
            tables += [
                *_result_tables(experiment, dataset, outcomes, here),
                _cost_table(experiment, dataset, here),
            ]
    rows = [each.to_row() for each in entries]
    return Presentation(
        tables, Table(experiment.title, tuple(SCHEMA), rows), _picture_of_ranks(experiment, ranking)
    )


def _result_tables(
    experiment: Experiment, dataset: str, outcomes: Sequence[Outcome], entries: Sequence[Entry]
) -> Iterator[Table]:
    """Yield tables of results by method and setting, one table for each adversary."""
    shown, adversaries = MetricDisplay.of(entries[0].metric), adversaries_of(outcomes, entries)
    for against in dict.fromkeys(adversaries.values()):
        settings = [name for name in experiment.columns if adversaries.get(name) == against]
        footnotes = Footnotes()
        rows = []
        for row, choice in experiment.rows.items():
            texts = [choice.label]
            for setting in settings:
                place = dataset, row, setting
                found = [each for each in entries if (each.dataset, each.method, each.setting) == place]
                if not found:
                    reason = next(each.reason for each in outcomes if each.cell.place == place)
                    texts.append(footnotes.mark(reason or NOT_YET))
                    continue
                form = MetricDisplay.of(found[0].metric).form
                refused = sum(not each.valid for each in found)
                audits = f" [{refused} audits failed]" if refused else ""
                texts.append(Spread.of([each.result for each in found]).with_interval(form) + audits)
            rows.append(texts)
        note = [f"{shown.heading[0].upper()}{shown.heading[1:]} after the last round. {INTERVALS}"]
        yield Table(
            f"{dataset_label(dataset)}, against {against}",
            (experiment.row_heading, *(experiment.columns[each].label for each in settings)),
            rows,
            "\n".join(filter(None, [*note, footnotes.text()])),
        )


def _cost_table(experiment: Experiment, dataset: str, entries: Sequence[Entry]) -> Table:
    """Return, for each method, the worst group's result and the costs, averaged over settings and seeds."""
    rows, settings, fewer = [], len(experiment.columns) or 1, ""
    for row, choice in experiment.rows.items():
        own = [each for each in entries if each.method == row]
        if own:
            tried = len({each.setting for each in own})
            over = f", over {tried} of {settings} settings" if tried < settings else ""
            fewer = fewer or (over and " A method without results in some settings says over how many.")
            worst = [each.worst_group for each in own if each.worst_group is not None]
            held = sum(each.valid for each in own)
            rows.append(
                [
                    f"{choice.label}{over}",
                    f"{math.fsum(worst) / len(worst):.1f}" if worst else ABSENT,
                    *(
                        f"{math.fsum(figures) / len(own):{form}}"
                        for figures, form in (
                            ([each.messages for each in own], ",.0f"),
                            ([each.megabytes for each in own], ".3g"),
                            ([each.seconds for each in own], ".1f"),
                        )
                    ),
                    f"{held} of {len(own)}",
                ]
            )
    which = next((each.examples_of_groups for each in entries if each.examples_of_groups), "")
    where = f" Worst group: of budgets, on its clients' {which} examples." if which else ""
    return Table(
        f"{dataset_label(dataset)}: worst group and cost",
        (experiment.row_heading, "worst group", "messages", "MB a client", "seconds", "audits passed"),
        rows,
        f"Of a whole run, the mean over all settings and seeds.{fewer}{where}",
    )


def _picture_of_ranks(experiment: Experiment, ranking: Ranking) -> Callable[[Path], None]:
    @styled
    def draw(path: Path) -> None:
        methods = ranking.methods
        figure = new_figure(PICTURE_WIDTH_INCHES, height_inches(len(methods), kinds=len(ranking.adversaries)))
        (axes,) = new_panels(figure, 1, columns=1)
        kinds = [
            Dots(f"against {against}", [ranking.mean(method, against) for method in methods])
            for against in ranking.adversaries
        ]
        labels = [experiment.rows[method].label for method in methods]
        draw_dots(axes, labels, kinds, "mean rank, with its 95 % interval over the seeds", Spread.half_width)
        if len(kinds) > 1:
            shared_legend(figure, [axes])
        save(figure, path)

    return draw
