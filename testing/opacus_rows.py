"""Train with Opacus in its own environment, on a model whose per-record gradients are the records.

    python -m testing.opacus_rows work.npz released.npz

The work holds `rows`, shape (m, d), and the numbers of `Work` as JSON; what is released are models, and which
records were in which batch. It imports nothing of this project.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
# Opacus is not in the environment in which types are checked.

import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from torch.utils.data import DataLoader, TensorDataset

HUGE = 1e9


def main() -> None:
    """Train once with Opacus, and write what it released."""
    warnings.simplefilter("ignore")
    with np.load(sys.argv[1]) as work:
        rows, numbers = work["rows"], json.loads(str(work["numbers"]))
    models, asked = trained(rows, numbers) if len(rows) else (np.zeros(0), np.zeros(0))
    np.savez(sys.argv[2], models=models, asked=asked, epsilon=stated(numbers))


def stated(numbers: Any) -> float:
    """Return epsilon of a training as Opacus' own accountant computes it."""
    accountant = PRVAccountant()
    rounds = numbers["num_rounds"] // (2 if numbers["fault"] == "epsilon of half the steps" else 1)
    accountant.history = [(numbers["noise_multiplier"], numbers["sampling_rate"], rounds)]
    return float(accountant.get_epsilon(numbers["delta"]))


def trained(rows: Any, numbers: Any) -> tuple[Any, Any]:
    """Train with Opacus; return the models before and after every step, and the records of every batch."""
    count, steps, fault = len(rows), numbers["num_rounds"], numbers["fault"]
    sigma, norm = numbers["noise_multiplier"], numbers["clipping_norm"]
    x = torch.from_numpy(rows.astype(np.float32))
    model = torch.nn.Linear(rows.shape[1], 1, bias=False)
    batch = count if fault == "every record in every step" else round(numbers["sampling_rate"] * count)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=float(batch)),
        data_loader=DataLoader(TensorDataset(x, torch.arange(count)), batch_size=batch),
        noise_multiplier=2 / 3 * sigma if fault == "noise of two thirds" else sigma,
        max_grad_norm=HUGE if fault == "no clipping" else norm,
    )
    if fault == "no clipping":
        optimizer.noise_multiplier = sigma * norm / HUGE
    models, asked = [_weights(model)], list[Any]()
    while len(asked) < steps:
        for own, who in loader:
            if len(asked) == steps:
                break
            optimizer.zero_grad()
            # A mean, as Opacus expects, also of a batch without a record.
            (model(own).sum() / max(1, len(own))).backward()
            optimizer.step()
            models.append(_weights(model))
            asked.append(np.isin(np.arange(count), who.numpy()))
    return np.stack(models), np.stack(asked)


def _weights(model: Any) -> Any:
    return next(model.parameters()).detach().numpy()[0].astype(np.float64)


if __name__ == "__main__":
    main()
