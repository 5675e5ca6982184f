"""Tests of dataset.features=file: features from a user's frozen encoder, in one process and at nodes."""

import json
import sys
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning import weights_file
from gdpfed.learning.data import encoded
from gdpfed.learning.data.encoded import NORM, Encoder
from gdpfed.learning.data.own import OwnData, held_out_rows, own_held_out, own_split
from gdpfed.learning.data.own_files import own_examples
from gdpfed.learning.models.transformer import PADDING, mean_states
from gdpfed.learning.prediction import load_model
from gdpfed.learning.task import Task
from gdpfed.learning.weights_file import WeightsFile
from gdpfed.simulation import simulate
from testing.local_grid import FIRST_NODE_ID, IN_CLEAR, LocalGrid
from testing.small_runs import final_model, nothing_drawn, run, small_config
from tests.learning.test_transformers import CLASSES, LENGTH, TOKENS, WIDTH, encoder_of, written

SIZES = "layers:2,heads:2,width:16"
CLIENTS = 4
SMALL = (
    *(f"dataset.num_clients={CLIENTS}", "dataset.num_rounds=2", "privacy.sampling_rate=1"),
    *("dataset.model=linear", "method=fedavg", "secagg=off"),
)


def texts(folder):
    draw = np.random.default_rng(0).integers
    x, y = draw(1, TOKENS, (30, LENGTH)), np.arange(30) % CLASSES
    x[::3, LENGTH // 2 :] = PADDING
    np.savez(folder / "texts.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return x, y


def pictures(folder):
    draw = np.random.default_rng(0).standard_normal
    x, y = draw((12, 1, 32, 32)).astype(np.float32).clip(-1, 1), np.arange(12) % CLASSES
    np.savez(folder / "pictures.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return x, y


def settings(file, data, encoder, *more):
    digest = sha256(file.read_bytes()).hexdigest()
    return (
        *("dataset=npz", f"dataset.path={data}", "dataset.features=file", f"dataset.weights={file}"),
        *(f"dataset.weights_sha256={digest}", f"dataset.encoder={{{encoder}}}", *more, *SMALL),
    )


def of_texts(folder, name="bert"):
    torch.manual_seed(3)
    encoder = encoder_of(name)
    written(folder / "base.safetensors", encoder.state_dict())
    words = settings(
        *(folder / "base.safetensors", folder / "texts.npz", f"architecture:{name},{SIZES}"),
        f"dataset.vocabulary={TOKENS}",
    )
    return encoder.eval(), words


def of_pictures(folder):
    torch.manual_seed(3)
    model = resnet18(weights=None)
    model(torch.randn(4, 3, 32, 32))  # Statistics that are not those of a new model.
    save_file(model.state_dict(), folder / "base.safetensors")
    words = settings(folder / "base.safetensors", folder / "pictures.npz", "architecture:resnet18,size:48")
    return model.eval(), words


def form_of(folder, words) -> Any:
    return task_of(small_config(folder / "none", words)).described().form


@pytest.mark.parametrize("name", ["gpt2", "bert", "distilbert"])
def test_texts_become_the_mean_of_a_files_last_states(tmp_path, name):
    (x, _), (encoder, words) = texts(tmp_path), of_texts(tmp_path, name)
    task = task_of(small_config(tmp_path / "none", words))
    data = task.load()
    assert (data.input_shape, data.picture_shape, data.vocabulary) == ((WIDTH,), (LENGTH,), None)
    assert task.dimension == (WIDTH + 1) * CLASSES
    with torch.no_grad():
        states = mean_states(encoder, torch.from_numpy(x), causal=name == "gpt2").numpy()
    expected = NORM * states / np.linalg.norm(states, axis=1, keepdims=True)
    np.testing.assert_allclose(data.train.take(np.arange(30)).x, expected, atol=1e-5)


def test_pictures_become_what_torchvisions_network_says_before_its_last_layer(tmp_path):
    (x, _), (model, words) = pictures(tmp_path), of_pictures(tmp_path)
    data = task_of(small_config(tmp_path / "none", words)).load()
    assert (data.input_shape, data.picture_shape) == ((512,), (1, 32, 32))
    colours = (torch.from_numpy(x) + 1) / 2
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scaled = (colours.expand(-1, 3, -1, -1) - mean.view(1, 3, 1, 1)) / deviation.view(1, 3, 1, 1)
    scaled = torch.nn.functional.interpolate(scaled, size=(48, 48), mode="bilinear", align_corners=False)
    model.fc = torch.nn.Identity()
    with torch.no_grad():
        said = model(scaled).numpy()
    expected = NORM * said / np.linalg.norm(said, axis=1, keepdims=True)
    np.testing.assert_allclose(data.train.take(np.arange(12)).x, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["texts", "pictures"])
def test_a_head_on_a_file_is_trained_alike_by_nodes_and_in_one_process(tmp_path, kind):
    x, y = texts(tmp_path) if kind == "texts" else pictures(tmp_path)
    _, words = of_texts(tmp_path) if kind == "texts" else of_pictures(tmp_path)
    with nothing_drawn():
        simulate(small_config(tmp_path / "process", words))
    own = tmp_path / "own.safetensors"
    own.write_bytes((tmp_path / "base.safetensors").read_bytes())
    grid = LocalGrid(CLIENTS, node_config={"weights": str(own), **IN_CLEAR})
    task = task_of(small_config(tmp_path / "none", words))
    for client in range(CLIENTS):
        places = task.client_indices(client)
        np.savez(tmp_path / f"{client}.npz", x_train=x[places], y_train=y[places])
        grid.contexts[FIRST_NODE_ID + client].node_config["data"] = str(tmp_path / f"{client}.npz")
    run(tmp_path / "flower", words, grid=grid)
    np.testing.assert_allclose(
        final_model(tmp_path / "process"), final_model(tmp_path / "flower"), rtol=0, atol=1e-5
    )
    said = load_model(tmp_path / "flower").predict(x[:4]).to_table()
    again = load_model(tmp_path / "process").predict(x[:4]).to_table()
    assert said.keys() == again.keys() == {"predicted", *(f"probability_{k}" for k in range(CLASSES))}
    np.testing.assert_allclose(said["probability_0"], again["probability_0"], atol=1e-5)  # type: ignore[arg-type]


def test_a_head_is_trained_under_a_budget_of_records(tmp_path):
    texts(tmp_path)
    words = [
        *(each for each in of_texts(tmp_path)[1] if not each.startswith("method")),
        *("method=dp_sgd", "privacy=record_level", "privacy.budgets=[20]", "privacy.delta=1e-2"),
    ]
    with nothing_drawn():
        simulate(small_config(tmp_path / "run", words))
    assert audit_run(tmp_path / "run").passed


def test_the_hash_is_in_the_order_that_a_node_is_sent(tmp_path):
    texts(tmp_path)
    words = of_texts(tmp_path)[1]
    task = task_of(small_config(tmp_path / "none", words)).described()
    again = Task.from_json(task.to_json())
    assert again == task
    digest = sha256((tmp_path / "base.safetensors").read_bytes()).hexdigest()
    assert digest in task.to_json()
    assert replace(task, source=replace(task.source, weights_sha256="0" * 64)).digest != task.digest


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            "dataset.encoder={architecture:resnet50}",
            "architecture=resnet50: name one of resnet18, gpt2, bert, dis",
        ),
        ("dataset.encoder=null", "has architecture=: name one of"),
        (
            "dataset.encoder={architecture:bert,depth:2}",
            "dataset.encoder.depth=2: bert has layers, heads, width",
        ),
        ("dataset.encoder={architecture:bert,layers:1.5}", "positive whole numbers"),
        ("dataset.encoder={architecture:resnet18}", "takes pictures, and the examples have shape"),
        ("dataset.encoder={architecture:bert,layers:1,heads:2,width:16}", "has encoder.layer.1"),
        ("dataset.encoder={architecture:bert,heads:3,width:16}", "dataset.encoder="),
        (
            "dataset.vocabulary=null",
            "dataset.encoder=bert needs texts, and dataset=npz has numbers: set dataset.vocabulary to",
        ),
        ("dataset.features=null", "dataset.encoder is read with dataset.features=file alone"),
        (f"dataset.weights_sha256={'0' * 64}", "and dataset.weights_sha256 is 000"),
        ("dataset.weights_sha256=null", "must be the SHA-256 of dataset.weights"),
        ("dataset.weights=null dataset.weights_sha256=null", "dataset.features=file needs dataset.weights"),
    ],
)
def test_what_is_no_encoder_of_the_file_is_refused_in_one_line(tmp_path, changed, line):
    texts(tmp_path)
    words = [each for each in of_texts(tmp_path)[1] if not each.startswith("dataset.encoder")]
    words += [f"dataset.encoder={{architecture:bert,{SIZES}}}"] * ("encoder" not in changed)
    keys = {each.partition("=")[0] for each in changed.split()}
    kept = [each for each in words if each.partition("=")[0] not in keys]
    with pytest.raises(LearningError, match=line) as raised:
        task_of(small_config(tmp_path / "none", [*kept, *changed.split()])).load()
    assert "\n" not in str(raised.value)


def test_pictures_need_no_extra_and_texts_say_which(tmp_path, monkeypatch):
    pictures(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert task_of(small_config(tmp_path / "none", of_pictures(tmp_path)[1])).load().input_shape == (512,)
    encoder = Encoder(
        (("architecture", "bert"),), written(tmp_path / "other", {"one": torch.zeros(1)}), TOKENS
    )
    with pytest.raises(LearningError, match="needs the packages transformers and peft, which are not inst"):
        encoder.of(np.ones((2, LENGTH), dtype=np.int64))


def test_what_a_node_has_encoded_is_kept_in_its_process_and_nowhere_else(tmp_path, monkeypatch):
    x, _ = texts(tmp_path)
    form = form_of(tmp_path, of_texts(tmp_path)[1])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(30) % CLASSES)
    files, counts = sorted(tmp_path.iterdir()), []
    plain = Encoder.of

    def counted(self, some):
        counts.append(len(some))
        return plain(self, some)

    monkeypatch.setattr(Encoder, "of", counted)
    first, again = (own_split(tmp_path / "own.npz", form) for _ in range(2))
    # One for the shape, and then each example by itself.
    assert counts == [1] * 31
    assert np.array_equal(first.x, again.x)
    assert sorted(tmp_path.iterdir()) == files
    np.savez(tmp_path / "own.npz", x_train=x[::-1], y_train=np.arange(30) % CLASSES)
    np.testing.assert_allclose(own_split(tmp_path / "own.npz", form).x, first.x[::-1], atol=1e-6)
    other = replace(form, encoder=replace(form.encoder, weights=WeightsFile("none", "1" * 64)))
    with pytest.raises(LearningError, match="none cannot be read"):
        own_split(tmp_path / "own.npz", other)
    assert counts == [1] * (31 + 31 + 1)


def test_an_order_names_no_file_beside_the_one_that_its_node_has_compared(tmp_path):
    texts(tmp_path)
    task = task_of(small_config(tmp_path / "none", of_texts(tmp_path)[1])).described()
    values = json.loads(task.to_json())
    values["form"]["encoder"]["weights"] = {"path": "/etc/hostname", "sha256": "0" * 64}
    assert Task.from_json(json.dumps(values)).form == task.form
    values["source"] |= {"weights": None, "weights_sha256": None}
    form = Task.from_json(json.dumps(values)).form
    assert form is not None
    assert form.encoder is None


def test_the_same_examples_are_held_out_whatever_they_are_turned_into(tmp_path):
    x, y = texts(tmp_path)
    form = form_of(tmp_path, of_texts(tmp_path)[1])
    own = OwnData(tmp_path / "texts.npz", None, 0.4)
    held = held_out_rows(own_examples(own.path), 0.4)
    numbers = form.encoder.of(x)
    np.testing.assert_allclose(own_held_out(own, form).x, numbers[held], atol=1e-5)
    trained = own_split(own.path, form, 0.4)
    np.testing.assert_allclose(trained.x, numbers[~held], atol=1e-5)
    assert 0 < held.sum() < 30
    fewer = own_split(own.path, replace(form, num_classes=2), 0.4)
    assert np.array_equal(fewer.y == 0, (y[~held] != 1))


def test_an_example_whose_numbers_overflow_is_zeros_and_moves_no_other(tmp_path):
    x, _ = pictures(tmp_path)
    encoder = form_of(tmp_path, of_pictures(tmp_path)[1]).encoder
    large = x.copy()
    large[1] = 3e38
    said = encoder.of(large)
    assert not said[1].any()
    np.testing.assert_allclose(np.delete(said, 1, 0), np.delete(encoder.of(x), 1, 0), atol=1e-6)


def test_a_model_predicts_where_its_encoders_file_lies_in_its_folder(tmp_path, monkeypatch):
    x, _ = texts(tmp_path)
    with nothing_drawn():
        simulate(small_config(tmp_path / "run", of_texts(tmp_path)[1]))
    expected: Any = load_model(tmp_path / "run").predict(x[:4]).to_table()["probability_0"]
    base, folder = tmp_path / "base.safetensors", tmp_path / "run" / "model"
    base.rename(folder / "encoder.safetensors")
    weights_file._own.clear()
    encoded._loaded.cache_clear()
    found: Any = load_model(folder).predict(x[:4]).to_table()["probability_0"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    (folder / "encoder.safetensors").write_bytes(b"another")
    with pytest.raises(LearningError, match="encoder.safetensors has SHA-256"):
        load_model(folder)
