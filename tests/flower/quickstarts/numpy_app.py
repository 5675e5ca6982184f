"""An app like Flower's quickstart for NumPy: least squares on random numbers that each client draws."""
# mypy: ignore-errors

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

TRUE = np.array([1.0, -2.0, 0.5])


def load_data(partition_id):
    rng = np.random.default_rng(partition_id)
    x = rng.normal(size=(50, 3))
    return x, x @ TRUE + 0.1 * rng.normal(size=50)


# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    weights, bias = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"])
    for _ in range(context.run_config["local-epochs"]):
        error = x @ weights + bias - y
        weights = weights - msg.content["config"]["lr"] * x.T @ error / len(y)
        bias = bias - msg.content["config"]["lr"] * error.mean(keepdims=True)
    metrics = MetricRecord({"train_loss": float((error**2).mean()), "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    weights, bias = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"loss": float(((x @ weights + bias - y) ** 2).mean()), "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)


client_app = app

# Flower ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    global result
    num_rounds: int = context.run_config["num-server-rounds"]
    arrays = ArrayRecord([np.zeros(3), np.zeros(1)])

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=num_rounds,
    )


server_app = app
