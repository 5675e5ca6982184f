"""Tests of determinism: one seed gives one model, however the work is divided among processes."""

import pytest
from safetensors.numpy import load_file

from conf.load import load
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.small_runs import nothing_drawn

WAYS = (
    ("simulation.workers=1",),
    ("simulation.workers=1", "simulation.clients_at_once=1"),
    ("simulation.workers=2", "simulation.clients_at_once=5"),
    ("simulation.workers=3",),
)


def trained(directory, *overrides):
    """Return the model and the accuracies of a small run without noise, whose cohorts the seed draws."""
    settings = (
        "method=fedavg",
        "secagg=off",
        "dataset.num_clients=150",
        "dataset.momentum=0.5",
        "dataset.batch_size=3",
        "run.num_rounds=2",
        f"run.directory='{directory}'",
    )
    with nothing_drawn():
        simulate(load([*settings, *overrides]))
    tensors = load_file(directory / MODEL_FILE)
    model = {name: tensor.tobytes() for name, tensor in tensors.items()}
    return model, [(record.cohort_sizes, record.accuracy, record.loss) for record in read_rounds(directory)]


@pytest.mark.parametrize("model", ["mlp", "linear", "cnn3"])
def test_the_model_is_the_same_bit_for_bit_however_the_work_is_shared_out(tmp_path, model):
    results = [trained(tmp_path / str(n), f"dataset.model={model}", *way) for n, way in enumerate(WAYS)]
    assert all(result == results[0] for result in results[1:])


def test_another_seed_is_another_run(tmp_path):
    first, second = (trained(tmp_path / str(n), f"run.seed={n}", *WAYS[0]) for n in range(2))
    assert first[0] != second[0]
