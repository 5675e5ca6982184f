"""Answers whether a run's model is better than models that data owners could train without the run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdpfed.learning.labels.intervals import NORMAL_QUANTILE
from gdpfed.methods import METHODS
from gdpfed.report.class_figures import AREA
from gdpfed.report.comparison import Line
from gdpfed.report.console import Table
from gdpfed.report.metric_display import ABSENT
from gdpfed.report.rivals import RIVALS
from gdpfed.report.worth import EVERYWHERE, Worth

COMPARED = RIVALS[1:]
"""What the parties would have without the run: alone, all rows in one place, or no privacy."""
HEADINGS = ("run", "test {figure} (%)", *COMPARED)
TITLE = "Was it worth it? Points of {figure} more than without the run"
HOW = (
    "By how many points more than each of the others, with 95 % intervals: for the chance in the test rows, "
    "which both models share, and in the runs that were averaged. An interval with zero in it shows no order "
    "of the two."
)
RARE = (
    "Of {rows} test rows {share:.1f} % are of one class: to answer it always is right as often, without any "
    "model. So the AUC is shown, the probability that a row of '{positive}' is ranked above one of the "
    "others. Its intervals are as wide as {few} rows of the rarer class leave them."
)
OF_SEVERAL = (
    "Of {rows} test rows {share:.1f} % are of '{positive}': to answer it always is right as often, without "
    "any model. So the AUC is shown, the mean over classes of the probability that a row of the class is "
    "ranked above one of the others."
)


@dataclass(frozen=True)
class Difference:
    """The difference in a metric between two models, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def text(self) -> str:
        """Write the difference in percentage points, as in ``+1.2 [-0.4, +2.8]``."""
        if math.isnan(self.mean):
            return ABSENT
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    @property
    def order(self) -> int:
        """1 if the first model is better, -1 if it is worse, 0 if the interval includes zero."""
        return int(self.low > 0) - int(self.high < 0)


def difference(worth: Worth, model: str, other: str, figure: str) -> Difference:
    """Return a model's metric minus another model's, on the same test rows.

    With d_1, ..., d_k of k runs and psi_i, the difference of what row i adds to their errors,

        mean(d) +- 1.96 sqrt(sum_p (sum_{i of p} psi_i)^2 + var(d) / k),

    where p are persons if the rows say whom they are about, else rows; var(d) is 0 for one run.
    """
    ours, theirs = worth.judged[model][figure], worth.judged[other][figure]
    found, terms = ours.values - theirs.values, ours.terms - theirs.terms
    persons = np.arange(len(terms)) if worth.persons is None else worth.persons
    numbers, person = np.unique(persons, return_inverse=True)
    by_person = np.zeros(len(numbers))
    np.add.at(by_person, person.reshape(-1), terms)
    variance = float(by_person @ by_person)
    if len(found) > 1:
        variance += float(found.var(ddof=1)) / len(found)
    mean, half = float(found.mean()), NORMAL_QUANTILE * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half)


def model_of(line: Line) -> str:
    """Return the name of a run's own model in the comparison of models."""
    name = str(line.runs[0].settings["method"]["name"])
    return METHODS.get(name).label or name


def answer_table(compared: Sequence[tuple[Line, Worth]]) -> Table | None:
    """Return a table with each configuration's metric and its difference to each compared model."""
    figure = leading(compared)
    rows = [
        [
            name,
            worth.figures[model_of(line)][EVERYWHERE][figure].text(),
            *(difference(worth, model_of(line), other, figure).text() for other in COMPARED),
        ]
        for name, (line, worth) in zip(_named(compared), compared, strict=True)
        if model_of(line) in worth.judged
    ]
    headings = [heading.format(figure=figure) for heading in HEADINGS]
    return Table(TITLE.format(figure=figure), headings, rows, HOW) if rows else None


def _named(compared: Sequence[tuple[Line, Worth]]) -> list[str]:
    """Name configurations by privacy budgets or, if two budgets are equal, by the settings that differ."""
    promises = [worth.privacy[model_of(line)] for line, worth in compared if model_of(line) in worth.privacy]
    return promises if len(set(promises)) == len(compared) else [line.label for line, _ in compared]


def leading(compared: Sequence[tuple[Line, Worth]]) -> str:
    """Return the metric by which models are compared: AUC if any comparison uses AUC, otherwise accuracy."""
    return AREA if any(worth.leading == AREA for _, worth in compared) else compared[0][1].leading


def answer_lines(compared: Sequence[tuple[Line, Worth]]) -> Iterator[str]:
    """Yield sentences that say if runs' private models beat models without privacy, and why AUC is used."""
    private = [
        (line, worth)
        for line, worth in compared
        if line.runs[0].plan["private"] and model_of(line) in worth.judged
    ]
    figure = leading(compared)
    for other in (RIVALS[1], RIVALS[3]) if private else ():
        of_order: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for name, (line, worth) in zip(_named(private), private, strict=True):
            of_order[difference(worth, model_of(line), other, figure).order].append(name)
        words = {1: "better", 0: "no order is shown", -1: "worse"}
        parts = [f"{words[order]} with {'; '.join(names)}" for order, names in of_order.items() if names]
        yield f"Beside {other}, by {figure}: {', '.join(parts)}."
    worth = compared[0][1]
    shown, rows_in_all = worth.prevalence.get(EVERYWHERE, 0.5), worth.rows[EVERYWHERE]
    if figure == AREA and worth.judged:
        few = round(min(shown, 1 - shown) * rows_in_all)
        sentence, share = (OF_SEVERAL, shown) if worth.several else (RARE, max(shown, 1 - shown))
        yield sentence.format(rows=rows_in_all, share=100 * share, positive=worth.positive, few=few)
