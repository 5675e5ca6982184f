"""Clients' zCDP budgets in each round, how clients are sampled, and the resulting epsilon.

A client adds noise of its own to what it releases, at rho_i^t zCDP in the unit of the plan. So its whole cost
is one Gaussian mechanism: epsilon(rho), rho being the sum over the rounds that it took part in. Each client
adds its own noise, so its absence is visible and sampling does not amplify. Whoever cannot know the samples
sees a mixture of these Gaussians, and no more is proved.

A rule may draw the samples from what clients have released before: from class counts that each has released
once (`fed_cbs`), or from noised gradients (`delta`). Then nobody knows the chances beforehand, and what is
expected is taken as if all were K / n. Gaussian mechanisms whose number follows from earlier ones cost what
one of the largest total costs (Smith and Thakurta, arXiv:2210.17520): what is promised holds for any rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.weighted_draws import Draws, WeightedDraws, weighted_draws
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, Unit
from gdpfed.privacy.validation import require_count, require_delta

special = late_import("scipy.special")

Floats = npt.NDArray[np.float64]
Rule = Literal["fed_cbs", "delta"]
TOTALS_A_ROUND = 50
MOST_SECRET_EPSILON = 1e4


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientBudgets:
    """What each client spends in each round, and with which probability it is sampled.

    Attributes:
        budgets: rho_i^t, shape (num_rounds, n).
        draw_probabilities: x_i^t, the chances of one draw, of the same shape; each round's sum to one.
        cohort_sizes: K of every round, shape (num_rounds,).
        draws: how samples are drawn.
        most_rounds: a client takes part in no more rounds than these.
        rule: by which samples follow from what clients have released; None where chances are known.
        counts_rho: zCDP at which every client releases its class counts before the first round, whether it
            is ever drawn or not; 0 where none does.
    """

    spent_in: ClassVar[str] = "zCDP"

    budgets: Floats
    draw_probabilities: Floats
    cohort_sizes: npt.NDArray[np.int64]
    draws: Draws
    most_rounds: int
    rule: Rule | None = None
    counts_rho: float = 0.0

    def __post_init__(self) -> None:
        if self.budgets.shape != self.draw_probabilities.shape or self.budgets.ndim != 2:
            raise PrivacyError(
                f"budgets have shape {self.budgets.shape} and chances {self.draw_probabilities.shape}; give "
                "one of each for every round and client"
            )
        if not np.all((self.budgets > 0) & (self.budgets < np.inf)):
            raise PrivacyError(
                f"a round's budget is {self.budgets.min():g}; every budget must be finite and above 0"
            )
        require_count("most_rounds", self.most_rounds)
        weighted_draws(self.draws)
        if not 0 <= self.counts_rho < math.inf:
            raise PrivacyError(f"counts_rho is {self.counts_rho}; it must be finite and not negative")

    @property
    def local_steps(self) -> int:
        """The number of noised releases that a client makes in a round: always 1 here."""
        return 1

    @property
    def batch_rate(self) -> float:
        """The probability that a release uses a given record: always 1 here."""
        return 1.0

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return len(self.budgets)

    @property
    def law(self) -> WeightedDraws:
        """The random sampling scheme by which clients are drawn."""
        return weighted_draws(self.draws)

    def inclusion(self, round_index: int) -> Floats:
        """Return pi_i, each client's probability to be sampled in a round, shape (n,)."""
        if self.rule is not None:
            return np.full(self.budgets.shape[1], self.cohort_sizes[round_index] / self.budgets.shape[1])
        return self.law.inclusion(self.draw_probabilities[round_index], int(self.cohort_sizes[round_index]))

    def inclusions(self) -> Floats:
        """Return pi_i^t, each client's probability to be sampled in each round, shape (num_rounds, n)."""
        return np.stack([self.inclusion(index) for index in range(self.num_rounds)])

    def worst_totals(self, rounds: int) -> Floats:
        """Return the largest zCDP that each client can spend in this number of rounds, shape (n,).

        It may be asked in the most expensive of them.
        """
        most = min(rounds, self.most_rounds)
        asked = np.sort(self.budgets[:rounds], axis=0)[rounds - most :].sum(axis=0)
        return np.asarray(asked + self.counts_rho)

    def most_epsilons(self, delta: float) -> Floats:
        """Return the largest epsilon that each client can spend, shape (n,)."""
        totals = self.worst_totals(self.num_rounds).tolist()
        return np.array([epsilon_of_total(rho, delta) for rho in totals])

    @property
    def made_of(self) -> str:
        """Say in words, for reports, from which releases a client's epsilon is computed."""
        return "that of one Gaussian mechanism of its total zCDP"

    def most_spent(self, quantile: float, delta: float) -> tuple[str, float]:
        """Return the given quantile of clients' largest possible zCDP: as text, and converted to epsilon."""
        rho = float(np.quantile(self.worst_totals(self.num_rounds), quantile))
        return f"{rho:.5g}", epsilon_of_total(rho, delta)

    def totals(self, delta: float) -> dict[str, Any]:
        """Return each client's expected and largest cost as JSON."""
        expected, inclusions = self.expected_totals().tolist(), self.inclusions()
        totals = {
            "most_epsilon": self.most_epsilons(delta).tolist(),
            "expected_zcdp": expected,
            "expected_epsilon": [epsilon_of_total(rho, delta) for rho in expected],
            "most_zcdp": self.worst_totals(self.num_rounds).tolist(),
        }
        if self.draws == "poisson" and self.rule is None:
            totals["epsilon_secret_samples"] = [
                epsilon_of_secret_samples(budgets, chances, delta)
                for budgets, chances in zip(self.budgets.T, inclusions.T, strict=True)
            ]
        return totals

    def most_epsilon(self, rounds: int, delta: float) -> float:
        """Return the largest epsilon that any client can have spent after this number of rounds."""
        return epsilon_of_total(float(self.worst_totals(rounds).max()), delta)

    def most_charges(self, rounds: int, unit: Unit) -> tuple[Charge, ...]:
        """Return the cost of the client that can spend most: one Gaussian release with mu = sqrt(2 rho)."""
        rho = float(self.worst_totals(rounds).max()) if rounds else self.counts_rho
        if not rho:
            return ()
        return (
            Charge(
                event=Gaussian(noise_stddev=1 / math.sqrt(2 * rho), clipping_norm=1.0), count=1, unit=unit
            ),
        )

    def most_expensive_epsilon(self, participations: int, delta: float) -> float:
        """Return the largest epsilon that any client can have spent in this number of participations."""
        if participations == 0:
            return self.first_epsilon(delta)
        most_expensive = np.sort(self.budgets, axis=0)[-participations:]
        return epsilon_of_total(float(most_expensive.sum(axis=0).max()) + self.counts_rho, delta)

    def first_epsilon(self, delta: float) -> float:
        """Return epsilon of the class counts that each client releases before round 1."""
        return epsilon_of_total(self.counts_rho, delta)

    def largest_epsilon(self, taken: Mapping[int, Sequence[int]], delta: float) -> float:
        """Return the largest epsilon of any client, given the rounds that each took part in."""
        totals = (self.total(client, rounds) for client, rounds in taken.items())
        return epsilon_of_total(max(totals, default=self.counts_rho), delta)

    def noise_multipliers(self, round_index: int, distance: float) -> Floats:
        """Return each client's noise in a round, in units of the clipping norm C, shape (n,).

        rho = distance^2 / (2 z^2), so z = distance / sqrt(2 rho).
        """
        return np.asarray(distance / np.sqrt(2 * self.budgets[round_index]))

    def expected_totals(self) -> Floats:
        """Return each client's expected zCDP: sum_t pi_i^t rho_i^t plus that of class counts, shape (n,)."""
        return np.asarray((self.inclusions() * self.budgets).sum(axis=0) + self.counts_rho)

    def total(self, position: int, rounds: Sequence[int]) -> float:
        """Return the zCDP that one client has spent if it took part in these rounds."""
        return math.fsum([self.counts_rho, *self.budgets[list(rounds), position].tolist()])

    def to_dict(self) -> dict[str, Any]:
        """Return clients' budgets as JSON, from which an audit recomputes all totals."""
        values = {
            "draws": self.draws,
            "most_rounds": self.most_rounds,
            "cohort_sizes": self.cohort_sizes.tolist(),
            "budgets": self.budgets.tolist(),
            "draw_probabilities": self.draw_probabilities.tolist(),
        }
        return values if self.rule is None else values | {"rule": self.rule, "counts_rho": self.counts_rho}


@lru_cache(maxsize=65_536)
def epsilon_of_total(rho: float, delta: float) -> float:
    """Return the exact epsilon at delta of Gaussian mechanisms with rho zCDP in total.

    Balle and Wang, arXiv:1805.06530, Theorem 8; rho + 2 sqrt(rho ln 1/delta) is a looser stand-in.
    """
    require_delta(delta)
    return 0.0 if rho == 0 else gaussian_epsilon(1 / math.sqrt(2 * rho), delta)


def epsilon_of_secret_samples(budgets: Floats, chances: Floats, delta: float) -> float:
    """Return epsilon at delta against adversaries who do not know who was sampled.

    delta(epsilon) is the mean of that of one Gaussian of rho, rho being the random total: joint convexity,
    and no more is true, as whether a client takes part may show. Totals are rounded up to 1 / 50 of a mean
    round. `budgets`: of one client by round, shape (num_rounds,). `chances`: that it is in the round's
    sample, of the same shape. `delta`: of the figure.
    """
    require_delta(delta)
    step = float(budgets.mean()) / TOTALS_A_ROUND
    costs = np.ceil(budgets / step - 1e-9).astype(np.int64)
    masses = np.zeros(int(costs.sum()) + 1)
    masses[0] = 1.0
    for cost, chance in zip(costs.tolist(), chances.tolist(), strict=True):
        moved = np.zeros_like(masses)
        moved[cost:] = masses[: len(masses) - cost]
        masses = (1 - chance) * masses + chance * moved
    present = masses > 0
    present[0] = False
    mu, weights = np.sqrt(2 * step * np.flatnonzero(present)), masses[present]

    def excess(epsilon: float) -> float:
        far = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
        return float((weights * (special.ndtr(mu / 2 - epsilon / mu) - far)).sum()) - delta

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        if high > MOST_SECRET_EPSILON:
            return math.inf
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
