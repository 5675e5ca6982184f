"""Tests of every model in the batched engine: the gradients are those of each client alone."""

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from gdpfed.learning.models import build_model
from gdpfed.simulation.batched_training import BatchedTraining

CLIENTS, BATCH, CLASSES = 3, 2, 10
# Model, shape of an example, options that keep it small.
MODELS = [
    ("linear", (1, 8, 8), ()),
    ("mlp", (1, 8, 8), ()),
    ("cnn2", (1, 28, 28), ()),
    ("cnn3", (3, 16, 16), ()),
    ("resnet18", (3, 16, 16), ()),
    ("lstm", (12,), (("hidden_units", 16),)),
    ("ngram", (12,), ()),
]


@cache
def drawn(name, shape, options):
    """Return a model, its batched training, and parameters and a batch of every client."""
    dtype = np.int64 if name in ("lstm", "ngram") else np.float32
    model = build_model(name, shape, CLASSES, seed=0, input_dtype=dtype, options=options)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    generator = torch.Generator().manual_seed(0)
    thetas = start + 0.001 * torch.randn(CLIENTS, len(start), generator=generator)
    x = torch.randn(CLIENTS, BATCH, *shape, generator=generator)
    if name in ("lstm", "ngram"):
        x = torch.randint(CLASSES, (CLIENTS, BATCH, *shape), generator=generator)
    y = torch.randint(CLASSES, (CLIENTS, BATCH), generator=generator)
    weights = torch.full((CLIENTS, BATCH), 1 / BATCH)
    return model, BatchedTraining(deepcopy(model), torch.device("cpu")), (thetas, x, y, weights)


@pytest.mark.parametrize(("name", "shape", "options"), MODELS, ids=[each[0] for each in MODELS])
def test_gradients_are_those_of_each_client_alone(name, shape, options):
    model, training, (thetas, x, y, weights) = drawn(name, shape, options)
    together = training.gradients(thetas, x, y, weights)
    for i in range(CLIENTS):
        nn.utils.vector_to_parameters(thetas[i], model.parameters())
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i]), y[i]).backward()
        alone = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        off = torch.linalg.vector_norm(together[i] - alone) / torch.linalg.vector_norm(alone)
        assert off < 1e-5


@pytest.mark.parametrize(("name", "shape", "options"), MODELS, ids=[each[0] for each in MODELS])
def test_gradients_are_the_same_bit_for_bit_however_many_clients(name, shape, options):
    _, training, (thetas, x, y, weights) = drawn(name, shape, options)
    whole = training.gradients(thetas, x, y, weights)
    for part in (slice(0, 1), slice(1, 3)):
        assert torch.equal(training.gradients(thetas[part], x[part], y[part], weights[part]), whole[part])
