"""Refuses models and losses that couple a batch's records; passes each record to a loss as a batch of 1."""

import torch
from torch import nn
from torch.func import vmap

from fastgrad.modules import Loss
from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.labels import LabelKind
from gdpfed.learning.models.build import draws_by

REMEDY = "use a layer that looks at one record alone, such as GroupNorm"
TRIALS = 3
TRIED_OUTPUTS = 64
TRIED_SIZES = (-3, 2)
"""Powers of ten."""


def refuse_coupled_records(
    model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor, *, replaced: int = 1
) -> None:
    """Raise LearningError if, in this model, one record of a batch changes the loss of another.

    BatchNorm layers are found by their type. Other coupling is found by a trial: the first records of
    the batch are replaced, and the losses of all other records must stay the same. `model`: it is tried in
    training mode, and then put back into its mode. `loss`: returns one loss for each record, shape (n,). `x`,
    `y`: at least two records for the trial; they may be random. `replaced`: how many of them are replaced.
    Raises LearningError: names the layer, or says that the records are coupled.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise LearningError(
                f"the model's layer {name} ({type(layer).__name__}) normalises by the statistics of a batch, "
                f"so a record moves the gradients of others and clipping bounds nothing: {REMEDY}"
            )
    was_training = model.training
    model.train()
    with torch.no_grad():
        expected = _losses(model, loss, x, y)
        if expected.shape != y.shape[:1]:
            raise LearningError(
                f"the loss has shape {tuple(expected.shape)} for {len(y)} records; it must be one figure for "
                "each record"
            )
        moved = False
        for trial in range(1, TRIALS + 1):
            # Trial k multiplies the new first records' float inputs by 10^k.
            other_x, other_y = x.clone(), y.clone()
            other_x[:replaced] = x.roll(-trial, 0)[:replaced] * (10.0**trial if x.is_floating_point() else 1)
            other_y[:replaced] = y.roll(-trial, 0)[:replaced]
            found = _losses(model, loss, other_x, other_y)[replaced:]
            if not torch.allclose(found, expected[replaced:], rtol=1e-4, atol=1e-6, equal_nan=True):
                moved = True
                break
    model.train(was_training)
    if moved:
        raise LearningError(
            "the model or its loss couples records: replacing others of a batch changed the loss of "
            f"a record, so clipping bounds nothing; {REMEDY}"
        )


def refuse_random_layers(model: nn.Module, x: torch.Tensor) -> None:
    """Raise LearningError if a model draws random numbers in training, as dropout does.

    They would come from torch's generator, which keeps 32 bits of its seed: whoever tries all of them knows
    the draws. And a record's place in a batch decides what others draw. `x`: some inputs.
    """
    was_training = model.training
    model.train()
    with torch.no_grad():
        outputs = []
        for seed in range(TRIALS):
            with draws_by(seed):
                outputs.append(model(x))
    model.train(was_training)
    if not all(torch.equal(outputs[0].nan_to_num(), each.nan_to_num()) for each in outputs[1:]):
        raise LearningError(
            "the model draws random numbers in training, such as those of dropout, from torch's generator, "
            "whose seed has 32 bits: where records are protected, leave such layers out, or set the rate to 0"
        )


def uncoupled_loss(loss: Loss, labels: LabelKind) -> Loss:
    """Return a loss that takes each record as a batch of 1; raise LearningError if `loss` couples records.

    Raises LearningError: it couples records in the trial, so that alone it would be another loss.
    """
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(TRIED_OUTPUTS, *labels.outputs, generator=generator)
    sizes = torch.logspace(*TRIED_SIZES, TRIED_OUTPUTS)[torch.randperm(TRIED_OUTPUTS, generator=generator)]
    outputs *= sizes.view(-1, *[1] * len(labels.outputs))
    targets = labels.drawn((TRIED_OUTPUTS,), generator)
    refuse_coupled_records(nn.Identity(), loss, outputs, targets, replaced=TRIED_OUTPUTS // 2)
    return record_by_record(loss, outputs, targets)


def record_by_record(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    """Return a version of a loss that evaluates each record as a batch of 1, so that records are not coupled.

    torch goes through the records at once, by vmap, if it does so with the same figures; else Python goes
    through one after the other. `outputs`, `targets`: some records to try that, shape (n, ...).
    """

    def of_one(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output[None], target[None])[0]

    def in_turn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.stack([of_one(*each) for each in zip(outputs, targets, strict=True)])

    at_once: Loss = vmap(of_one, randomness="different")
    expected = in_turn(outputs, targets)
    try:
        found = at_once(outputs, targets)
    except (RuntimeError, ValueError, TypeError):
        return in_turn
    return at_once if torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True) else in_turn


def _losses(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Layers that draw random numbers, such as dropout, make the same draws in each trial.
    try:
        with draws_by(0):
            return loss(model(x), y)
    except Exception as error:
        said = kind_and_words(error)
        raise LearningError(
            f"the loss or the model fails on drawn records, which show whether records are coupled ({said}): "
            "let it return a figure for each record, which may be NaN or infinite"
        ) from error
