"""A program that times DP-SGD steps of Opacus; it runs in an environment that has Opacus.

Opacus is given what helps it: the records lie in memory as tensors, a Poisson batch is one comparison and one
selection of rows instead of its loader, which collates records one by one, and noise comes from torch's fast
generator instead of a secure one. ``loader`` takes Opacus' own loader instead.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
# Opacus is not in the environment in which types are checked.

import warnings
from importlib.metadata import version
from itertools import chain, islice, repeat
from types import MethodType
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.records.work import EDGE, NUM_CLASSES, Work, measure_each, seconds_of
from gdpfed.learning.models import build_model

LOADER = "loader"


def without_overwriting(model: nn.Module) -> nn.Module:
    """Replace operations that overwrite a layer's output, which Opacus cannot handle."""
    for layer in model.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
        if type(layer).__name__ == "BasicBlock":
            layer.forward = MethodType(_forward_of_block, layer)
    return model


def _forward_of_block(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute a residual block of torchvision's ResNet-18 without an in-place addition."""
    out = block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
    added: torch.Tensor = out + (x if block.downsample is None else block.downsample(x))
    return torch.relu(added)


def measured(work: Work, way: str) -> dict[str, object]:
    """Measure DP-SGD steps with Opacus in one way: with its data loader, or in one grad_sample_mode."""
    warnings.simplefilter("ignore")
    x, y = work.records()
    model = without_overwriting(build_model(work.model, (1, EDGE, EDGE), NUM_CLASSES, seed=0))
    model.to(work.device)
    loss = nn.CrossEntropyLoss()
    mode = "hooks" if way == LOADER else way
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=work.learning_rate),
        criterion=loss,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=work.expected_batch),
        noise_multiplier=work.noise_multiplier,
        max_grad_norm=work.clipping_norm,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        model, optimizer, loss, loader = made
    else:
        model, optimizer, loader = made
    endless = chain.from_iterable(repeat(loader))

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        if way == LOADER:
            batch_x, batch_y = next(endless)
            return batch_x, batch_y
        where = (torch.rand(len(x), device=x.device) < work.batch_rate).nonzero()[:, 0]
        return x[where], y[where]

    def train() -> None:
        for batch_x, batch_y in islice(iter(drawn, None), work.num_steps):
            optimizer.zero_grad()
            loss(model(batch_x), batch_y).backward()
            optimizer.step()

    return {"seconds": seconds_of(work, train), "version": version("opacus")}


if __name__ == "__main__":
    measure_each(measured)
