"""PFA: projects the noisiest group's sum onto the principal subspace of the least noisy sums.

Source: Liu, Lou, Xiong, Liu, Meng, "Projected Federated Averaging with Heterogeneous Differential
Privacy", PVLDB 15(4), 2021, with sums in place of single updates, which secure aggregation hides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from omegaconf import MISSING

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import ConfigError
from gdpfed.methods.base import ClientSum, CurveStyle, Method, RunOption, Theta
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import refuse_given_rates, scheduled_group_plan, uniform_rate_plan
from gdpfed.methods.weighting import Weighting
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.release import Vector

HISTORY_KEY = "public_sums"


@dataclass
class PFAConfig(MethodConfig):
    """The options of method=pfa, in addition to server_learning_rate."""

    reweighting: str = "squared_participation"
    history: int = MISSING
    subspace_dimension: int = MISSING

    def validate(self) -> None:
        super().validate()
        require(self.history >= 1, f"method.history={self.history} must be at least 1")
        require(
            1 <= self.subspace_dimension <= self.history,
            f"method.subspace_dimension={self.subspace_dimension} must be from 1 to method.history="
            f"{self.history}: the sums of that many rounds span no more directions",
        )


class PFA(Method):
    """PFA: the sums of the group with the largest budget (public sums) denoise the strictest group's sum.

    Groups and noise are those of gdpfed.
    Of the last ``history`` public sums, this round's among them, the principal subspace of
    ``subspace_dimension`` directions is taken, and the sum of the group with the smallest budget is
    projected on it. Groups in between count as they are. As long as there are fewer public sums than
    directions, nothing is projected. Public sums carry their own noise and are released like any other, so
    all of this is post-processing.

    The history is state: ``history * d`` numbers in float32, kept in memory and in every checkpoint.
    """

    name: ClassVar[str] = "pfa"
    label: ClassVar[str] = "PFA"
    curve: ClassVar[CurveStyle | None] = ("#602040", "-", "*")
    config_class: ClassVar[type[MethodConfig]] = PFAConfig
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "turns")

    def __init__(
        self,
        plan: PrivacyPlan,
        weighting: Weighting,
        *,
        server_learning_rate: float,
        history: int,
        subspace_dimension: int,
    ) -> None:
        super().__init__(plan, weighting, server_learning_rate=server_learning_rate)
        self.history = history
        self.subspace_dimension = subspace_dimension
        self._public_sums: npt.NDArray[np.float32] | None = None

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Make the method with its privacy plan, from a configuration in which no setting is left open."""
        plan = cls.planned(config)
        return cls(
            plan,
            cls.make_weighting(config, plan),
            server_learning_rate=config.method.server_learning_rate,
            history=config.method.history,
            subspace_dimension=config.method.subspace_dimension,
        )

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return uniform_rate_plan(config, _several_groups(config))

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_group_plan(config, _several_groups(config))

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """Compute the next model; first store the sum of the group with the largest budget."""
        public = sums[-1].total
        if public is not None:
            newest = public.astype(np.float32)[None, :]
            earlier = newest[:0] if self._public_sums is None else self._public_sums
            self._public_sums = np.concatenate([earlier, newest])[-self.history :]
        return super().step(theta, sums)

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Project the strictest group's sum onto the subspace of public sums; return other sums unchanged."""
        history = self._public_sums
        if group_index > 0 or history is None or len(history) < self.subspace_dimension:
            return total
        return project_on_principal_subspace(total, history, self.subspace_dimension)

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return stored sums of the group with the largest budget, float32[n, d] with n <= ``history``."""
        return {} if self._public_sums is None else {HISTORY_KEY: self._public_sums}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        history = state.get(HISTORY_KEY)
        if state and (
            set(state) != {HISTORY_KEY}
            or history is None
            or history.dtype != np.float32
            or history.ndim != 2
            or not 1 <= len(history) <= self.history
        ):
            raise ValueError(
                f"pfa must find up to {self.history} public sums in a checkpoint, and found {sorted(state)}"
            )
        self._public_sums = None if history is None else history.astype(np.float32)


def _several_groups(config: Config) -> tuple[Group, ...]:
    groups = configured_groups(config)
    if len(groups) < 2:
        raise ConfigError(
            f"privacy.budgets={config.privacy.budgets} is one group, but method=pfa projects one on "
            "another: give two budgets, or use method=dp_fedavg"
        )
    return groups


BLOCK = 2**20
SMALLEST_RELATIVE_VARIANCE = 1e-10


def project_on_principal_subspace(
    vector: npt.NDArray[np.float64], history: npt.NDArray[np.float32], rank: int
) -> npt.NDArray[np.float64]:
    """Return the projection V V^T y of a vector y onto the first right singular vectors V of ``history``.

    V is never formed: with the eigenvectors U and eigenvalues s^2 of the Gram matrix H H^T, of shape (h, h),
    V^T is U^T H / s. Directions in which the history holds next to nothing are left out, so the result lies
    in the span of the history whatever the rank. `vector`: shape (d,). `history`: H, shape (h, d). `rank`: at
    most this many directions. Returns a new vector of shape (d,).
    """
    gram = np.zeros((len(history), len(history)))
    products = np.zeros(len(history))
    for block in _blocks(len(vector)):
        rows = history[:, block].astype(np.float64)
        gram += rows @ rows.T
        products += rows @ vector[block]
    variances, directions = np.linalg.eigh(gram)
    kept = np.flatnonzero(variances > SMALLEST_RELATIVE_VARIANCE * variances[-1])[-rank:]
    basis = directions[:, kept]
    coefficients = basis @ ((basis.T @ products) / variances[kept])
    projected = np.empty(len(vector))
    for block in _blocks(len(vector)):
        projected[block] = coefficients @ history[:, block]
    return projected


def _blocks(length: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` entries that together cover an array of this ``length``, to limit memory."""
    return (slice(start, start + BLOCK) for start in range(0, length, BLOCK))
