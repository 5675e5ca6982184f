"""A simple training loop as a researcher may write it: one client after the other in one process."""

import json
import sys
from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.simulation.work import TorchLSTM, Work, print_result
from conf.load import load
from conf.schema import DatasetConfig
from gdpfed.clients.configured import task_of
from gdpfed.methods import make_method


def main() -> None:
    """Train as the first command-line argument describes, and print the seconds of each round."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings.pop("threads"))
    work = Work(**settings)
    config = load(work.overrides)
    plan = make_method(config).plan
    task, device = task_of(config), torch.device(work.device)
    train = task.load().train
    parts = [task.client_indices(client) for client in range(work.num_clients)]
    clients = [tuple(torch.from_numpy(a).to(device) for a in (s.x, s.y)) for s in map(train.take, parts)]
    net = TorchLSTM(task.load().num_classes) if work.model == "lstm" else task.build_model()
    model = net.to(device).train()
    theta = parameters_to_vector(model.parameters()).detach().clone()
    seconds = []
    for _ in range(work.rounds + 1):
        started = perf_counter()
        total = torch.zeros_like(theta)
        for client in torch.randperm(work.num_clients)[: work.cohort].tolist():
            total += clipped_update(model, theta, clients[client], config.dataset, plan.clipping_norm)
        theta += (total + plan.groups[0].noise_stddev * torch.randn_like(total)) / work.cohort
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(perf_counter() - started)
    print_result({"seconds": seconds[1:]})


def clipped_update(
    model: nn.Module, theta: Tensor, data: Sequence[Tensor], settings: DatasetConfig, clipping_norm: float
) -> Tensor:
    """Train on one client's data, and return its clipped update Delta_i min(1, C / ||Delta_i||)."""
    x, y = data
    vector_to_parameters(theta, model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    for _ in range(settings.local_steps):
        batch = torch.randperm(len(x), device=x.device)[: settings.batch_size]
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        update = parameters_to_vector(model.parameters()) - theta
        clipped: Tensor = update * (clipping_norm / update.norm()).clamp(max=1.0)
    return clipped


if __name__ == "__main__":
    main()
