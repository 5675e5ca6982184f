"""MR-MTL: every client has its own model, which is pulled towards the mean of all models.

Source: Liu, Hu, Wu, Smith, "On Privacy and Personalization in Cross-Silo Federated Learning",
arXiv:2206.07902, Algorithm 1, with each silo's budget for its records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as save_arrays

from conf.schema import Config, MethodConfig, require
from gdpfed.files import save_whole
from gdpfed.methods.base import ClientSum, Cohorts, CurveStyle, RunOption, SumRequest, SumUpdates, Theta
from gdpfed.methods.dp_sgd import DPSGD, DPSGDConfig
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.observers import Observer, RunConcluded
from gdpfed.runs.file_formats import PERSONAL_FILE, PERSONAL_KEY


@dataclass
class MRMTLConfig(DPSGDConfig):
    """The options of method=mr_mtl, in addition to the options of dp_sgd."""

    pull: float = 0.1

    def validate(self) -> None:
        super().validate()
        require(0 <= self.pull < float("inf"), f"method.pull={self.pull} must be 0, for no mean, or more")


class MRMTL(DPSGD):
    """MR-MTL: each client trains its own model w_k by DP-SGD, pulled towards the mean m of all models.

    tau steps from w_k, then w_k <- m + (w_k - m) / (1 + eta lambda)^tau. m = sum_k p_k w_k is released.
    Every step carries noise of its own client, so w_k may be seen by anybody: the server reads it alone, and
    the pull is post-processing, which costs no privacy. It is implicit, so it is stable for every lambda: 0
    trains every client by itself, and a large one is dp_sgd. Only a simulation without masks runs it.
    """

    name: ClassVar[str] = "mr_mtl"
    label: ClassVar[str] = "MR-MTL"
    curve: ClassVar[CurveStyle | None] = ("#B8C820", ":", "x")
    config_class: ClassVar[type[MethodConfig]] = MRMTLConfig
    goes_with: ClassVar[tuple[RunOption, ...]] = ("vote",)
    reads_alone: bool = True

    def __init__(self, plan: PrivacyPlan, config: Config) -> None:
        super().__init__(plan, config)
        self._personal: npt.NDArray[np.float64] | None = None

    def personal(self, theta: Theta) -> npt.NDArray[np.float64]:
        """Return the clients' own models, shape (n, d); before the first round all are the initial model."""
        if self._personal is None:
            return np.tile(theta.astype(np.float64), (self.config.dataset.num_clients, 1))
        return self._personal

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return a request for each client's update of its own model; the server reads each separately."""
        starts = self.personal(theta).astype(np.float32)
        return [
            SumRequest(
                name=f"client {client}",
                clients=np.array([client]),
                clipping_norm=each.clipping_norm,
                noise_multiplier=each.noise_multiplier,
                noise_at=each.noise_at,
                work=each.work,
                unit=each.unit,
                records=[records],
                alone=True,
                start=starts[client],
            )
            for each in super().requests(theta, round_index, cohorts)
            for client, records in zip(each.clients.tolist(), each.records, strict=True)
        ]

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        from gdpfed.clients.configured import learning_rate_of  # Which imports torch.

        asked = self.requests(theta, round_index, cohorts)
        sums = sum_updates(asked)
        models, pulled = self.personal(theta).copy(), []
        for request, each in zip(asked, sums, strict=True):
            if each.total is None:
                continue
            (client,) = request.clients.tolist()
            models[client] += self.server_learning_rate * np.asarray(each.total)
            pulled.append((client, request.records[0].num_steps))
        mean = np.average(models, axis=0, weights=self.client_weights)
        rate = learning_rate_of(self.config, round_index)
        for client, steps in pulled:
            models[client] = mean + (models[client] - mean) / (1 + rate * self.config.method.pull) ** steps
        self._personal = models
        return mean.astype(np.float32), sums

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the clients' own models; empty before the first round."""
        return {} if self._personal is None else {PERSONAL_KEY: self._personal}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if set(state) - {PERSONAL_KEY}:
            raise ValueError(
                f"the state of mr_mtl must hold the clients' models, and holds {', '.join(sorted(state))}"
            )
        personal = state.get(PERSONAL_KEY)
        self._personal = None if personal is None else personal.astype(np.float64)

    def observers(self, directory: Path) -> Sequence[Observer]:
        """Return the object that saves the clients' own models at the end of a run."""
        return (_PersonalModels(self, directory),)


class _PersonalModels(Observer):
    def __init__(self, method: MRMTL, directory: Path) -> None:
        self._method, self._directory = method, directory

    def concluded(self, run: RunConcluded) -> None:
        personal = self._method.personal(run.released.astype(np.float32)).astype(np.float32)
        save_whole(self._directory / PERSONAL_FILE, save_arrays({PERSONAL_KEY: personal}))
