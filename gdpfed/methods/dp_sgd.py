"""DP-SGD on every client: noisy local steps on records, whose results the server averages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import not_known
from gdpfed.methods.base import ClientSum, Cohorts, CurveStyle, RunOption, SumRequest, Theta
from gdpfed.methods.record_method import RecordMethod, RecordMethodConfig
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.record_steps import Work

WEIGHTS = ("records", "batches", "equal")


@dataclass
class DPSGDConfig(RecordMethodConfig):
    """The options of method=dp_sgd, in addition to those of all record-level DP methods."""

    client_weights: str = "records"

    def validate(self) -> None:
        super().validate()
        require(
            self.client_weights in WEIGHTS,
            not_known(f"method.client_weights={self.client_weights}", WEIGHTS),
        )


class DPSGD(RecordMethod):
    """DP-SGD on every client: theta + sum_i p_i Delta_i, Delta_i being client i's update after noisy steps.

    Delta_i comes from tau steps on the client's records. p_i is D_i / sum D, or equal, or B_i / sum B, which
    adds least noise where batch rates differ; all over the clients whose update is in the sum. Every client
    adds its own noise in every step, so Delta_i may be seen by anybody, and the sum has none.
    """

    name: ClassVar[str] = "dp_sgd"
    label: ClassVar[str] = "DP-SGD"
    curve: ClassVar[CurveStyle | None] = ("#48A860", "--", "<")
    config_class: ClassVar[type[MethodConfig]] = DPSGDConfig
    work: ClassVar[Work] = "dp_sgd"
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "vote")

    @classmethod
    def schedule(cls, config: Config, num_rounds: int) -> Sequence[int]:
        return (config.training.local_steps,) * num_rounds

    @cached_property
    def client_weights(self) -> npt.NDArray[np.float64]:
        """w_i: the weight of client i's update (mean weight 1); the server divides by the sum of weights."""
        by = self.config.method.client_weights
        if by == "equal":
            return np.ones(self.config.dataset.num_clients)
        weights = self.record_counts if by == "records" else self.expected_batches
        return np.asarray(weights / weights.mean())

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the request for one weighted sum of updates; each client has already noised its update."""
        asked = super().requests(theta, round_index, cohorts)
        return [replace(each, client_weights=self.client_weights[each.clients]) for each in asked]

    @property
    def step_noise(self) -> float:
        """Return the noise (standard deviation) that one step adds to the global model at learning rate 1.

        sqrt(sum_i (p_i sigma_i C_i / B_i)^2 / q), q being the rate at which clients are sampled.
        """
        scale = np.empty(len(self.expected_batches))
        for group, records in zip(self.plan.groups, records_of(self.plan), strict=True):
            scale[list(group.clients)] = records.noise_multiplier * records.clipping_norm
        shares = self.client_weights / self.client_weights.sum()
        noise = np.linalg.norm(shares * scale / self.expected_batches)
        return float(noise / np.sqrt(self.plan.sampling_rate))

    def change(self, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        total_weight = self.client_weights[list(released.members)].sum()
        return np.asarray(self.server_learning_rate * np.asarray(released.total) / total_weight)
