"""An app like Flower's quickstart for JAX, on the bundled digits."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

X, Y = load_digits(return_X_y=True)
X = X / 16


def scores(params, x):
    return x @ params["weights"] + params["bias"]


def loss_fn(params, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(params, x)), y[:, None], axis=1).mean()


def load_data(partition_id, num_partitions):
    rows = np.arange(partition_id, 1500, num_partitions)
    return X[rows], Y[rows]


def to_params(arrays):
    return {name: jnp.asarray(each.numpy()) for name, each in arrays.items()}


def to_arrays(params):
    return ArrayRecord({name: Array(np.asarray(each)) for name, each in params.items()})


# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    params = to_params(msg.content["arrays"])
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    for _ in range(context.run_config["local-epochs"]):
        steps = jax.grad(loss_fn)(params, x, y)
        params = {name: each - msg.content["config"]["lr"] * steps[name] for name, each in params.items()}
    metrics = MetricRecord({"num-examples": len(x), "train_loss": float(loss_fn(params, x, y))})
    return Message(content=RecordDict({"arrays": to_arrays(params), "metrics": metrics}), reply_to=msg)


client_app = app

# Flower ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    global result
    num_rounds: int = context.run_config["num-server-rounds"]
    arrays = to_arrays({"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)})

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate model on central data."""
    answers = scores(to_params(arrays), X[1500:]).argmax(axis=1)
    return MetricRecord({"accuracy": float((answers == Y[1500:]).mean())})


server_app = app
