"""Fit a model to one party's own rows, near a given one: for parameters that stay with the party."""

from collections.abc import Collection

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError
from gdpfed.learning.data import Split

MOST_ITERATIONS = 200


def fit_near(model: nn.Module, data: Split, loss: Loss, *, names: Collection[str], pull: float) -> None:
    """Minimise sum_x loss(x) + pull / 2 ||w - w_0||^2 over the named parameters, in place.

    w_0 is what they are at first: a released model, or initial parameters. Nothing is noised or clipped, so
    what comes of it is as private as the rows are: it may not leave the party. L-BFGS with whole batches
    (Liu and Nocedal, 1989), in float64.

    Raises:
        LearningError: the fit is not finite.
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
        raise LearningError("a fit to a party's own rows is not finite: pull it more to the released model")
    model.float()
    for name, each in model.named_parameters():
        each.requires_grad_(kept[name])
        each.grad = None
