"""Tests of models: their sizes, seeds and options, and gradients of many clients at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fastgrad.modules import LSTMLayer
from gdpfed.errors import LearningError
from gdpfed.learning.models import build_model, flatten, refuse_changing_buffers

SMALL_LSTM = (("embedding_size", 3), ("hidden_units", 7))
# name, input shape, classes, options
MODELS = [
    ("linear", (1, 8, 8), 10, ()),
    ("mlp", (1, 8, 8), 10, ()),
    ("cnn2", (1, 28, 28), 10, ()),
    ("cnn3", (3, 32, 32), 10, ()),
    ("resnet18", (3, 32, 32), 10, ()),
    ("lstm", (9,), 5, SMALL_LSTM),
    ("ngram", (9,), 5, ()),
]
OF_TEXT = ("lstm", "ngram", "transformer")


def dtype_of(name):
    return np.int64 if name in OF_TEXT else np.float32


def draw(name, shape, classes, clients, batch):
    rng = torch.Generator().manual_seed(1)
    if name in OF_TEXT:
        x = torch.randint(classes, (clients, batch, *shape), generator=rng)
    else:
        x = torch.randn(clients, batch, *shape, generator=rng)
    return x, torch.randint(classes, (clients, batch), generator=rng)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "dimension"),
    [
        ("linear", (1, 8, 8), 10, 650),
        ("mlp", (1, 8, 8), 10, 4_810),
        ("cnn2", (1, 28, 28), 10, 26_010),
        ("cnn3", (3, 32, 32), 10, 33_834),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("lstm", (80,), 81, 818_137),
        ("ngram", (80,), 81, 19_683),
        ("transformer", (80,), 81, 2_048),
    ],
)
def test_dimensions(name, shape, classes, dimension):
    assert len(flatten(build_model(name, shape, classes, seed=0, input_dtype=dtype_of(name)))) == dimension


def test_models_built_at_the_same_time_in_threads_are_each_by_its_seed():
    """Models that are built in parallel threads depend on their seeds only."""

    def parameters(seed):
        return flatten(build_model("mlp", (1, 8, 8), 10, seed=seed)).tobytes()

    seeds = list(range(8)) * 8
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(parameters, seeds))
    assert built == [parameters(seed) for seed in seeds]


@pytest.mark.parametrize(("name", "shape", "classes", "options"), MODELS)
def test_gradients_of_three_clients_at_once_are_each_clients_own(name, shape, classes, options):
    # In float64, since a deep network's float32 gradients depend on the order of additions.
    models = [
        build_model(name, shape, classes, seed=seed, input_dtype=dtype_of(name), options=options).double()
        for seed in range(3)
    ]
    x, y = draw(name, shape, classes, clients=3, batch=2)
    x = x.double() if x.is_floating_point() else x
    named = [dict(model.named_parameters()) for model in models]
    stacked = {key: torch.stack([each[key].detach() for each in named]) for key in named[0]}

    def loss(parameters, inputs, labels):
        return cross_entropy(functional_call(models[0], parameters, (inputs,)), labels)

    together = vmap(grad(loss))(stacked, x, y)
    for client, model in enumerate(models):
        alone = torch.autograd.grad(cross_entropy(model(x[client]), y[client]), list(model.parameters()))
        for key, gradient in zip(named[0], alone, strict=True):
            torch.testing.assert_close(together[key][client], gradient, rtol=1e-8, atol=1e-10)
        assert max(float(gradient.abs().max()) for gradient in alone) > 1e-3


@pytest.mark.parametrize(("name", "shape", "classes", "options"), MODELS)
def test_models_keep_nothing_between_calls(name, shape, classes, options):
    model = build_model(name, shape, classes, seed=0, input_dtype=dtype_of(name), options=options)
    assert not list(model.buffers())
    x, _ = draw(name, shape, classes, clients=1, batch=3)
    before = flatten(model)
    first, second = model.train()(x[0]), model.eval()(x[0])
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    np.testing.assert_array_equal(flatten(model), before)


def test_the_lstm_layer_computes_what_torchs_does():
    layer, theirs = LSTMLayer(3, 5), nn.LSTM(3, 5, batch_first=True)
    theirs_by_name = dict(theirs.named_parameters())
    with torch.no_grad():
        theirs_by_name["weight_ih_l0"].copy_(layer.input_map.weight)
        theirs_by_name["weight_hh_l0"].copy_(layer.hidden_map.weight)
        theirs_by_name["bias_ih_l0"].copy_(layer.input_map.bias)
        theirs_by_name["bias_hh_l0"].zero_()
    x = torch.randn(4, 11, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), theirs(x)[0])


def test_the_lstm_predicts_from_the_whole_window():
    model = build_model("lstm", (9,), 5, seed=0, input_dtype=np.int64, options=SMALL_LSTM)
    x = torch.zeros(1, 9, dtype=torch.int64)
    changed = x.clone()
    changed[0, 0] = 3
    assert model(x).shape == (1, 5)
    assert not torch.allclose(model(x), model(changed))


def test_options_change_the_size():
    narrow = build_model("cnn3", (3, 32, 32), 10, seed=0, options=(("width", 4),))
    assert len(flatten(narrow)) == (27 + 1) * 4 + (36 + 1) * 8 + (72 + 1) * 16 + 16 * 16 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        (
            "cnn9",
            (1, 8, 8),
            (),
            "model 'cnn9' is not known: use cnn2, cnn3, fcn, flower_arrays, linear, lstm, mlp",
        ),
        (
            "mlp",
            (8,),
            (("width", 4),),
            "model_options.width=4 is not an option of model 'mlp': it has hidden_units",
        ),
        ("linear", (8,), (("width", 4),), "'linear': it has none"),
        ("mlp", (8,), (("hidden_units", 0),), "hidden_units=0 must be a positive whole number"),
        ("mlp", (8,), (("hidden_units", 1.5),), "hidden_units=1.5 must be a positive whole number"),
        ("cnn2", (80,), (), r"cnn2 cannot take examples of shape \(80,\) and type float32"),
        ("cnn2", (1, 4, 4), (), r"cnn2 cannot take examples of shape \(1, 4, 4\)"),
        ("lstm", (80,), (), r"lstm cannot take examples of shape \(80,\) and type float32"),
        ("lstm", (80,), (("num_layers", 201),), "num_layers=201: use at most 200 layers"),
        ("ngram", (2,), (), "characters=3 must be from 1 to 2, the sequence length"),
        ("resnet18", (3, 32, 32), (("channels_per_group", 3),), "channels_per_group=3: "),
    ],
)
def test_models_that_cannot_be_built_are_named_in_one_line(name, shape, options, words):
    with pytest.raises(LearningError, match=words) as raised:
        build_model(name, shape, 10, seed=0, options=options)
    assert "\n" not in str(raised.value)


def test_model_depends_on_its_seed_alone():
    torch.manual_seed(1)
    first = flatten(build_model("mlp", (1, 8, 8), 10, seed=0))
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, flatten(build_model("mlp", (1, 8, 8), 10, seed=0)))
    assert not np.array_equal(first, flatten(build_model("mlp", (1, 8, 8), 10, seed=1)))


def test_running_statistics_are_refused_and_restored():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(LearningError, match=r"1.running_mean.*GroupNorm"):
        refuse_changing_buffers(model, torch.randn(8, 6))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"max_norm": 1.0}, "max_norm=1.0"),
        ({"max_norm": 0.0}, "max_norm=0.0"),
        ({"sparse": True}, "sparse=True"),
    ],
)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_no_clipping_covers_are_refused(layer, option, named):
    with pytest.raises(LearningError, match=rf"layer 0 has .*{named}"):
        refuse_changing_buffers(nn.Sequential(layer(6, 4, **option)), torch.tensor([[1, 2]]))


def test_buffers_that_stay_are_accepted():
    model = nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4))
    model.register_buffer("positions", torch.arange(6.0))
    refuse_changing_buffers(model, torch.randn(8, 6))


def test_ngram_adds_a_row_of_scores_for_each_of_the_last_characters():
    model = build_model("ngram", (4,), 5, seed=0, input_dtype=np.int64, options=(("characters", 2),))
    rows = torch.arange(50.0).reshape(2, 5, 5)
    (weight,) = model.parameters()
    weight.data = rows.reshape(10, 5)
    scores = model(torch.tensor([[0, 1, 4, 2], [3, 3, 0, 0]]))
    assert torch.equal(scores, torch.stack([rows[0, 4] + rows[1, 2], rows[0, 0] + rows[1, 0]]))


def test_theta_has_parameters_whose_numbers_do_not_lie_in_their_order():
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    assert flatten(model).tolist() == [0, 2, 4, 1, 3, 5]
