"""Weights of the groups' released sums in the model update; choosing them costs no privacy.

Source: Xu, Hu, Kotevska, "Optimal Client Sampling in Federated Learning with Client-Level Heterogeneous
Differential Privacy", Section 4 and Table 5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.mechanism_options import kept_noise
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_choice, require_length, require_number

RELATIVE_NOISE = 0.12
"""Of all rounds together, in a parameter and in units of C: the most that the rule's step brings."""

Reweighting = Literal["uniform", "squared_participation"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The weight of each group's released sum in the model update, and the fraction that top-k keeps of it.

    Attributes:
        reweighting: the rule of the weights.
        group_weights: omega_m, one a group.
        keep_fractions: k_m / d, one a group: how much of a sum top-k keeps.
    """

    reweighting: Reweighting
    group_weights: tuple[float, ...]
    keep_fractions: tuple[float, ...]

    @classmethod
    def of(
        cls,
        plan: PrivacyPlan,
        reweighting: str = "uniform",
        keep_fractions: Sequence[float] | None = None,
    ) -> "Weighting":
        """Return the weights of a plan's groups; with `keep_fractions` None, top-k keeps all entries.

        Raises PrivacyError for a rule that there is not, fractions outside (0, 1], and, where all groups are
        one sum, for what would need their sums one by one.
        """
        expected = [group.expected_cohort_size for group in plan.groups]
        weights = group_weights(expected, plan.sampling_rate * plan.num_clients, reweighting)
        if keep_fractions is None:
            keep = (1.0,) * len(plan.groups)
        else:
            require_length("keep_fractions", keep_fractions, len(plan.groups))
            for fraction in keep_fractions:
                if not 0.0 < require_number("keep_fraction", fraction) <= 1.0:
                    raise PrivacyError(f"keep_fraction is {fraction}; choose it within (0, 1]")
            keep = tuple(float(fraction) for fraction in keep_fractions)
        if plan.one_sum and (reweighting != "uniform" or len(set(keep)) > 1):
            raise PrivacyError(
                f"reweighting {reweighting} and keep_fractions {keep} treat groups apart; "
                "one sum of all groups has one weight, uniform, and one keep_fraction"
            )
        return cls(reweighting=reweighting_rule(reweighting), group_weights=weights, keep_fractions=keep)

    def noise_magnitude(self, plan: PrivacyPlan) -> float:
        """Return the GDPFed paper's noise magnitude Lambda, for a privacy plan with these weights."""
        return noise_magnitude(plan.groups, self.reweighting, self.keep_fractions)

    def effective_step(self, plan: PrivacyPlan) -> float:
        """Return the norm of the model's expected change if all drawn clients send the same update of norm 1.

        1 under uniform weights; 1/M under squared_participation for M equal groups at one rate.
        """
        return math.fsum(
            weight * group.expected_cohort_size
            for weight, group in zip(self.group_weights, plan.groups, strict=True)
        )

    def noise_per_step(self, plan: PrivacyPlan) -> float:
        """Return a round's noise in a parameter, divided by the model's step when all clients' updates agree.

        sqrt(sum_m omega_m^2 s_m^2) / (sum_m omega_m r_m C_m), s_m = C_m sigma_m; where all groups are one
        sum, the noise is omega s. The step is that of an update which all clients agree on and which is
        clipped. Top-k and projection are left out. Of noise that later rounds take back in part, what
        stays in the last model counts.
        """
        if not plan.private:
            return 0.0
        pairs = list(zip(self.group_weights, plan.groups, strict=True))
        step = math.fsum(weight * each.expected_cohort_size * each.clipping_norm for weight, each in pairs)
        if plan.adaptive_clipping is not None:
            step *= plan.adaptive_clipping.update_share
        noises = [
            weight * each.noise_stddev * kept_noise(plan.mechanism, m, plan.num_rounds)
            for m, (weight, each) in enumerate(pairs)
        ]
        return math.hypot(*(noises[:1] if plan.one_sum else noises)) / step

    def to_dict(self, plan: PrivacyPlan) -> dict[str, Any]:
        """Return the weighting as a JSON object: weights, top-k fractions, resulting noise and step."""
        return {
            "reweighting": self.reweighting,
            "group_weights": list(self.group_weights),
            "keep_fractions": list(self.keep_fractions),
            "noise_magnitude": self.noise_magnitude(plan),
            "effective_step": self.effective_step(plan),
            "noise_per_step": self.noise_per_step(plan),
        }


def reweighting_rule(name: str) -> Reweighting:
    """Return the name of the rule for groups' weights; raise PrivacyError if it is unknown."""
    require_choice("reweighting", name, get_args(Reweighting))
    return "uniform" if name == "uniform" else "squared_participation"


def relative_weights(sizes: Floats, reweighting: Reweighting) -> Floats:
    """Return the weights of the groups' sums, not normalised, from cohort sizes of shape (..., M)."""
    return np.ones_like(sizes) if reweighting == "uniform" else sizes**2


def group_weights(
    expected_cohort_sizes: Sequence[float], mean_cohort_size: float, reweighting: str
) -> tuple[float, ...]:
    """Return omega_m, the factors by which the model update multiplies the sums of all groups.

    omega_m = 1 / (q n) for `uniform`, omega_m = r_m^2 / (q n sum_j r_j^2) for
    `squared_participation`, with r_m = `expected_cohort_sizes` and q n = `mean_cohort_size`.
    """
    require_choice("reweighting", reweighting, get_args(Reweighting))
    if reweighting == "uniform":
        return (1 / mean_cohort_size,) * len(expected_cohort_sizes)
    squares = math.fsum(size**2 for size in expected_cohort_sizes)
    return tuple(size**2 / (mean_cohort_size * squares) for size in expected_cohort_sizes)


def noise_magnitude(
    groups: Sequence[GroupPlan], reweighting: Reweighting, keep_fractions: Sequence[float]
) -> float:
    """Return the GDPFed paper's noise magnitude Lambda = (1 / M) sum_m (k_m / d) v_m C_m^2 sigma_m^2.

    It is the noise per parameter (Table 5).
    v_m = 1 under `uniform`, v_m = r_m^2 / sum_j r_j^2 under `squared_participation`. The paper has
    C_m = C. Where all groups are one sum, every term is the variance of its noise, and so is Lambda,
    which is how the paper counts DP-FedAvg.
    """
    squares = math.fsum(group.expected_cohort_size**2 for group in groups)
    total = math.fsum(
        keep
        * (1.0 if reweighting == "uniform" else group.expected_cohort_size**2 / squares)
        * group.noise_stddev**2
        for group, keep in zip(groups, keep_fractions, strict=True)
    )
    return total / len(groups)


def step_of_noise(noise_per_step: float, num_rounds: int) -> float:
    """Return the largest server learning rate up to 1 that keeps the total noise within 0.12 clipping norms.

    v is the noise of a round in a parameter, in units of C, at a step of one (`Weighting.noise_per_step`);
    it holds what the rule needs of budgets, cohorts and rates. Independent rounds add up to sqrt(T) v.
    """
    noise = math.sqrt(num_rounds) * noise_per_step
    return 1.0 if noise <= RELATIVE_NOISE else RELATIVE_NOISE / noise
