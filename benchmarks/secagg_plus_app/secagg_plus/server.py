"""A Flower server that trains with Flower's own SecAgg+ workflow, and measures each round."""

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load, split
from gdpfed.clients.configured import task_of
from gdpfed.learning.models import flatten

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with SecAgg+, and write the seconds of every round into the configured file."""
    nodes, rounds = int(context.run_config["nodes"]), int(context.run_config["rounds"])
    task = task_of(load(split(str(context.run_config["overrides"]))))
    results = []
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=nodes,
        min_available_clients=nodes,
        initial_parameters=ndarrays_to_parameters([flatten(task.build_model())]),
        evaluate_fn=lambda number, parameters, config: results.append(number),
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    # Every node holds a share of every other's secrets, two thirds of them recover one.
    secagg = SecAggPlusWorkflow(num_shares=nodes, reconstruction_threshold=-(-2 * nodes // 3))
    seconds = []

    def fit(grid: Grid, context: Context) -> None:
        started = time.perf_counter()
        secagg(grid, context)
        seconds.append(time.perf_counter() - started)
        # Flower's log can end before a run's last lines have reached it.
        Path(str(context.run_config["seconds"])).write_text(json.dumps(seconds), encoding="utf-8")

    DefaultWorkflow(fit_workflow=fit)(grid, legacy)
