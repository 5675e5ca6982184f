"""Tests of transformers: trained parameters, gradients of single records, files of weights, and losses."""

import sys
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fastgrad.forms import record_gradients
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.labels import labels_of
from gdpfed.learning.models import Given, assign, build_model, count_parameters, flatten, trainable
from gdpfed.learning.models.transformer import ARCHITECTURES, PADDING, EncoderSizes, build_encoder
from gdpfed.learning.task import Task
from gdpfed.learning.training.coupled_records import refuse_coupled_records
from gdpfed.learning.training.record_losses import make_loss
from gdpfed.learning.weights_file import WeightsFile

LENGTH, TOKENS, CLASSES, WIDTH, RANK, LAYERS = 12, 30, 3, 16, 4, 2
SMALL = (("heads", 2), ("layers", LAYERS), ("rank", RANK), ("width", WIDTH))
CPU = torch.device("cpu")
SPEAKS, CLASSIFIES = Given(), Given(TOKENS)
KINDS = [
    *(("gpt2", trained, SPEAKS) for trained in ("adapters", "all")),
    *((name, trained, CLASSIFIES) for name in ARCHITECTURES for trained in ("adapters", "all")),
]
words = pytest.mark.parametrize(
    ("name", "trained", "given"), KINDS, ids=lambda value: getattr(value, "vocabulary", value) or "speaks"
)


def built(name, given=CLASSIFIES, trained="adapters", seed=1, **more):
    options = tuple((dict(SMALL) | {"architecture": name, "trained": trained} | more).items())
    return build_model(
        "transformer",
        (LENGTH,),
        classes_of(given),
        seed=seed,
        input_dtype=np.int64,
        options=options,
        given=given,
    )


def classes_of(given):
    return TOKENS if given.vocabulary is None else CLASSES


def records(given, count=5):
    draw = np.random.default_rng(3).integers
    x = torch.from_numpy(draw(1, TOKENS, (count, LENGTH)))
    x[1, LENGTH // 2 :] = PADDING
    labels = draw(0, TOKENS, (count, LENGTH)) if given.vocabulary is None else draw(0, CLASSES, count)
    return x, torch.from_numpy(labels)


def loss_of(given):
    loss = "next_token" if given.vocabulary is None else "cross_entropy"
    return make_loss(loss, labels_of("classes", classes_of(given)))


@words
def test_gradients_by_record_are_those_of_each_record_alone(name, trained, given):
    model, (x, y), loss = built(name, given, trained), records(given), loss_of(given)
    theta = flatten(model)
    # Adapters begin at zero, where half of their gradients are zero.
    theta += 0.05 * np.random.default_rng(0).standard_normal(theta.shape).astype(np.float32)
    assign(model, torch.from_numpy(theta.copy()))
    form = record_gradients(model, loss, x, y, device=CPU)
    assert form.form == f"many records at once by {'one pass' if trained == 'adapters' else 'vmap'}"
    rows = form.rows(torch.from_numpy(theta)[None], x[None], y[None])[0]
    for row, one_x, one_y in zip(rows, x, y, strict=True):
        parameters = list(trainable(model).values())
        alone = torch.autograd.grad(loss(model(one_x[None]), one_y[None]).sum(), parameters)
        expected = torch.cat([each.reshape(-1) for each in alone])
        assert float((row - expected).norm()) <= 1e-4 * float(expected.norm())
        assert float(expected.norm()) > 1e-3


@words
def test_adapters_and_a_head_are_all_that_is_trained(name, trained, given):
    model = built(name, given, trained)
    names, options = list(trainable(model)), (*SMALL, ("architecture", name), ("trained", trained))
    size = count_parameters("transformer", (LENGTH,), classes_of(given), options, (), given)
    assert size == len(flatten(model))
    if trained == "all":
        assert names == [each for each, _ in model.named_parameters()]
        return
    head = 0 if given.vocabulary is None else (WIDTH + 1) * CLASSES
    assert [each for each in names if "lora_" not in each] == (["head.weight", "head.bias"] if head else [])
    adapters = RANK * (WIDTH + 3 * WIDTH) if name == "gpt2" else 2 * RANK * (WIDTH + WIDTH)
    assert size == LAYERS * adapters + head


@words
def test_records_of_a_batch_are_not_coupled(name, trained, given):
    refuse_coupled_records(built(name, given, trained), loss_of(given), *records(given))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_changes_nothing_that_is_said_of_a_text(name):
    model = built(name, positions=2 * LENGTH).eval()
    x, _ = records(CLASSIFIES)
    longer = torch.cat([x, torch.full_like(x, PADDING)], dim=1)
    torch.testing.assert_close(model(longer), model(x), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(model(torch.full_like(x, PADDING))).all()


def test_no_position_sees_what_it_is_to_say():
    model, (x, _) = built("gpt2", SPEAKS).eval(), records(SPEAKS)
    other = x.clone()
    other[:, -1] = (x[:, -1] + 1) % TOKENS
    said, otherwise = model(x), model(other)
    torch.testing.assert_close(said[:, :-1], otherwise[:, :-1])
    assert not torch.allclose(said[:, -1], otherwise[:, -1])


@pytest.mark.parametrize(("name", "given"), [("gpt2", SPEAKS), ("bert", CLASSIFIES)])
def test_the_seed_alone_decides_how_a_model_begins(name, given):
    first, again, other = (flatten(built(name, given, "all", seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def written(path, tensors):
    save_file({name: each.clone().contiguous() for name, each in tensors.items()}, path)
    return WeightsFile(str(path), sha256(path.read_bytes()).hexdigest())


def encoder_of(name, **more):
    sizes = EncoderSizes(name, **({"layers": LAYERS, "heads": 2, "width": WIDTH} | more))
    return build_encoder(sizes, CLASSIFIES, (LENGTH,), CLASSES, setting="model=transformer")


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("prefixed", ["as published", "with a head", "by a run of this project"])
def test_a_model_begins_with_the_numbers_of_its_file(tmp_path, name, prefixed):
    torch.manual_seed(9)
    encoder = encoder_of(name).state_dict()
    tensors = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): each for name, each in encoder.items()}
    if prefixed != "as published":
        prefix = ARCHITECTURES[name].prefix if prefixed == "with a head" else "transformer."
        tensors = {f"{prefix}{key}": each for key, each in tensors.items()}
        tensors["head.weight" if prefix == "transformer." else "cls.weight"] = torch.zeros(2, WIDTH)
    elif name == "gpt2":
        tensors["h.0.attn.bias"] = torch.ones(1)
    weights = written(tmp_path / "base.safetensors", tensors)
    model = built(name, Given(TOKENS, weights))
    kept = {key.replace("base_layer.", ""): each for key, each in model.state_dict().items()}
    for key, each in encoder.items():
        assert torch.equal(kept[f"transformer.{key}"], each), key
    assert not np.array_equal(flatten(model), flatten(built(name, Given(TOKENS, weights), seed=2)))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda held: held.pop("wpe.weight"),
            "lacks wpe.weight: set the sizes as the file has them, in dataset.model_options or",
        ),
        (
            lambda held: held.update({"wte.weight": torch.zeros(TOKENS + 1, WIDTH)}),
            r"has wte.weight of shape \(31, 16\), and the model \(30, 16\)",
        ),
        (
            lambda held: held.update({"h.2.ln_1.weight": torch.zeros(WIDTH)}),
            "has h.2.ln_1.weight, which the model lacks",
        ),
    ],
)
def test_a_file_of_another_model_is_refused_by_the_first_difference(tmp_path, change, line):
    tensors = dict(encoder_of("gpt2").state_dict())
    change(tensors)
    weights = written(tmp_path / "base.safetensors", tensors)
    with pytest.raises(LearningError, match=line):
        built("gpt2", Given(TOKENS, weights))


def test_a_file_of_weights_is_the_one_with_its_hash(tmp_path):
    path = tmp_path / "base.safetensors"
    weights = written(path, encoder_of("gpt2").state_dict())
    with pytest.raises(LearningError, match=f"is the SHA-256|which is {weights.sha256}: set it"):
        WeightsFile.of(str(path), None)
    with pytest.raises(LearningError, match="has no file beside it"):
        WeightsFile.of(None, weights.sha256)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(LearningError, match=f"and dataset.weights_sha256 is {weights.sha256}: take the file"):
        weights.tensors()
    path.write_bytes(b"import os")
    damaged = WeightsFile(str(path), sha256(b"import os").hexdigest())
    with pytest.raises(LearningError, match="is not a safetensors file"):
        damaged.tensors()
    with pytest.raises(LearningError, match="cannot be read .No such file or directory."):
        replace(damaged, path=str(tmp_path / "none")).tensors()


def test_what_cannot_be_a_transformer_is_refused_in_one_line(tmp_path, monkeypatch):
    for more, line in (
        ({"name": "gpt3"}, "architecture=gpt3 is not known; did you mean gpt2. Use gpt2, bert or distilbert"),
        ({"name": "bert", "given": SPEAKS}, "bert also reads the tokens that it should predict"),
        ({"name": "bert", "positions": 4}, "positions=4 are fewer than the 12 tokens"),
        ({"name": "bert", "trained": "some"}, "trained=some is not known: use adapters or all"),
        ({"name": "bert", "width": 17}, "cannot take examples of shape"),
        ({"name": "bert", "layers": 201}, "layers=201, .*: use at most 200 layers"),
        ({"name": "bert", "layers": "two"}, "model_options.layers=two must be a number"),
        ({"name": 1}, "model_options.architecture=1 must be a word"),
    ):
        with pytest.raises(LearningError, match=line) as raised:
            built(**more)
        assert "\n" not in str(raised.value)
    with pytest.raises(LearningError, match="has one vocabulary for inputs and classes"):
        build_model("lstm", (LENGTH,), CLASSES, seed=0, input_dtype=np.int64, given=CLASSIFIES)
    with pytest.raises(LearningError, match="dataset.weights has no meaning for dataset.model=linear"):
        build_model("linear", (4,), CLASSES, seed=0, given=Given(None, WeightsFile("file", "0" * 64)))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LearningError, match=r"not installed: .*pip install 'peft>=\S+ 'transformers>="):
        built("gpt2")


def texts(path, *, labels):
    draw = np.random.default_rng(0).integers
    arrays = {f"x_{part}": draw(1, TOKENS, (20, LENGTH)) for part in ("train", "test")}
    if labels:
        arrays |= {f"y_{part}": np.arange(20) % CLASSES for part in ("train", "test")}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return DataSource("npz", path=str(path), vocabulary=TOKENS)


def task(source, loss="next_token", model="transformer", options=SMALL):
    return Task(source, model, "iid", 4, 0, model_options=options, loss=loss)


def test_a_text_is_learnt_at_every_position_and_tested_at_its_last(tmp_path):
    source = texts(tmp_path / "texts.npz", labels=False)
    data, learnt = load_dataset(source), task(source).load()
    assert (data.num_classes, data.vocabulary, data.input_shape) == (TOKENS, None, (LENGTH - 1,))
    places = np.array([3, 5])
    x, y = learnt.train.take(places).x, learnt.train.take(places).y
    assert np.array_equal(x[:, 1:], y[:, :-1])
    assert np.array_equal(y[:, -1], data.train.y[places])
    assert np.array_equal(learnt.test.y, data.test.y)
    assert learnt.labels == data.labels == labels_of("classes", TOKENS)
    assert task(source).described().classes_counted == TOKENS


@pytest.mark.parametrize("weights", [(), tuple(np.linspace(0.5, 2, TOKENS))])
def test_the_loss_of_a_text_is_the_mean_over_its_positions(weights):
    outputs, y = torch.randn(2, LENGTH, TOKENS), torch.from_numpy(np.arange(2 * LENGTH).reshape(2, -1))
    loss = make_loss("next_token", labels_of("classes", TOKENS), weights)
    factors = torch.tensor(weights or (1.0,) * TOKENS)
    by_place = [
        factors[token] * torch.nn.functional.cross_entropy(scores, token)
        for scores, token in zip(outputs.flatten(0, 1), y.flatten(), strict=True)
    ]
    expected = torch.stack(by_place).reshape(2, -1)
    torch.testing.assert_close(loss(outputs, y), expected.mean(dim=1), check_dtype=False)
    torch.testing.assert_close(loss(outputs[:, -1], y[:, -1]), expected[:, -1], check_dtype=False)


def test_a_loss_that_does_not_learn_what_a_model_says_is_refused(tmp_path):
    speaks, classified = texts(tmp_path / "1.npz", labels=False), texts(tmp_path / "2.npz", labels=True)
    assert task(speaks).build_model().every_position
    assert load_dataset(classified).vocabulary == TOKENS
    for wrong, line in (
        (task(speaks, "cross_entropy"), "gives scores for every position .* set dataset.loss=next_token"),
        (
            task(speaks, model="ngram", options=()),
            "gives scores for one class .* set dataset.loss=cross_entropy",
        ),
        (task(classified), "is for texts whose label is the next token"),
    ):
        with pytest.raises(LearningError, match=line):
            wrong.build_model()
    words = "dataset.partition=labels shares out classes, .* are 30 classes at every position: use"
    with pytest.raises(LearningError, match=words):
        replace(task(speaks), partition="labels").client_data(0)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"x_train": np.ones((3, 4))}, "it holds texts of one length, whole numbers"),
        (
            {"x_train": np.full((3, 4), TOKENS)},
            "tokens from 30 to 30; dataset.vocabulary=30 has those from 0 to 29",
        ),
        ({"x_train": np.ones((3, 5), np.int64)}, r"shape \(4,\) in x_train but \(3,\) in x_test"),
        ({"x_train": np.ones((3, 4), np.int64), "y_train": np.ones(3, np.int64)}, "lacks the arrays y_test"),
    ],
)
def test_arrays_that_are_no_texts_are_refused(tmp_path, arrays, line):
    np.savez(tmp_path / "texts.npz", x_test=np.ones((3, 4), np.int64), **arrays)
    with pytest.raises(LearningError, match=line):
        load_dataset(DataSource("npz", path=str(tmp_path / "texts.npz"), vocabulary=TOKENS))
