"""Privacy plans in which each client spends the budget it chose, in noised updates or DP-SGD steps.

In steps of DP-SGD, a client spends its zCDP budget of the whole run at one noise. What steps on batches cost
does not add up by round as zCDP does: what is kept of the budgets by round is epsilon of their total.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.own_spending import OwnSpending
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, DPSGDSteps, Unit
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.records.calibration import step_noise, steps_epsilon
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_count, require_delta, require_positive, require_rate
from gdpfed.record_steps import Work

Floats = npt.NDArray[np.float64]

LEVELS = 8
MOST_EPSILON = 100.0
SAME = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class StepBudgets(ClientBudgets):
    """Clients' budgets if each round consists of tau DP-SGD steps on a client's own records.

    Attributes:
        budgets: what the steps are made of, and nobody is charged: rho_i^t, shape (num_rounds, n).
        steps: tau, of a client in a round that it takes part in.
        rate: q, the chance that a step draws a record.
        noise: sigma_i, of every step of a client, shape (n,).
        epsilons: that each client's steps of `most_rounds` rounds are within, shape (n,).
    """

    steps: int
    rate: float
    noise: Floats
    epsilons: Floats

    @classmethod
    def of(cls, spending: ClientBudgets, *, steps: int, rate: float, delta: float) -> Self:
        """Find noise for DP-SGD steps so that all steps of a client together cost at most its total budget.

        Budgets are rounded down to one of `LEVELS`, in equal ratios, for each of which a noise is found.
        Raises PrivacyError for numbers that are out of range, and for budgets that protect nobody.
        """
        require_count("the steps of a round", steps)
        require_rate("batch_rate", rate)
        targets = spending.most_epsilons(delta)
        if targets.max() > MOST_EPSILON:
            raise PrivacyError(
                f"a client may spend epsilon {targets.max():.4g}, and noise for steps is found up to "
                f"{MOST_EPSILON:g} alone, since more protects nobody: set a smaller method.budget_scale, or "
                "method.max_participations"
            )
        least, most = float(targets.min()), float(targets.max())
        if most <= least * (1 + SAME):
            levels = np.full_like(targets, least)
        else:
            ratio = np.log(most / least) / (LEVELS - 1)
            lower = np.floor(np.log(targets / least) / ratio + SAME)
            levels = np.asarray(np.minimum(least * np.exp(lower * ratio), targets))
        accountant, total = make_accountant("pld"), steps * spending.most_rounds
        found = {
            level: step_noise(accountant, epsilon=level, delta=delta, batch_rate=rate, num_steps=total)
            for level in sorted(set(levels.tolist()))
        }
        return cls(
            budgets=spending.budgets,
            draw_probabilities=spending.draw_probabilities,
            cohort_sizes=spending.cohort_sizes,
            draws=spending.draws,
            most_rounds=spending.most_rounds,
            steps=steps,
            rate=rate,
            noise=np.array([found[level] for level in levels.tolist()]),
            epsilons=levels,
        )

    spent_in: ClassVar[str] = "steps"

    @property
    def made_of(self) -> str:
        return (
            f"that of {self.steps} steps of DP-SGD a round at its own noise, each of a batch that is drawn "
            "in secret and takes every record in by chance"
        )

    def most_spent(self, quantile: float, delta: float) -> tuple[str, float]:
        return str(self.steps * self.most_rounds), float(np.quantile(self.epsilons, quantile))

    def totals(self, delta: float) -> dict[str, Any]:
        expected = (self.steps * self.inclusions().sum(axis=0)).tolist()
        return {"most_epsilon": self.most_epsilons(delta).tolist(), "expected_steps": expected}

    @property
    def local_steps(self) -> int:
        return self.steps

    @property
    def batch_rate(self) -> float:
        return self.rate

    def most_epsilons(self, delta: float) -> Floats:
        """Return the epsilon promised to each client, shape (n,)."""
        return self.epsilons

    def most_epsilon(self, rounds: int, delta: float) -> float:
        return self.most_expensive_epsilon(min(rounds, self.most_rounds), delta)

    def most_charges(self, rounds: int, unit: Unit) -> tuple[Charge, ...]:
        taken = min(rounds, self.most_rounds)
        if not taken:
            return ()
        steps = DPSGDSteps(
            batch_rate=self.rate, noise_multiplier=float(self.noise.min()), num_steps=self.steps
        )
        return (Charge(event=steps, count=taken, unit=unit),)

    def most_expensive_epsilon(self, participations: int, delta: float) -> float:
        return self._epsilon(float(self.noise.min()), participations, delta)

    def largest_epsilon(self, taken: Mapping[int, Sequence[int]], delta: float) -> float:
        """Return the largest epsilon of any client, given the rounds that each took part in."""
        ordered = sorted({(float(self.noise[client]), -len(rounds)) for client, rounds in taken.items()})
        largest, most = 0.0, 0
        for noise, less in ordered:
            if -less > most:
                most = -less
                largest = max(largest, self._epsilon(noise, most, delta))
        return largest

    def noise_multipliers(self, round_index: int, distance: float) -> Floats:
        return self.noise

    def to_dict(self) -> dict[str, Any]:
        own = {
            "num_steps": self.steps,
            "batch_rate": self.rate,
            "noise_multipliers": self.noise.tolist(),
            "epsilons": self.epsilons.tolist(),
        }
        return {**super().to_dict(), "steps": own}

    def _epsilon(self, noise: float, rounds: int, delta: float) -> float:
        return _steps_epsilon(self.rate, noise, rounds * self.steps, delta)


@lru_cache(maxsize=4096)
def _steps_epsilon(rate: float, noise: float, num_steps: int, delta: float) -> float:
    return steps_epsilon(
        make_accountant("pld"), batch_rate=rate, noise_multiplier=noise, num_steps=num_steps, delta=delta
    )


def spending_plan(
    spending: ClientBudgets,
    *,
    unit: Unit,
    adjacency: Adjacency,
    work: Work,
    clipping_norm: float,
    delta: float,
    accountant: str,
    sums_hidden: bool,
) -> PrivacyPlan:
    """Make a privacy plan with all clients in one group; its epsilon is the most that any client can spend.

    A client's whole cost is one Gaussian, exactly, or that of steps of DP-SGD, so the figures of privacy loss
    distributions are meant. Raises PrivacyError for another accountant and for input that is out of range.
    """
    if accountant != "pld":
        raise PrivacyError(
            f"privacy.accountant={accountant} does not go with method=fedpcs, whose costs are exact or were "
            "computed with pld: set privacy.accountant=pld"
        )
    num_rounds, num_clients = spending.budgets.shape
    require_positive("clipping_norm", clipping_norm)
    promised = float(spending.most_epsilons(require_delta(delta)).max())
    accounted = min(promised, spending.most_epsilon(num_rounds, delta))
    rates = (spending.cohort_sizes / num_clients).tolist()
    steps = spending.local_steps if unit == "record" else 0
    group = GroupPlan(
        epsilon=promised,
        epsilon_accounted=accounted,
        epsilon_against_server=accounted,
        participations_p99=spending.most_rounds,
        clients=range(num_clients),
        # The only noise is what each client adds by itself.
        ranges=tuple(
            RoundRange(
                num_rounds=1,
                sampling_rate=rate,
                clipping_norm=math.inf,
                noise_multiplier=0.0,
                record_steps=steps,
            )
            for rate in rates
        ),
    )
    return PrivacyPlan(
        groups=(group,),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=OwnSpending(
            sampling="poisson" if spending.draws == "poisson" else "fixed_size",
            adjacency=adjacency,
            unit=unit,
            works=(work,),
            one_sum=True,
            spending=spending,
            clipping_norm=clipping_norm,
        ),
        accountant="pld",
        clipping_norm=clipping_norm,
        sampling_rate=math.fsum(rates) / num_rounds,
        sums_hidden=sums_hidden,
    )
