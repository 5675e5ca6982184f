"""Adapts a trained model to the table rows of one data owner (party), which keeps the adapted model."""

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError, RunError, words_of
from gdpfed.files import write_whole
from gdpfed.learning.data import Split
from gdpfed.learning.data.table_rows import read_rows
from gdpfed.learning.model_folder import (
    DESCRIPTION_FILE,
    FOLDER,
    MANIFEST_FILE,
    WEIGHTS_FILE,
    read_model,
    save_weights,
)
from gdpfed.learning.models import names_of
from gdpfed.learning.training.record_losses import make_loss

MOST_ITERATIONS = 200


def fit_near(model: nn.Module, data: Split, loss: Loss, *, names: Collection[str], pull: float) -> None:
    """Fit the named parameters w: minimise sum_x loss(x) + pull / 2 ||w - w_0||^2, from start values w_0.

    These are a released model, or initial parameters. Nothing is noised or clipped, so
    what comes of it is as private as the rows are: it may not leave the party. L-BFGS with whole batches
    (Liu and Nocedal, 1989), in float64.

    Raises LearningError: the fit is not finite.
    """
    kept = {name: each.requires_grad for name, each in model.named_parameters()}
    model.double().eval()
    free = []
    for name, each in model.named_parameters():
        each.requires_grad_(name in names)
        if name in names:
            free.append(each)
    begun = [each.detach().clone() for each in free]
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    x, y = (each.double() if each.is_floating_point() else each for each in (x, y))
    search = torch.optim.LBFGS(free, max_iter=MOST_ITERATIONS, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        search.zero_grad()
        near = sum(((each - start) ** 2).sum() for each, start in zip(free, begun, strict=True))
        value: torch.Tensor = loss(model(x), y).sum() + pull / 2 * near
        value.backward()  # type: ignore[no-untyped-call]  # torch's
        return value

    if free and len(data):
        search.step(objective)  # type: ignore[no-untyped-call]  # torch's
    if not all(torch.isfinite(each).all() for each in free):
        raise LearningError(
            "a fit to a party's own rows is not finite: pull it more to the released model, by a "
            "larger --pull"
        )
    model.float()
    for name, each in model.named_parameters():
        each.requires_grad_(kept[name])
        each.grad = None


def adapt(model_path: Path, table: Path, output: Path, patterns: Sequence[str], pull: float) -> int:
    """Fit a trained model to the table of one data owner (party), and save the result.
    A penalty keeps the fitted parameters near those of the trained model.

    Rows that the declaration says are for testing are left out. Returns how many rows were fitted to.

    Raises LearningError: no model of tables with classes, rows that do not fit it, a pattern that no
    parameter matches, or an output that exists or cannot be written.
    """
    description, columns, model = read_model(model_path)
    labels = description.form.labels
    if columns is None or not labels.is_one_class:
        raise LearningError(
            f"{model_path} takes no table with classes: only such a model is fitted to own rows"
        )
    if os.path.lexists(output):
        raise LearningError(f"--output={output} exists: name a folder that does not")
    if output.resolve().is_relative_to(model_path.resolve()):
        raise LearningError(
            f"--output={output} lies in the shared model's folder, and what is fitted must not leave the "
            "party: name a folder outside of it"
        )
    rows = read_rows(table, columns, str(table), shared_out=False)
    kept = slice(None) if rows.for_testing is None else ~rows.for_testing
    data = Split(rows.x[kept], rows.y[kept])
    fit_near(model, data, make_loss(labels.loss, labels), names=names_of(model, patterns), pull=pull)
    folder = model_path / FOLDER if (model_path / FOLDER / DESCRIPTION_FILE).is_file() else model_path
    _save_fitted(folder, output, save_tensors(model.state_dict()))
    return len(data)


def _save_fitted(folder: Path, output: Path, weights: bytes) -> None:
    """Write a model folder with these weights, or nothing: half of it would hold the model as it was.

    Raises LearningError: the file system refuses.
    """
    try:
        output.mkdir(parents=True)
        try:
            for file in folder.iterdir():
                if file.is_file() and file.name not in (MANIFEST_FILE, WEIGHTS_FILE):
                    write_whole(output / file.name, file.read_bytes())
            save_weights(output, weights)
        except BaseException:
            shutil.rmtree(output, ignore_errors=True)
            raise
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or words_of(error)
        raise LearningError(
            f"--output={output} cannot be made: {reason}; name a folder where you may write, with room"
        ) from None
