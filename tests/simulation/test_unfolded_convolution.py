"""A convolution as a product is the convolution, forwards and backwards, for one client and for many."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.unfolded_convolution import UnfoldedConvolutions, unfolded_conv2d

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
    with UnfoldedConvolutions():
        assert torch.equal(layer(x), expected)


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(4, 6, kernel_size=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def test_gradients_of_many_clients_are_those_of_each():
    torch.manual_seed(0)
    model, clients, batch = small_cnn(), 5, 6
    dimension = sum(parameter.numel() for parameter in model.parameters())
    thetas = 0.3 * torch.randn(clients, dimension)
    x, y = torch.randn(clients, batch, 1, 8, 8), torch.randint(10, (clients, batch))
    weights = torch.full((clients, batch), 1 / batch)
    together = BatchedTraining(small_cnn(), torch.device("cpu")).gradients(thetas, x, y, weights)
    for i in range(clients):
        nn.utils.vector_to_parameters(thetas[i], model.parameters())
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i]), y[i]).backward()
        alone = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-6)


def test_gradients_are_the_same_bit_for_bit_however_many_clients():
    torch.manual_seed(0)
    training = BatchedTraining(small_cnn(), torch.device("cpu"))
    dimension = sum(parameter.numel() for parameter in small_cnn().parameters())
    thetas, weights = 0.3 * torch.randn(7, dimension), torch.full((7, 6), 1 / 6)
    x, y = torch.randn(7, 6, 1, 8, 8), torch.randint(10, (7, 6))
    whole = training.gradients(thetas, x, y, weights)
    for start, stop in ((0, 1), (1, 3), (3, 7)):
        part = slice(start, stop)
        assert torch.equal(training.gradients(thetas[part], x[part], y[part], weights[part]), whole[part])
