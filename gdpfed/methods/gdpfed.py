"""GDPFed (Xu, Hu, Kotevska) and two refinements of it: optimal sampling rates, and top-k of the sums.

Each class adds one idea to the one before: noise by group, then rates by group, then top-k by group.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig
from gdpfed.errors import ConfigError
from gdpfed.methods.base import CurveStyle, Method, RunOption
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import (
    group_rates,
    private_plan,
    refuse_given_rates,
    scheduled_group_plan,
    uniform_rate_plan,
)
from gdpfed.methods.weighting import Weighting, reweighting_rule
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import Vector


@dataclass
class GDPFedConfig(MethodConfig):
    """The options of method=gdpfed, in addition to server_learning_rate."""

    reweighting: str = "uniform"


@dataclass
class GDPFedOpConfig(MethodConfig):
    """The options of method=gdpfed_op, in addition to server_learning_rate."""

    reweighting: str = "squared_participation"


@dataclass
class GDPFedPlusConfig(GDPFedOpConfig):
    """The options of method=gdpfed_plus: those of gdpfed_op, and each group's top-k fraction (k_m / d)."""

    keep_fraction: list[float] | None = None


def default_keep_fractions(num_groups: int) -> list[float]:
    """Return the groups' default top-k fractions k_m / d: 0.7 (strictest) to 0.9, or 0.8 for one group."""
    if num_groups == 1:
        return [0.8]
    return [round(0.7 + 0.2 * m / (num_groups - 1), 6) for m in range(num_groups)]


class GDPFed(Method):
    """GDPFed: a noised sum for each group of clients, with its budget; all groups have sampling rate q."""

    name: ClassVar[str] = "gdpfed"
    label: ClassVar[str] = "GDPFed"
    curve: ClassVar[CurveStyle | None] = ("#56B4E9", "-.", "^")
    config_class: ClassVar[type[MethodConfig]] = GDPFedConfig
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "client state", "turns", "vote")

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return uniform_rate_plan(config, configured_groups(config))

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_group_plan(config, configured_groups(config))


class GDPFedOp(Method):
    """GDPFed-op: one noised sum for each group of clients, with its own budget and optimised sampling rate.

    The rates solve the paper's Problem 1. Against everyone, numbers of turns take the place of rates; they
    are chosen so that the noise of the weighted step is least.
    """

    name: ClassVar[str] = "gdpfed_op"
    label: ClassVar[str] = "GDPFed-op"
    curve: ClassVar[CurveStyle | None] = ("#009E73", (0, (5, 1, 1, 1, 1, 1)), "D")
    config_class: ClassVar[type[MethodConfig]] = GDPFedOpConfig
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "client state", "turns")
    sparsified: ClassVar[bool] = False

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        groups = configured_groups(config)
        return private_plan(
            config,
            groups=groups,
            group_sampling_rates=group_rates(config, groups, sparsified=cls.sparsified),
        )

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        rule = reweighting_rule(config.method.reweighting)
        return scheduled_group_plan(config, configured_groups(config), reweighting=rule, own_turns=True)


class GDPFedPlus(GDPFedOp):
    """GDPFed+: GDPFed-op in which only the k_m largest entries of each group's sum change the model."""

    name: ClassVar[str] = "gdpfed_plus"
    label: ClassVar[str] = "GDPFed+"
    curve: ClassVar[CurveStyle | None] = ("#0072B2", "-", "o")
    config_class: ClassVar[type[MethodConfig]] = GDPFedPlusConfig
    sparsified: ClassVar[bool] = True

    @classmethod
    def resolve(cls, config: Config) -> Config:
        """Set the default top-k fraction of every group, if none is given and the groups are known."""
        num_groups = config.privacy.planned_groups
        if config.method.keep_fraction is not None or num_groups is None:
            return config
        fractions = default_keep_fractions(num_groups)
        return replace(config, method=replace(config.method, keep_fraction=fractions))

    @classmethod
    def make_weighting(cls, config: Config, plan: PrivacyPlan) -> Weighting:
        """Return the weights of the groups' sums, and the fraction of each sum's entries that top-k keeps.

        Raises ConfigError: the number of fractions is not the number of groups.
        """
        fractions = config.method.keep_fraction
        if fractions is None:
            fractions = default_keep_fractions(len(plan.groups))
        if len(fractions) != len(plan.groups):
            raise ConfigError(
                f"method.keep_fraction={fractions} has {len(fractions)} entries for {len(plan.groups)} "
                "groups: give one each, or leave it out"
            )
        return Weighting.of(plan, config.method.reweighting, fractions)

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Keep the k_m = round(keep_fraction * d) largest entries of a group's sum; the others become 0."""
        return keep_largest(total, self.weighting.keep_fractions[group_index])


def keep_largest(vector: npt.NDArray[np.float64], keep_fraction: float) -> npt.NDArray[np.float64]:
    """Keep exactly k = max(1, round(keep_fraction * d)) entries of largest magnitude; others become 0.

    Among entries of equal magnitude, those of lower index are kept. The vector is already released, so this
    is post-processing and costs no privacy.

    Args:
        vector: float64[d].
        keep_fraction: k / d in (0, 1].

    Returns:
        float64[d], a new vector, zero where nothing was kept.
    """
    k = max(1, round(keep_fraction * len(vector)))
    if k >= len(vector):
        return vector.copy()
    magnitude = np.abs(vector)
    threshold = np.partition(magnitude, len(vector) - k)[len(vector) - k]
    kept = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    kept[ties[: k - int(kept.sum())]] = True
    return np.where(kept, vector, 0.0)
