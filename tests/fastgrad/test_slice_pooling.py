"""Tests of `SlicePooling`: the values of torch's pooling, and the cases that it leaves to torch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastgrad.modules import SlicePooling

INPUT = torch.from_numpy(np.random.default_rng(3).normal(size=(3, 2, 7, 9)).astype(np.float32))


def pooled(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    """Return a layer's output under `SlicePooling`, and the names of torch's pooling calls that it made."""
    with SlicePooling(), torch.profiler.profile() as profile:
        answers = layer(x)
    return answers, [event.key for event in profile.key_averages() if "max_pool2d" in event.key]


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, (2, 3), (4, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3, (1, 3)])
def test_same_numbers_as_torch_without_its_pooling(
    kernel: int | tuple[int, int], stride: int | tuple[int, int]
) -> None:
    layer = nn.MaxPool2d(kernel, stride=stride)
    with torch.no_grad():
        answers, operations = pooled(layer, INPUT)
        torch.testing.assert_close(answers, layer(INPUT), rtol=0, atol=0)
    assert operations == []


def test_not_a_number_and_unbatched_pictures_and_default_strides_are_as_with_torch() -> None:
    holed = INPUT.clone()
    holed[0, 0, 2, 3] = float("nan")
    holed[1, 1, 0, 0] = float("inf")
    with torch.no_grad(), SlicePooling():
        answers, alone = functional.max_pool2d(holed, 3), functional.max_pool2d(INPUT[0], 2)
    torch.testing.assert_close(answers, functional.max_pool2d(holed, 3), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(alone, functional.max_pool2d(INPUT[0], 2), rtol=0, atol=0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(5),
    ],
)
def test_what_slices_do_not_compute_is_left_to_torch(layer: nn.MaxPool2d) -> None:
    with torch.no_grad():
        answers, operations = pooled(layer, INPUT)
        torch.testing.assert_close(answers, layer(INPUT), rtol=0, atol=0)
    assert operations


def test_gradients_are_left_to_torch() -> None:
    with SlicePooling():
        answers = nn.MaxPool2d(2)(INPUT.clone().requires_grad_())
    assert type(answers.grad_fn).__name__ == "MaxPool2DWithIndicesBackward0"


def test_a_window_larger_than_the_picture_ends_as_with_torch() -> None:
    with torch.no_grad(), SlicePooling(), pytest.raises(RuntimeError, match="too small"):
        functional.max_pool2d(INPUT[:, :, :2], 3)
