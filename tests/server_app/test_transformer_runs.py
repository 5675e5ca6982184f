"""Tests of runs that train transformers from a file of base weights, at nodes and in one process."""

import itertools
import logging
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import RunError
from gdpfed.extras.canaries.model_attack import attack_run
from gdpfed.learning.models import build_model, trainable
from gdpfed.learning.onnx_export import INPUT, PACKAGES, save_onnx
from gdpfed.learning.prediction import load_model
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.local_grid import FIRST_NODE_ID, IN_CLEAR, LocalGrid
from testing.small_runs import final_model, nothing_drawn, run, small_config
from tests.learning import drawn_data

CLIENTS, TOKENS, LENGTH = 4, 20, 8
SIZES = "heads:2,layers:1,rank:2,width:8"
SMALL = (
    f"dataset.num_clients={CLIENTS}",
    "dataset.num_rounds=2",
    "privacy.sampling_rate=1",
    "dataset.local_steps=2",
    "dataset.batch_size=4",
    "dataset.learning_rate=0.5",
)
OF_CLIENTS = ("method=fedavg", "secagg=off")
OF_RECORDS = ("method=dp_sgd", "privacy=record_level", "privacy.budgets=[20]", "privacy.delta=1e-2")


@pytest.fixture
def plays(tmp_path):
    """Return settings of a next-token model of a text with four roles, and the path of its base model."""
    text, _ = drawn_data.play(np.random.default_rng(0), ["First", "ROMEO", "All", "Nurse"], 300)
    (tmp_path / "plays.txt").write_text(text)
    settings = (
        "dataset=shakespeare",
        f"dataset.path={tmp_path / 'plays.txt'}",
        f"dataset.sequence_length={LENGTH}",
        f"dataset.train_stride={LENGTH + 1}",
        "dataset.momentum=0",
        "dataset.model=transformer",
        f"dataset.model_options={{{SIZES}}}",
        "dataset.loss=next_token",
        *SMALL,
    )
    return settings, tmp_path / "base.safetensors"


def base_of(settings, path, seed=7):
    """Write a new model's weights to a file, and return the settings that name the file and its SHA-256."""
    task = task_of(small_config(path.parent / "none", [*settings, "dataset.loss=next_token"]))
    model = build_model(
        "transformer",
        (LENGTH,),
        81,
        seed=seed,
        input_dtype=np.int64,
        options=(*task.model_options, ("trained", "all")),
    )
    save_file({name: each.detach().clone() for name, each in model.state_dict().items()}, path)
    return f"dataset.weights={path}", f"dataset.weights_sha256={sha256(path.read_bytes()).hexdigest()}"


def simulated(directory, settings):
    with nothing_drawn():
        simulate(small_config(directory, settings))
    return read_rounds(directory)


def grid_of(folder, settings, **node_config):
    """Return a grid of nodes, each with a file of its own data."""
    grid, task = LocalGrid(CLIENTS, node_config=node_config), task_of(small_config(folder / "none", settings))
    for client in range(CLIENTS):
        part = task.client_data(client)
        np.savez(
            folder / f"{client}.npz", x_train=part.x, y_train=part.y if part.y.ndim == 1 else part.y[:, -1]
        )
        grid.contexts[FIRST_NODE_ID + client].node_config["data"] = str(folder / f"{client}.npz")
    return grid


def test_both_fleets_train_the_same_adapters_on_a_file(tmp_path, plays):
    settings = (*plays[0], *base_of(*plays), *OF_CLIENTS)
    own = tmp_path / "own.safetensors"
    own.write_bytes(plays[1].read_bytes())
    grid = grid_of(tmp_path, plays[0], weights=str(own), **IN_CLEAR)
    over_flower = run(tmp_path / "flower", settings, grid=grid)
    in_process = simulated(tmp_path / "process", settings)
    assert [r.survivors for r in over_flower] == [r.survivors for r in in_process] == [[CLIENTS]] * 2
    flower, process = final_model(tmp_path / "flower"), final_model(tmp_path / "process")
    np.testing.assert_allclose(process, flower, rtol=0, atol=1e-6)
    held, base = load_file(tmp_path / "flower" / MODEL_FILE), load_file(plays[1])
    learnt = trainable(task_of(small_config(tmp_path / "flower", settings)).build_model())
    assert {name.rpartition(".lora_")[1] for name in learnt} == {".lora_"}
    for name, each in held.items():
        if name not in learnt:
            assert torch.equal(each, base[name.replace("base_layer.", "")]), name
    first, last = (record.loss or 0.0 for record in (over_flower[0], over_flower[-1]))
    assert 0 < last < first
    said = load_model(tmp_path / "flower").predict(np.ones((3, LENGTH), dtype=np.int64))
    assert len(said.to_table()) == 1 + 81


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_adapters_are_trained_under_a_budget_of_records(tmp_path, plays, engine):
    settings = (*plays[0], *OF_RECORDS, f"simulation.engine={engine}")
    assert len(simulated(tmp_path / "run", settings)) == 2
    assert audit_run(tmp_path / "run").passed
    theta = task_of(small_config(tmp_path / "none", settings)).dimension
    assert theta == 2 * (8 + 3 * 8)


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "distilbert"])
def test_texts_are_classified_alike_over_messages_and_in_one_process(tmp_path, architecture):
    draw = np.random.default_rng(1).integers
    labels = np.arange(40) % 2
    x = draw(1, TOKENS // 2, (40, LENGTH)) + labels[:, None] * (TOKENS // 2)
    np.savez(tmp_path / "texts.npz", x_train=x, y_train=labels, x_test=x[:20], y_test=labels[:20])
    settings = (
        "dataset=npz",
        f"dataset.path={tmp_path / 'texts.npz'}",
        f"dataset.vocabulary={TOKENS}",
        "dataset.model=transformer",
        f"dataset.model_options={{architecture:{architecture},{SIZES}}}",
        *SMALL,
    )
    run(tmp_path / "flower", [*settings, *OF_CLIENTS], grid=grid_of(tmp_path, settings, **IN_CLEAR))
    simulated(tmp_path / "process", [*settings, *OF_CLIENTS])
    np.testing.assert_allclose(
        final_model(tmp_path / "process"), final_model(tmp_path / "flower"), rtol=0, atol=1e-6
    )
    assert len(load_model(tmp_path / "flower").predict(x[:3]).to_table()) == 1 + 2
    run(tmp_path / "records", [*settings, *OF_RECORDS], grid=grid_of(tmp_path, settings))
    assert audit_run(tmp_path / "records").passed


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        (
            "another file",
            "weights is not the safetensors file that this run is built on, whose SHA-256 is {0}",
        ),
        ("no file", "weights is not the safetensors file that this run is built on, whose SHA-256 is {0}"),
        (
            None,
            "this run is built on a file of weights with SHA-256 {0}, and this node was started without wei",
        ),
    ],
)
def test_a_node_without_the_file_joins_no_run_and_charges_nothing(tmp_path, plays, caplog, kept, line):
    settings = (*plays[0], *base_of(*plays), *OF_RECORDS)
    wanted = settings[len(plays[0]) + 1].partition("=")[2]
    own = {}
    if kept is not None:
        own["weights"] = str(tmp_path / "own.safetensors")
    if kept == "another file":
        base_of(plays[0], tmp_path / "own.safetensors", seed=8)
    grid = grid_of(tmp_path, plays[0], **own)
    ledgers = [tmp_path / f"{client}.json" for client in range(CLIENTS)]
    for client, ledger in enumerate(ledgers):
        budget = {"epsilon-record": 30.0, "delta-record": 1e-2, "ledger": str(ledger)}
        grid.contexts[FIRST_NODE_ID + client].node_config |= budget
    with caplog.at_level(logging.ERROR), pytest.raises(RunError, match=line.format(wanted)):
        run(tmp_path / "run", settings, grid=grid)
    assert not (tmp_path / "run").exists()
    assert not any(ledger.exists() for ledger in ledgers)
    if kept == "another file":
        assert (
            f"own.safetensors has SHA-256 {sha256((tmp_path / 'own.safetensors').read_bytes()).hexdigest()}"
            in caplog.text
        )


def test_a_file_that_changes_in_a_run_stops_its_node_before_a_charge(tmp_path, plays):
    settings = (*plays[0], *base_of(*plays), *OF_CLIENTS)
    own = tmp_path / "own.safetensors"
    own.write_bytes(plays[1].read_bytes())
    asked = itertools.count()

    def changed(kind, client, content):
        if kind == "plain" and next(asked) == CLIENTS:
            own.write_bytes(b"another")
        return content

    grid = grid_of(tmp_path, plays[0], weights=str(own), **IN_CLEAR)
    grid.meddle = changed
    records = run(tmp_path / "run", settings, grid=grid)
    assert [record.survivors for record in records] == [[CLIENTS], [0]]


def texts_of(folder):
    """Write 40 random token texts for training and 20 for testing; return settings of a next-token model."""
    x = np.random.default_rng(1).integers(0, TOKENS, (60, LENGTH))
    np.savez(folder / "texts.npz", x_train=x[:40], x_test=x[40:])
    return (
        "dataset=npz",
        f"dataset.path={folder / 'texts.npz'}",
        f"dataset.vocabulary={TOKENS}",
        "dataset.model=transformer",
        f"dataset.model_options={{{SIZES},trained:all}}",
        "dataset.loss=next_token",
        *SMALL,
        *OF_CLIENTS,
    )


def test_texts_are_told_apart_by_the_loss_that_they_are_learnt_by(tmp_path):
    simulated(tmp_path / "run", [*texts_of(tmp_path), "dataset.num_rounds=10"])
    for found in attack_run(tmp_path / "run").membership:
        assert (found.members, found.others) == (40, 20)
        assert found.auc > 0.5


def test_onnx_gives_the_next_tokens_of_a_text_as_the_model_does(tmp_path):
    for name in PACKAGES:
        pytest.importorskip(name)
    onnxruntime = pytest.importorskip("onnxruntime")
    simulated(tmp_path / "run", texts_of(tmp_path))
    model = load_model(tmp_path / "run")
    save_onnx(model, tmp_path / "model.onnx")
    # The last token of a text is what follows its others.
    x = np.load(tmp_path / "texts.npz")["x_test"][:5, :-1]
    (answer,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {INPUT: x})
    expected = model.predict(x).probabilities
    assert expected is not None
    assert answer.shape == (5, TOKENS)
    np.testing.assert_allclose(answer, expected, atol=1e-6)
