"""Computes what each part of the method FedPCS contributes, without training: noise, bias, cost, welfare.

Figures are expectations over samples, without simulation, and means over the rounds.

python -m benchmarks.worth [OVERRIDE ...]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.harness import publish, read_options
from conf.load import load
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.configured_game import configured_game
from gdpfed.extras.fedpcs.fedpcs import FedPCS
from gdpfed.extras.fedpcs.game.posted_price import posted_price_budgets, welfare
from gdpfed.report.console import Table

Floats = npt.NDArray[np.float64]

SETTING = (
    "method=fedpcs",
    "privacy=record_level",
    "dataset=digits",
    "dataset.num_clients=50",
    "privacy.sampling_rate=0.3",
    "run.num_rounds=40",
    "method.budget_scale=0.01",
)
UNBIASED = "method.weights=horvitz_thompson"
RANDOM = "method.client_sampling=random"
ROWS = {
    "FedPCS as the source": ("method.weights=paper", "method.draws=without_replacement"),
    "FedPCS, unbiased": (UNBIASED,),
    "FedPCS, weights by budget": (),
    "random, unbiased": (RANDOM, UNBIASED),
    "random, weights by budget": (RANDOM,),
    "x ~ first budgets, unbiased": ("method.client_sampling=first_budgets", UNBIASED),
    "optimal unbiased": ("method.client_sampling=unbiased", UNBIASED),
    "optimal chances, weights by budget": ("method.client_sampling=unbiased",),
}
# The integral over t = z / (1 - z), z by Gauss and Legendre's rule.
POINTS = 400
HEADINGS = ("", "noise of a step / C", "lean (%)", "mean epsilon", "expected zCDP", "welfare a round")


@dataclass(frozen=True, kw_only=True)
class Step:
    """How much noise and bias client sampling adds to a model's step, on average over samples.

    `variance`: of the noise of a coordinate, over C^2. `weights`: of every client, 0 where it is not in the
    sample, shape (n,).
    """

    variance: float
    weights: Floats

    def lean(self, shares: Floats) -> float:
        """Return a step's bias: half the sum over clients of |expected weight E w_i - target theta_i|."""
        return float(np.abs(self.weights - shares).sum() / 2)


def weighed(chances: Floats, weights: Floats, variances: Floats) -> Step:
    """Return noise and bias of a model step if clients' weights do not depend on who is sampled.

    The variance is sum_i pi_i w_i^2 sigma_i^2. It holds for any draws, as noise is independent; w =
    theta / pi makes it sum_i theta_i^2 sigma_i^2 / pi_i.

    Args:
        chances: pi_i, shape (n,).
        weights: w_i, shape (n,).
        variances: sigma_i^2 of the noise that each client adds, over C^2, shape (n,).
    """
    return Step(variance=float(chances @ (weights**2 * variances)), weights=chances * weights)


def shared_out(chances: Floats, weights: Floats, variances: Floats) -> Step:
    """Return noise and bias of a model step with client weights w_i / W; W: sum of w_j over sampled clients.

    With f(t) = prod_j (1 - pi_j + pi_j e^(-t w_j)), the transform of W, both are integrals over t:

        E[w_i / W; i in S]       = int   pi_i w_i   e^(-t w_i) f(t) / (1 - pi_i + pi_i e^(-t w_i)) dt
        E[(w_i / W)^2; i in S]   = int t pi_i w_i^2 e^(-t w_i) f(t) / (1 - pi_i + pi_i e^(-t w_i)) dt

    Arguments are those of :func:`weighed`.
    """
    weights = weights / (chances @ weights)
    nodes, areas = np.polynomial.legendre.leggauss(POINTS)
    z = (nodes + 1) / 2
    t, dt = (z / (1 - z))[:, None], (areas / 2 / (1 - z) ** 2)[:, None]
    gone = np.exp(-t * weights)
    factors = 1 - chances + chances * gone
    present = np.exp(np.log(factors).sum(axis=1, keepdims=True)) / factors * chances * weights * gone
    first, second = (dt * present).sum(axis=0), (dt * t * present * weights).sum(axis=0)
    return Step(variance=float(second @ variances), weights=first)


def steps_of(method: FedPCS) -> list[Step]:
    """Return the noise and bias that client sampling adds in each round of a FedPCS plan, on average."""
    spending, counts = method.spending, method.declared.record_counts
    found = []
    for t, chances in enumerate(method.inclusions):
        variances = (spending.noise_multipliers(t, method.plan.mechanism.distance) / counts) ** 2
        by = shared_out if method.config.method.weights == "budget" else weighed
        found.append(by(chances, method.client_weights(t), variances))
    return found


def row(name: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Make a FedPCS plan with these settings, and return its table row."""
    config = load(overrides)
    method = FedPCS.from_config(config)
    spending, totals = method.spending, method.spending.expected_totals()
    steps, game = steps_of(method), configured_game(config)
    worths = [
        welfare(budgets / config.method.budget_scale, game.aversions, config.method.reward)
        for budgets in spending.budgets
    ]
    return (
        name,
        f"{np.sqrt(np.mean([step.variance for step in steps])):.4f}",
        f"{100 * np.mean([step.lean(method.declared.shares) for step in steps]):.1f}",
        f"{np.mean([epsilon_of_total(rho, method.plan.delta) for rho in totals.tolist()]):.3f}",
        f"{totals.sum():.2f}",
        f"{np.mean(worths):.1f}",
    )


def posted(setting: Sequence[str]) -> list[tuple[str, ...]]:
    """Return table rows for budgets that clients choose after the server has announced a price."""
    config = load(setting)
    answers = posted_price_budgets(configured_game(config), config.method.reward)
    words = [
        *setting,
        RANDOM,
        "method.spending=first",
        f"method.first_budgets=[{','.join(map(repr, answers.tolist()))}]",
    ]
    aversions = configured_game(config).aversions.tolist()
    words.append(f"method.aversions=[{','.join(map(repr, aversions))}]")
    spent, wanted = (
        FedPCS.from_config(load(each)).spending.expected_totals().sum() for each in (words, setting)
    )
    scaled = f"method.budget_scale={float(config.method.budget_scale * wanted / spent)!r}"
    return [
        row("posted price, unbiased", [*words, UNBIASED]),
        row("posted price, weights by budget", words),
        row("posted price, same zCDP, unbiased", [*words, scaled, UNBIASED]),
        row("posted, same zCDP, weights by budget", [*words, scaled]),
    ]


def main() -> None:
    """Make FedPCS plans that differ in parts of the method, one for each table row; show the table."""
    options = read_options(__doc__, overrides=True)
    setting = [*SETTING, *options.overrides]
    rows = [row(name, [*setting, *overrides]) for name, overrides in ROWS.items()]
    publish([Table("What each part of FedPCS is worth", HEADINGS, [*rows, *posted(setting)])], options.write)


if __name__ == "__main__":
    main()
