"""Compared models: metrics in total and by party, and each test row's part in a metric's sampling error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.report.class_figures import AREA, Figure
from gdpfed.report.console import Table
from gdpfed.report.metric_display import TOO_FEW

EVERYWHERE = "all"
HEADINGS = ("accuracy", "AUC", "balanced accuracy"), ("sensitivity", "specificity", "calibration")
BY_PARTY = (DEFAULT, AREA)
"""What is shown by party."""
MOST_COLUMNS = 20
"""Parties of which each has a column; of more only those with enough rows."""
NOTE = (
    "In percent, with 95 % intervals that follow from the number of test rows alone. The figures come from "
    "these rows without noise: no budget covers them, and by party they tell of that party. Not accounted: "
    "trained on a party's own rows without noise, for its own use. None: without privacy, for comparison."
)
OF_TWO = (
    "Class 1 is '{positive}'. Sensitivity: of its rows; specificity: of the others. Calibration: the mean "
    "predicted probability minus the share of class 1."
)


@dataclass(frozen=True, eq=False)
class Judged:
    """One metric of one model, such as accuracy, and each test row's part in the metric's sampling error.

    `values`: of each run, shape (k,). `terms`: what each row adds to its error, mean over the runs, of shape
    (N,) (:func:`gdpfed.report.class_figures.row_terms`).
    """

    values: npt.NDArray[np.float64]
    terms: npt.NDArray[np.float64]

    @classmethod
    def mean(cls, found: "Sequence[Judged]") -> "Judged":
        """Average a metric over several runs that use the same test rows."""
        return cls(
            np.concatenate([each.values for each in found]), np.mean([each.terms for each in found], axis=0)
        )


@dataclass(frozen=True, eq=False)
class Worth:
    """Metrics of a run's model and of the models that it is compared with, in total and by party.

    Attributes:
        title: what was compared.
        positive: what class 1 is called; of several classes, what the most frequent one is called.
        rows: test rows by party, and of all.
        prevalence: share of that class, by party and of all.
        figures: by model, then by party or `EVERYWHERE`, then by words.
        privacy: by model.
        several: whether there are more than two classes.
        leading: the figure that the answer is about, accuracy or AUC.
        judged: by model, then accuracy and AUC on all test rows.
        persons: whom each test row is about, shape (N,); None where rows are taken as independent.
    """

    title: str
    positive: str
    rows: Mapping[str, int]
    prevalence: Mapping[str, float]
    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    privacy: Mapping[str, str]
    several: bool = False
    leading: str = DEFAULT
    judged: Mapping[str, Mapping[str, Judged]] = field(default_factory=dict)
    persons: npt.NDArray[np.int64] | None = None

    @property
    def parties(self) -> list[str]:
        """The names of the parties, in order."""
        return [name for name in self.rows if name != EVERYWHERE]

    def tables(self) -> list[Table]:
        """Return the tables to print: results on all test rows, then accuracy and AUC for each party."""
        has = self.figures[next(iter(self.figures))][EVERYWHERE]
        overall = [
            Table(
                title=f"{self.title}: all {self.rows[EVERYWHERE]} test rows",
                headings=("model", "privacy", *names),
                rows=[
                    [model, self.privacy[model], *(each[EVERYWHERE][name].text() for name in names)]
                    for model, each in self.figures.items()
                ],
                note=note,
            )
            for names, note in zip(HEADINGS, (NOTE, OF_TWO.format(positive=self.positive)), strict=True)
            if set(names) <= set(has)
        ]
        return [*overall, *(self._by_party(name) for name in BY_PARTY if self._columns)]

    @property
    def _columns(self) -> list[str]:
        """The parties that get a column in tables: all; if they are many, those with enough test rows."""
        enough = [party for party in self.parties if self.rows[party] >= FEWEST]
        return self.parties if len(self.parties) <= MOST_COLUMNS else enough

    def _by_party(self, name: str) -> Table:
        parties = self._columns
        rows = [
            ["test rows", *(str(self.rows[party]) for party in parties)],
            [f"share of {self.positive}", *(f"{100 * self.prevalence[each]:.1f}" for each in parties)],
            *(
                [
                    model,
                    *(
                        each[party][name].text() if self.rows[party] >= FEWEST else TOO_FEW
                        for party in parties
                    ),
                ]
                for model, each in self.figures.items()
            ),
        ]
        note = f"Of a party with fewer than {FEWEST} test rows nothing is shown."
        return Table(f"{self.title}: {name} by party", ("model", *parties), rows, note)

    def to_values(self) -> dict[str, object]:
        """Return the whole comparison as data for JSON; null where a metric is not defined."""
        return {
            "positive": self.positive,
            "leading": self.leading,
            "rows": dict(self.rows),
            "prevalence": dict(self.prevalence),
            "privacy": dict(self.privacy),
            "figures": {
                model: {
                    party: {
                        name: None if np.isnan(f.value) else [f.value, f.low, f.high]
                        for name, f in own.items()
                    }
                    for party, own in each.items()
                }
                for model, each in self.figures.items()
            },
        }
