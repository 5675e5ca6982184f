"""An app like Flower's quickstart for PyTorch, on the bundled digits."""
# mypy: ignore-errors

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn

PIXELS, LABELS = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
PIXELS = PIXELS.float().reshape(-1, 1, 8, 8) / 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.fc1 = nn.Linear(8 * 9, 10)

    def forward(self, x):
        return self.fc1(nn.functional.max_pool2d(self.conv1(x).relu(), 2).flatten(1))


def load_data(partition_id, num_partitions):
    return PIXELS[partition_id:1500:num_partitions], LABELS[partition_id:1500:num_partitions]


# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
    for _ in range(context.run_config["local-epochs"]):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


client_app = app

# Flower ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    global result
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]
    arrays = ArrayRecord(Net().state_dict())

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=0.5)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate model on central data."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        right = (model(PIXELS[1500:]).argmax(1) == LABELS[1500:]).float().mean()
    return MetricRecord({"accuracy": right.item(), "loss": 0.0})


server_app = app
