"""Measures the gain from fewer noised coordinates: a public random mask, or low-rank updates.

* half, quarter: that part of the coordinates is trained in a round, drawn anew from the run's seed (Fed-SMP:
  Hu, Guo, Gong, arXiv:2202.07178). A client clips what it keeps of its update; the others take no step.
* rank r: every linear map and convolution with more than r inputs is W0 + B A (LoRA: Hu et al.,
  arXiv:2106.09685). W0 is its seeded start; A is seeded too, with orthonormal rows. B alone is trained, from
  zero (Sun et al., arXiv:2403.12313); "both": A as well.

* all, half step: every coordinate, and half of the server's step. A mask halves the step too, on average, and
  low rank leaves out part of it: what they bring is what they gain beyond this.

Every variant has adaptive clipping, so each has a norm that fits it. Only this command has these models and
masks: gdpfed itself has neither.

    python -m benchmarks.sparser [OVERRIDE ...] [--seeds 10] [--only VARIANT ...]
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from statistics import fmean
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import nn

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import accuracies, gain, gain_heading
from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.models import MODELS, flatten
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.methods.shared_noise import GDPFedStar
from gdpfed.report.console import Table
from gdpfed.simulation import batched
from gdpfed.simulation.batched import contributions_steps

SETTING = ("method=gdpfed_star", "privacy.clipping=adaptive", "simulation.workers=1")
STEPS = {"all, half step": 0.5, "all, quarter step": 0.25}
MASKS = {"half": 0.5, "quarter": 0.25}
RANKS = {"rank 8": (8, False), "rank 4": (4, False), "rank 4, both": (4, True)}


class LowRank(nn.Module):
    """A layer with weight W0 + B A, where W0 is frozen and only the low-rank B and A are trained.

    Args:
        start: the map at its start, of k numbers to each output; its bias is trained as before.
        rank: rows of A (rank, k), columns of B (outputs, rank).
        both: whether A is trained too.
    """

    frozen: torch.Tensor

    def __init__(self, start: nn.Linear | nn.Conv2d, rank: int, *, both: bool) -> None:
        super().__init__()
        self.register_buffer("frozen", start.weight.detach().clone())
        down = torch.linalg.qr(torch.randn(inputs_of(start), rank)).Q.T.contiguous()
        self.up = nn.Parameter(torch.zeros(len(start.weight), rank))
        self.down = nn.Parameter(down, requires_grad=both)
        if not both:
            del self.down
            self.register_buffer("down", down)
        self.bias = start.bias
        self._placed = {}
        if isinstance(start, nn.Conv2d):
            self._placed = {"stride": start.stride, "padding": start.padding}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layer: linear, from (..., inputs) to (..., outputs), or a convolution of pictures."""
        weight = self.frozen + (self.up @ self.down).view_as(self.frozen)
        apply = nn.functional.conv2d if self._placed else nn.functional.linear
        return apply(inputs, weight, self.bias, **self._placed)


def inputs_of(part: nn.Linear | nn.Conv2d) -> int:
    """Return k, the number of inputs on which each output of a linear or convolutional layer depends."""
    return part.weight[0].numel()


def lower(model: nn.Module, rank: int, *, both: bool) -> nn.Module:
    """Replace each linear or convolutional layer with more than `rank` inputs by a low-rank one."""
    for name, part in model.named_children():
        if isinstance(part, nn.Linear | nn.Conv2d) and inputs_of(part) > rank:
            setattr(model, name, LowRank(part, rank, both=both))
        else:
            lower(part, rank, both=both)
    return model


def lowered(base: str, variant: str) -> str:
    """Register the low-rank form of a model under a new name, and return that name."""
    rank, both = RANKS[variant]
    name, build = f"{base}_{rank}{'_both' if both else ''}", MODELS.get(base)

    @wraps(build)
    def build_lowered(*shape: Any, **options: Any) -> nn.Module:
        return lower(build(*shape, **options), rank, both=both)

    if name not in MODELS.names():
        MODELS.register(name, build_lowered)
    return name


def mask_of(seed: int, round_index: int, share: float, dimension: int) -> npt.NDArray[np.bool_]:
    """Return which coordinates are trained in a round, each with probability ``share``, shape (d,)."""
    return np.random.default_rng((seed, round_index)).random(dimension) < share


@contextmanager
def masked(share: float, seed: int) -> Iterator[None]:
    """Inside the ``with`` block, train only the coordinates of each round's mask."""
    whole_round = GDPFedStar.round

    def kept_steps(updates: torch.Tensor, order: TrainingOrder, *more: Any) -> torch.Tensor:
        mask = mask_of(seed, order.round_index, share, updates.shape[1])
        return contributions_steps(updates * torch.from_numpy(mask), order, *more)

    def kept_round(
        self: GDPFedStar, theta: Theta, round_index: int, *more: Any
    ) -> tuple[Theta, list[ClientSum]]:
        after, sums = whole_round(self, theta, round_index, *more)
        return np.where(mask_of(seed, round_index, share, len(theta)), after, theta), sums

    with (
        mock.patch.object(batched, "contributions_steps", kept_steps),
        mock.patch.object(GDPFedStar, "round", kept_round),
    ):
        yield


def measured(variant: str, overrides: Sequence[str], seed: int) -> tuple[float, float]:
    """Train a variant once; return the accuracy of the last model and of the averaged one, in percent."""
    with masked(MASKS.get(variant, 1.0), seed):
        return accuracies([*overrides, f"run.seed={seed}"])


def rows(only: Sequence[str], overrides: Sequence[str], seeds: int) -> list[tuple[str, ...]]:
    """Return a table row for training all coordinates, then a row for each variant in `only`.

    A variant trains fewer coordinates, or all with a smaller server learning rate.
    """
    common = [*SETTING, *overrides]
    base, found, shown = load(common).dataset.model, [], []
    for variant in track(["all", *only], "variants", console=CONSOLE):
        own = [*common, f"method.server_learning_rate={STEPS.get(variant, 1.0)}"]
        if variant in RANKS:
            own += [f"dataset.model={lowered(base, variant)}"]
        found.append([measured(variant, own, seed) for seed in range(seeds)])
        CONSOLE.print(variant, found[-1])
        noised = MASKS.get(variant, 1.0) * len(flatten(task_of(load(own)).build_model()))
        row = [variant, f"{noised:,.0f}"]
        for which in range(2):
            figures, before = ([each[which] for each in runs] for runs in (found[-1], found[0]))
            row += [f"{fmean(figures):.1f}", "" if variant == "all" else gain(before, figures)]
        shown.append(tuple(row))
    return shown


def main() -> None:
    """Train every variant on one data set with each seed, and show the table."""
    options = read_options(__doc__, overrides=True, seeds=10, only=(*STEPS, *MASKS, *RANKS))
    every = rows(options.only, options.overrides, options.seeds)
    gained = gain_heading(options.seeds)
    headings = ("trained", "noised", "last model (%)", gained, "average (%)", gained)
    publish(
        [Table(f"Fewer noised coordinates ({load(options.overrides).dataset.name})", headings, every)],
        options.write,
    )


if __name__ == "__main__":
    main()
