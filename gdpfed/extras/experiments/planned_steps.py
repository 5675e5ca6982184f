"""Tables of noise variance per local step, by number of local steps, for plans that protect records."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.methods.rates import configured_delta, renyi_orders
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.mechanisms.records.calibration import knee_steps, step_grid, step_noise
from gdpfed.report.console import Table
from gdpfed.report.metric_display import dataset_label
from gdpfed.report.plots import line_style, new_figure, new_panels, save, shared_legend, styled

FIGURE_HEADINGS = ("dataset", "row", "epsilon", "local_steps", "num_steps", "sigma", "sigma2_per_step")


@dataclass(frozen=True)
class StepNoise:
    """The smallest noise that a budget allows, for each number of local steps in a round.

    `local_steps`: tau, ascending; the last is the most that is looked at. `sigmas`: the least noise for so
    many steps a round, within the budget. `knee`: the tau of method.rule=knee.
    """

    epsilon: float
    num_rounds: int
    local_steps: tuple[int, ...]
    sigmas: tuple[float, ...]
    knee: int

    @property
    def noise(self) -> list[float]:
        """sigma^2 / (R tau): noise variance divided by the number of steps in R rounds of tau steps."""
        return [
            sigma**2 / (self.num_rounds * tau)
            for tau, sigma in zip(self.local_steps, self.sigmas, strict=True)
        ]


Planned = Sequence[tuple[Cell, StepNoise | str]]


def present_steps(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Make tables and a picture of the smallest noise within a budget, by number of local steps."""
    planned = [(cell, _noise_or_reason(cell)) for cell in cells]
    figures = []
    for cell, noise in planned:
        if isinstance(noise, str):
            continue
        for tau, sigma, each in zip(noise.local_steps, noise.sigmas, noise.noise, strict=True):
            steps = noise.num_rounds * tau
            figures.append(
                [
                    *(cell.dataset, cell.row, f"{noise.epsilon:g}"),
                    *(str(tau), str(steps), f"{sigma:.5f}", f"{each:.6f}"),
                ]
            )
    return Presentation(
        tables=[_table(experiment, name, planned) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, figures),
        draw=partial(_draw, experiment, datasets, planned),
    )


def _noise_or_reason(cell: Cell) -> StepNoise | str:
    config = cell.config
    privacy, num_rounds = config.privacy, config.run.num_rounds
    epsilon, delta = max(privacy.budgets), configured_delta(config)
    try:
        accountant = make_accountant(privacy.accountant, renyi_orders(config))

        def noise_of(num_steps: int) -> float:
            return step_noise(
                accountant, epsilon=epsilon, delta=delta, batch_rate=privacy.batch_rate, num_steps=num_steps
            )

        grid = tuple(step_grid(config.method.most_local_steps))
        knee = knee_steps(noise_of, num_rounds, config.method.most_local_steps)
        return StepNoise(epsilon, num_rounds, grid, tuple(noise_of(num_rounds * tau) for tau in grid), knee)
    except (ConfigError, PrivacyError) as error:
        return str(error)


def _table(experiment: Experiment, dataset: str, planned: Planned) -> Table:
    footnotes = Footnotes()
    own = [(experiment.rows[cell.row].label, noise) for cell, noise in planned if cell.dataset == dataset]
    grid = next((noise.local_steps for _, noise in own if not isinstance(noise, str)), ())
    headings = [experiment.row_heading, "knee: tau", "sigma", *(f"tau {tau}" for tau in grid)]
    rows = []
    for label, noise in own:
        if isinstance(noise, str):
            rows.append([label, footnotes.mark(noise), *[""] * (len(grid) + 1)])
        else:
            sigma = noise.sigmas[noise.local_steps.index(noise.knee)]
            rows.append([label, str(noise.knee), f"{sigma:.4f}", *(f"{each:.4f}" for each in noise.noise)])
    note = "\n".join(
        filter(None, ["By tau: sigma^2 / T, the noise for each unit of learning.", footnotes.text()])
    )
    return Table(f"{experiment.title}, {dataset_label(dataset)}", headings, rows, note)


@styled
def _draw(experiment: Experiment, datasets: Sequence[str], planned: Planned, path: Path) -> None:
    """Plot noise variance per step over local steps tau: one curve per table row, with a ring at the knee."""
    figure = new_figure(6.4 if len(datasets) == 1 else 8.0, 3.2 * -(-len(datasets) // 2))
    panels = new_panels(figure, len(datasets), columns=2)
    for axes, dataset in zip(panels, datasets, strict=True):
        axes.set_title(dataset_label(dataset))
        own = [(cell, noise) for cell, noise in planned if cell.dataset == dataset]
        for index, (cell, noise) in enumerate(own):
            if isinstance(noise, str):
                continue
            style, label = line_style(index), f"{experiment.row_heading} {experiment.rows[cell.row].label}"
            axes.plot(noise.local_steps, noise.noise, label=label, **style)
            at = noise.local_steps.index(noise.knee)
            axes.plot(noise.knee, noise.noise[at], "o", color=style["color"], markersize=10, fillstyle="none")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("steps between rounds, $\\tau$ (ring: knee)")
        axes.set_ylabel("$\\sigma^2 / T$")
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)
