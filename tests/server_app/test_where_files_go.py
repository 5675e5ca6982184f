"""Tests of where files go: Flower works in another folder, and the files of runs stay in the checkout."""

import sys
from typing import cast

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

import server_app.app as app_module
from gdpfed.errors import ConfigError
from testing.local_grid import LocalGrid
from testing.small_runs import NUM_CLIENTS, run

SIMULATION, SERVERAPP = "/bin/flwr-simulation", "/bin/flwr-serverapp"


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return a function that runs the app outside the checkout, and returns its configuration."""
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    checkout.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(app_module, "checkout", lambda: checkout)
    configs = []
    monkeypatch.setattr(app_module, "train", lambda grid, config, label: configs.append(config))

    def train(program, overrides):
        monkeypatch.setattr(sys, "argv", [program])
        app_module.app(cast("Grid", LocalGrid(0)), Context(1, 0, {}, RecordDict(), {"overrides": overrides}))
        return configs.pop()

    return train


def test_a_simulated_run_and_its_relative_paths_are_in_the_checkout(tmp_path, trained):
    words = "dataset=npz dataset.path=data/mine.npz dataset.num_clients=9 "
    words += "privacy.budgets=clients privacy.client_budgets=own.txt"
    checkout = tmp_path / "checkout"
    (checkout / "own.txt").write_text("2\n" * 9)
    config = trained(SIMULATION, words)
    assert config.run.directory.startswith(f"{checkout}/runs/")
    assert config.run.directory.endswith("-npz-gdpfed_plus")
    assert config.dataset.path == f"{checkout}/data/mine.npz"
    assert config.privacy.client_budgets == [2.0] * 9
    # Those that begin in one second have a directory each, below.
    assert (
        trained(SIMULATION, "dataset=digits").run.directory
        != trained(SIMULATION, "dataset=digits").run.directory
    )
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_names_its_place_stays_there(tmp_path, trained):
    config = trained(SIMULATION, f"run.directory={tmp_path}/mine run.mlflow=http://mlflow")
    assert (config.run.directory, config.run.mlflow) == (f"{tmp_path}/mine", "http://mlflow")
    with pytest.raises(ConfigError, match=f"run.resume={tmp_path}/checkout/runs/gone"):
        trained(SIMULATION, "run.resume=runs/gone")
    assert not list((tmp_path / "checkout").iterdir())


def test_a_federation_has_the_folder_that_its_operator_started_it_in(tmp_path, trained, monkeypatch):
    assert trained(SERVERAPP, "dataset=digits").run.directory is None
    monkeypatch.setattr(app_module, "checkout", lambda: None)
    assert trained(SIMULATION, "dataset=digits").run.directory is None


def test_the_log_says_first_where_the_files_are(tmp_path, caplog):
    run(tmp_path / "run", ["method=fedavg", "run.num_rounds=1"], grid=LocalGrid(NUM_CLIENTS))
    where = f"the run's files are in {tmp_path / 'run'}"
    said = [line for line in caplog.messages if where in line]
    assert said == [where, f"done; {where}"]
