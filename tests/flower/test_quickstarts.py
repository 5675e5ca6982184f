"""Tests of apps like Flower's quickstarts, made private by the changes that docs/library.md describes."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from gdpfed.audit.run_audit import audit_run
from gdpfed.launch.flower_run import Launch
from gdpfed.launch.home import free_ports
from gdpfed.learning.models.build import draws_by
from gdpfed.runs.round_log import read_rounds
from testing.flower_traces import FlowerTraces
from testing.local_grid import LocalGrid, as_grid
from testing.page_examples import blocks_of, examples_of
from testing.project import DOCS
from testing.small_runs import nothing_drawn

BIN = Path(sys.executable).parent
QUICKSTARTS = Path(__file__).parent / "quickstarts"
RUN_CONFIG: dict[str, Any] = {"num-server-rounds": 3, "learning-rate": 0.1, "local-epochs": 10}
PYPROJECT = """
[project]
name = "quickstart"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
serverapp = "numpy_app:server_app"
clientapp = "numpy_app:client_app"

[tool.flwr.app.config]
num-server-rounds = 3
learning-rate = 0.1
local-epochs = 10
"""
EVERYBODY = "'privacy.accountant=rdp', 'privacy.sampling_rate=1', 'privacy.clipping_norm=4',"
"""Nothing is searched for in a plan of everybody, and what is learnt does not depend on who was drawn."""
LINES = examples_of("library.md")["A Flower app of your own, under a plan"].splitlines()


@pytest.fixture
def traces(tmp_path):
    return FlowerTraces(tmp_path)


def private_source(name, directory, num_clients):
    """Return a quickstart's source code, changed in a few lines as docs/library.md says."""
    source = (QUICKSTARTS / f"{name}.py").read_text(encoding="utf-8")
    (imported,), (wrapped,), (planned,) = (
        [each for each in LINES if word in each] for word in ("import", "= private", "GDPFed(")
    )
    planned = planned.replace("num_clients=100", f"num_clients={num_clients}")
    planned = planned.replace("GDPFed(", f"GDPFed({EVERYBODY} 'run.directory={directory}', ")
    planned = planned.replace("[1.0, 3.0]", "[500.0]")
    private, count = re.subn(r"^    strategy = FedAvg\(.*\)$", f"    {planned}", source, flags=re.MULTILINE)
    assert count == 1
    private = private.replace("from flwr.serverapp.strategy import FedAvg", imported)
    private = private.replace("client_app = app\n", f"{wrapped}\nclient_app = app\n")
    before, after = source.splitlines(), private.splitlines()
    assert len([each for each in after if each not in before]) + 1 <= 5
    return private


def made_private(name, directory, num_clients):
    module = ModuleType(name)
    exec(private_source(name, directory, num_clients), module.__dict__)  # noqa: S102 - as a user would write it
    return module


def trained(module, num_nodes):
    grid = LocalGrid(num_nodes)
    grid.app = module.client_app
    for context in grid.contexts.values():
        context.run_config = RUN_CONFIG
    with nothing_drawn():
        module.server_app(as_grid(grid), Context(1, 0, {}, RecordDict(), RUN_CONFIG))
    return module.result, grid


WITH_JAX = pytest.param(
    "jax_app", marks=pytest.mark.skipif(not find_spec("jax"), reason="jax is not among the locked packages")
)


@pytest.mark.parametrize("name", ["sklearn_app", "pytorch_app", WITH_JAX])
def test_a_quickstart_learns_under_a_plan(name, tmp_path):
    with draws_by(0):
        result, grid = trained(made_private(name, tmp_path / "run", 12), 12)
    assert audit_run(tmp_path / "run").findings == ()
    assert len(read_rounds(tmp_path / "run")) == 3
    assert result.train_metrics_clientapp == result.evaluate_metrics_clientapp == {}
    assert not any("metrics" in reply for reply in grid.replies)
    accuracy = [each["accuracy"] for each in result.evaluate_metrics_serverapp.values()]
    assert len(accuracy) == 4
    assert accuracy[-1] > accuracy[0] + 0.1
    assert read_rounds(tmp_path / "run")[-1].accuracy == accuracy[-1]
    if name == "sklearn_app":
        weights, bias = result.arrays.to_numpy_ndarrays()
        assert (weights.dtype, weights.shape, bias.shape) == (np.float64, (10, 64), (10,))
    if name == "pytorch_app":
        saved = load_file(tmp_path / "run" / "model" / "weights.safetensors")
        state = result.arrays.to_torch_state_dict()
        assert list(state) == ["conv1.weight", "conv1.bias", "fc1.weight", "fc1.bias"]
        assert {key: value.tolist() for key, value in saved.items()} == {
            key: value.tolist() for key, value in state.items()
        }


def test_the_whole_app_of_the_page_learns_within_its_budgets(tmp_path, monkeypatch):
    text = (DOCS / "library.md").read_text("utf-8").partition("### A whole app")[2].partition("\n## ")[0]
    files = {block.name: block.text for block in blocks_of(text) if block.kind == "file"}
    assert [*files] == ["pyproject.toml", "client.py", "server.py"]
    components = tomllib.loads(files["pyproject.toml"])["tool"]["flwr"]["app"]["components"]
    modules = {key: ModuleType(place.removesuffix(":app")) for key, place in components.items()}
    for module in modules.values():
        exec(files[f"{module.__name__}.py"], module.__dict__)  # noqa: S102
    assert ("--num-supernodes 40 " in text, "num_clients=40," in files["server.py"]) == (True, True)
    monkeypatch.chdir(tmp_path)
    grid = LocalGrid(40)
    grid.app = modules["clientapp"].app
    with nothing_drawn():
        modules["serverapp"].app(as_grid(grid), Context(1, 0, {}, RecordDict(), {}))
    (run,) = (tmp_path / "runs").glob("[0-9]*")
    assert audit_run(run).findings == ()
    # Some 80 % of the digits, with new noise each time.
    accuracy = read_rounds(run)[-1].accuracy
    assert accuracy is not None
    assert accuracy > 0.6


def test_a_quickstart_in_flowers_simulation(tmp_path, traces):
    """``flwr run`` simulates the NumPy quickstart, and its clients send masked updates."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (app / "numpy_app.py").write_text(private_source("numpy_app", tmp_path / "run", 5), encoding="utf-8")
    with Launch(app, RUN_CONFIG | {"num-server-rounds": 1}, num_supernodes=5, workers=1) as launch:
        while launch.running():
            pass
        launch.check()
    assert audit_run(tmp_path / "run").findings == ()
    rounds = read_rounds(tmp_path / "run")
    assert len(rounds) == 1
    assert all({"mask", "unmask"} <= each.seconds.keys() for each in rounds if sum(each.survivors))
    assert sum(sum(each.survivors) for each in rounds) >= 3
    assert traces.left() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quickstart_on_nodes_of_its_own(tmp_path, traces):
    """The NumPy quickstart runs on Flower nodes that are processes, each with a ledger of its own."""
    app, run = tmp_path / "app", tmp_path / "run"
    app.mkdir()
    (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    source = private_source("numpy_app", run, 3).replace("GDPFed(", "GDPFed('method=gdpfed_star', ")
    (app / "numpy_app.py").write_text(source, encoding="utf-8")
    port, *own = free_ports(4)
    environment = traces.environment | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with ExitStack() as processes:

        def start(home, command, *words):
            home.mkdir()
            return processes.enter_context(
                ended([BIN / command, *words], environment | {"FLWR_HOME": str(home)}, home / "log")
            )

        where = ("--insecure", "--host", "127.0.0.1", "--port")
        start(traces.homes / "server", "flower-superlink", *where, str(port))
        for client, node_port in enumerate(own):
            home = traces.homes / f"node-{client}"
            says = f'partition-id={client} num-partitions=3 epsilon=500.0 ledger="{home / "ledger.db"}"'
            link = ("--superlink", f"127.0.0.1:{port}", "--node-config", says)
            start(home, "flower-supernode", *where, str(node_port), *link)
        config = traces.homes / "user"
        config.mkdir()
        (config / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n', encoding="utf-8"
        )
        for _ in range(60):
            submitted = subprocess.run(
                [BIN / "flwr", "run", app, "here", "--stream"],
                env=environment | {"FLWR_HOME": str(config)},
                capture_output=True,
                text=True,
            )
            if "Successfully started" in submitted.stdout:
                break
            time.sleep(1)
    assert (run / "seal.json").exists(), submitted.stdout + (traces.homes / "server" / "log").read_text()
    assert audit_run(run).findings == ()
    assert [each.survivors for each in read_rounds(run)] == [[3]] * 3
    for client in range(3):
        assert (traces.homes / f"node-{client}" / "ledger.db").exists()


@contextmanager
def ended(command, environment, log):
    """Start a process, and end the process and its children at the end of a ``with`` block."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
