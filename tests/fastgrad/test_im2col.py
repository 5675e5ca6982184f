"""Tests of convolutions as matrix products: values and gradients equal those of torch."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from fastgrad.im2col import unfolded_conv2d
from gdpfed.simulation.batched_training import BatchedOperations

SHAPES = [
    # channels in, out, kernel, stride, padding, size of the picture
    (1, 4, 8, 2, 3, (28, 28)),
    (3, 5, 3, 1, 1, (9, 7)),
    (2, 3, (2, 4), (1, 3), (0, 2), (8, 11)),
    (4, 4, 1, 2, 0, (6, 6)),
]


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "stride", "padding", "size"), SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_are_those_of_torch(inputs, outputs, kernel, stride, padding, size, has_bias):
    generator = torch.Generator().manual_seed(0)
    height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x = torch.randn(2, inputs, *size, generator=generator, dtype=torch.float64).requires_grad_()
    w = torch.randn(outputs, inputs, height, width, generator=generator, dtype=torch.float64).requires_grad_()
    b = torch.randn(outputs, generator=generator, dtype=torch.float64).requires_grad_() if has_bias else None
    leaves = [each for each in (x, w, b) if each is not None]
    results = [each(x, w, b, stride, padding) for each in (conv2d, unfolded_conv2d)]
    torch.testing.assert_close(*results)
    cotangent = torch.randn(results[0].shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves, cotangent) for each in results))


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}])
def test_other_convolutions_are_left_to_torch(options):
    layer, x = nn.Conv2d(4, 4, 3, **options), torch.randn(1, 4, 9, 9)
    expected = layer(x)
    with BatchedOperations():
        assert torch.equal(layer(x), expected)
