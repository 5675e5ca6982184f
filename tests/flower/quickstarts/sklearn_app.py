"""An app like Flower's quickstart for scikit-learn, on the bundled digits."""
# mypy: ignore-errors

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

X, Y = load_digits(return_X_y=True)
X = X / 16


def create_model():
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.02, random_state=0)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    return model


def load_data(partition_id, num_partitions):
    rows = np.arange(partition_id, 1500, num_partitions)
    return X[rows], Y[rows]


# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = create_model()
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    model.partial_fit(x, y, classes=np.arange(10))
    metrics = MetricRecord({"num-examples": len(x), "train_accuracy": model.score(x, y)})
    content = RecordDict({"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics})
    return Message(content=content, reply_to=msg)


client_app = app

# Flower ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    global result
    num_rounds: int = context.run_config["num-server-rounds"]
    model = create_model()
    arrays = ArrayRecord([model.coef_, model.intercept_])

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate model on central data."""
    model = create_model()
    model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": model.score(X[1500:], Y[1500:])})


server_app = app
