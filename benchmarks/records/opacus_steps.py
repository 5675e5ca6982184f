"""DP-SGD steps in Opacus, as a program for Opacus' own environment.

It is given what helps it: the records lie in memory as tensors, a Poisson batch is one comparison and one
selection of rows instead of its loader, which collates records one by one, and noise comes from torch's fast
generator instead of a secure one. ``loader`` takes Opacus' own loader instead.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
# Opacus is not in the environment in which types are checked.

import warnings
from importlib.metadata import version
from itertools import chain, islice, repeat

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.records.work import EDGE, NUM_CLASSES, clock, work_of_this_process
from gdpfed.learning.models import build_model

LOADER = "loader"


def main() -> None:
    """Measure the work in the first argument; its way is a grad_sample_mode, or the data loader."""
    work, way = work_of_this_process()
    warnings.simplefilter("ignore")
    x, y = work.records()
    model = build_model(work.model, (1, EDGE, EDGE), NUM_CLASSES, seed=0)
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
        where = (torch.rand(len(x)) < work.batch_rate).nonzero()[:, 0]
        return x[where], y[where]

    def train() -> None:
        for batch_x, batch_y in islice(iter(drawn, None), work.num_steps):
            optimizer.zero_grad()
            loss(model(batch_x), batch_y).backward()
            optimizer.step()

    clock(work, train, version=version("opacus"))


if __name__ == "__main__":
    main()
