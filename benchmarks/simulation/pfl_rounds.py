"""A program that times training rounds of Apple's pfl; it runs in pfl's own environment.

pfl is given what helps it: every client's examples are model inputs in memory already, cohorts are drawn
without replacement by a permutation, and nothing is evaluated or logged in the rounds that are measured.
"""

# mypy: disable-error-code="import-not-found, misc"
# pfl is not in the environment in which types are checked.

import json
import sys
from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.simulation.work import TorchLSTM, print_result
from gdpfed.learning.models import build_model

NEVER = 10**9


class Trained(nn.Module):
    """A model with the two methods that pfl requires."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(0.0, len(y))}


class RoundTimes(TrainingProcessCallback):
    """Records the time at which every round ended."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.ends = [perf_counter()]
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.ends.append(perf_counter())
        return False, Metrics()


def main() -> None:
    """Train with pfl as the first command-line argument describes, and print the seconds of each round."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    # pfl draws its cohorts from numpy's global generator.
    np.random.seed(0)
    rounds = settings["rounds"] + 1
    training = NNTrainHyperParams(
        local_batch_size=settings["batch_size"],
        # Every client has one batch of examples, so that a step is an epoch.
        local_num_epochs=settings["local_steps"],
        local_learning_rate=settings["learning_rate"],
    )
    mechanism = GaussianMechanism(settings["clipping_norm"], settings["noise_multiplier"])
    model, times = make_model(settings), RoundTimes()
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, NEVER, settings["cohort"], None),
        SimulatedBackend(
            training_data=federated_data(settings, rounds),
            val_data=None,
            postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)],
        ),
        model,
        training,
        callbacks=[times],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank == 0:
        print_result({"seconds": np.diff(times.ends)[1:].tolist(), "version": version("pfl")})


def make_model(settings: dict[str, Any]) -> PyTorchModel:
    if settings["model"] == "lstm":
        inner: nn.Module = TorchLSTM(settings["num_classes"])
    else:
        inner = build_model(
            settings["model"], tuple(settings["input_shape"]), settings["num_classes"], seed=0
        )
    net = Trained(inner).train()
    central = torch.optim.SGD(net.parameters(), lr=1.0)
    return PyTorchModel(model=net, local_optimizer_create=torch.optim.SGD, central_optimizer=central)


def federated_data(settings: dict[str, Any], rounds: int) -> FederatedDataset:
    size, device = settings["batch_size"], get_default_device()
    count = settings["num_clients"] * size
    generator = torch.Generator().manual_seed(0)
    shape, classes = (count, *settings["input_shape"]), settings["num_classes"]
    if settings["model"] == "lstm":
        x = torch.randint(classes, shape, generator=generator).to(device)
    else:
        x = (2 * torch.rand(shape, generator=generator) - 1).to(device)
    y = torch.randint(classes, (count,), generator=generator).to(device)
    draw = np.random.default_rng(0)
    cohorts = (
        client
        for _ in range(rounds + 1)
        for client in draw.permutation(settings["num_clients"])[: settings["cohort"]]
    )

    def examples_of(client: int) -> Dataset:
        own = slice(size * client, size * (client + 1))
        return Dataset(raw_data=[x[own], y[own]])

    return FederatedDataset(examples_of, lambda: next(cohorts))


if __name__ == "__main__":
    main()
