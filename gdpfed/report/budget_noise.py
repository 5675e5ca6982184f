"""``gdpfed plan --epsilons``: how much noise each privacy budget needs, as text, JSON or PNG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.load import load
from gdpfed.errors import ConfigError
from gdpfed.methods import METHODS, make_method, resolve
from gdpfed.methods.record_method import RecordMethod
from gdpfed.report.plots import SIZE_INCHES, line_style, new_figure, new_panels, save, styled
from gdpfed.report.record_comparison import noise_of_learning

BAR = 44
WORDS = (
    "Noise of a whole run in a parameter: as large as the pull of so many of\n"
    "{units:.0f} {unit}s. What fewer of them have in common is lost in it."
)


@dataclass(frozen=True)
class BudgetNoise:
    """The noise of a planned run in which all clients have the same budget.

    Attributes:
        epsilon: the budget.
        rounds: of the run.
        sigma: noise multiplier of a step or a sum.
        noise: standard deviation of the noise of all rounds together over the step that they make, in units
            of one record's or client's bound, shared out over all of them.
        unit: whose presence it hides.
        units: how many there are.
    """

    epsilon: float
    rounds: int
    sigma: float
    noise: float
    unit: str
    units: float


def budget_noises(overrides: Sequence[str], epsilons: Sequence[float]) -> list[BudgetNoise]:
    """Plan the noise for each epsilon, taken as the privacy budget of all clients; return each plan's noise.

    Raises:
        ConfigError: a method without such noise, or budgets that are the clients' own.
        PrivacyError: a budget that no noise reaches.
    """
    config = load(overrides)
    method = METHODS.get(config.method.name)
    if not (method.compared and method.unit is not None) and not issubclass(method, RecordMethod):
        raise ConfigError(
            f"--epsilons compares noise under one budget for all, which method={config.method.name} does not "
            "have: use another method"
        )
    noises = []
    for epsilon in epsilons:
        given = [f"privacy.budgets=[{epsilon!r}]", "privacy.group_shares=null"]
        own_config = resolve(load([*overrides, *given]))
        planned = make_method(own_config)
        plan, clients = planned.plan, own_config.dataset.num_clients
        if isinstance(planned, RecordMethod):
            sigma = plan.mechanism.records[0].noise_multiplier  # type: ignore[attr-defined]  # it takes steps on records
            noise = noise_of_learning(plan, by_batch=planned.weighs_by_batch) * clients
            unit, units = "record", float(planned.record_counts.sum())
        else:
            noise = planned.weighting.noise_per_step(plan) * clients / math.sqrt(plan.num_rounds)
            sigma = plan.groups[0].noise_multiplier
            unit, units = "client", float(clients)
        noises.append(BudgetNoise(epsilon, plan.num_rounds, sigma, noise, unit, units))
    return noises


def budget_text(noises: Sequence[BudgetNoise]) -> str:
    """Return text with a line for each privacy budget, in which a bar shows how large the noise is."""
    largest = max(noise.noise for noise in noises)
    lines = [
        f"{each.epsilon:>8.4g} {each.rounds:>6} {each.sigma:>8.3g} {each.noise:>8.3g}  "
        + "#" * max(1, round(BAR * each.noise / largest))
        for each in noises
    ]
    words = WORDS.format(units=noises[0].units, unit=noises[0].unit)
    return "\n".join([words, f"{'epsilon':>8} {'rounds':>6} {'sigma':>8} {'noise':>8}", *lines])


@styled
def draw_budgets(noises: Sequence[BudgetNoise], path: Path) -> None:
    """Draw noise against epsilon as PNG, with logarithmic axes."""
    figure = new_figure(*SIZE_INCHES)
    (axes,) = new_panels(figure, 1, columns=1)
    axes.loglog([noise.epsilon for noise in noises], [noise.noise for noise in noises], **line_style(0))
    axes.set_xlabel("epsilon")
    axes.set_ylabel(f"noise of a run ({noises[0].unit}s)")
    axes.set_title(f"What a budget buys, of {noises[0].units:.0f} {noises[0].unit}s")
    axes.grid(alpha=0.3)
    save(figure, path)
