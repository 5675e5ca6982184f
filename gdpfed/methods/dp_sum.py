"""DP-SGD on one noised sum: each round takes one step, on the sum of all records' clipped gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.methods.base import ClientSum, Cohorts, CurveStyle, RunOption, SumRequest, Theta
from gdpfed.methods.record_method import RecordMethod, configured_records
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import NoiseAt
from gdpfed.record_steps import RecordSteps, Work

VELOCITY_KEY = "velocity"


class DPSum(RecordMethod):
    """DP-SGD at the server: each round takes one step on the noised sum of all clients' clipped gradients.

    theta - eta (sum_i sum_batch clip_C(grad) + C sigma N(0, I)) / sum_i B_i, B_i the expected batch.
    Clients draw their batches and send sums of clipped gradients, which secure aggregation adds up. They
    share the noise of one, so n clients have 1/n of the variance that noise of each one's own would have.
    eta is training.learning_rate, decayed by round, with training.momentum on the noised steps.
    """

    name: ClassVar[str] = "dp_sum"
    label: ClassVar[str] = "DP-SGD of the sum"
    curve: ClassVar[CurveStyle | None] = ("#4818F0", "-", ">")
    work: ClassVar[Work] = "gradient_sum"
    goes_with: ClassVar[tuple[RunOption, ...]] = ("vote",)

    def __init__(self, plan: PrivacyPlan, config: Config) -> None:
        super().__init__(plan, config)
        self._velocity: npt.NDArray[np.float64] | None = None

    @classmethod
    def schedule(cls, config: Config, num_rounds: int) -> Sequence[int]:
        return (1,) * num_rounds

    @classmethod
    def most_records(cls, config: Config) -> int:
        return int(configured_records(config).max())

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the request for one sum of clipped gradients; all clients have the same clipping norm."""
        ranges = [group.at(round_index) for group in self.plan.groups]
        bound = ranges[0].clipping_norm
        noise_multiplier = max(each.noise_stddev for each in ranges) / bound
        return [
            replace(
                request,
                clipping_norm=bound,
                noise_multiplier=noise_multiplier,
                noise_at=NoiseAt.CLIENT,
                noise=self.plan.noise,
            )
            for request in super().requests(theta, round_index, cohorts)
        ]

    def steps(self, group_index: int, round_index: int) -> RecordSteps:
        """Return a client's single DP-SGD step in a round, without noise, because the sum gets the noise."""
        return replace(super().steps(group_index, round_index), noise_multiplier=0.0)

    @property
    def step_noise(self) -> float:
        """Return the noise (standard deviation) that one step adds to the global model at learning rate 1.

        It is sigma C over the expected number of records in all batches.
        """
        summed = max(group.noise_stddev for group in self.plan.groups)
        return summed / (self.plan.sampling_rate * float(self.expected_batches.sum()))

    def change(self, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        from gdpfed.clients.configured import learning_rate_of  # Which imports torch.

        members = list(released.members)
        gradient = np.asarray(released.total) / self.expected_batches[members].sum()
        training = self.config.training
        if training.momentum:
            before = np.zeros(len(gradient)) if self._velocity is None else self._velocity
            gradient = self._velocity = training.momentum * before + gradient
        rate = learning_rate_of(self.config, round_index)
        return np.asarray(self.server_learning_rate * rate * gradient)

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the momentum vector, shape (d,) in float64; return an empty dict without momentum."""
        return {} if self._velocity is None else {VELOCITY_KEY: self._velocity}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if set(state) - {VELOCITY_KEY}:
            raise ValueError(
                f"dp_sum must find its momentum in a checkpoint, and found {', '.join(sorted(state))}"
            )
        velocity = state.get(VELOCITY_KEY)
        self._velocity = None if velocity is None else velocity.astype(np.float64)
