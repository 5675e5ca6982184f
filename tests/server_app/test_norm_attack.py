"""Test of a lying server: tiny norms or weights for all members but one do not reveal that one's update."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.messages import ORDER_RECORD
from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.models import flatten
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.release import NoiseAt
from server_app import grid_fleet as fleet_module
from server_app.exchange import Exchanger
from server_app.grid_fleet import GridFleet
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid
from testing.small_runs import as_charged

NUM_CLIENTS = 6
VICTIM = 0

# What the server tells everyone but the victim, and the victim.
LIES: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "norm": ({"clipping_norm": 1e-6}, {}),
    "norm with a range": ({"clipping_norm": 1e-6, "smallest_norm": 1e-6}, {}),
    "weight": ({"weight": 1e-6}, {}),
    "weight with a range": ({"weight": 1e-6, "smallest_weight": 1e-6}, {}),
    "everybody with a range": (
        {"clipping_norm": 1e-6, "smallest_norm": 1e-6},
        {"smallest_norm": 1e-6},
    ),
    "another learning rate": ({"learning_rate": 1e-9}, {}),
}


@pytest.mark.parametrize("clipping_norm", [1.0, np.inf])
@pytest.mark.parametrize("lie", LIES)
def test_the_victims_update_does_not_come_out(monkeypatch, lie, clipping_norm):
    config = load([f"dataset.num_clients={NUM_CLIENTS}", "dataset=digits"])
    task = task_of(config)
    order, theta = order_of(config, task), flatten(task.build_model())
    grid = LocalGrid(NUM_CLIENTS)
    nodes = {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
    fleet = GridFleet(Exchanger(as_grid(grid), nodes, 60.0), config.secagg, "test")
    asked = SumRequest(
        name="a",
        clients=np.arange(NUM_CLIENTS),
        clipping_norm=clipping_norm,
        noise_multiplier=0.0,
        noise_at=NoiseAt.NOWHERE,
        start=theta,
    )
    honest = fleet.sum_updates(order, as_charged([asked]))[0]
    assert honest.survivors == NUM_CLIENTS
    truthful = fleet_module.training_contents

    def lying(sums):
        contents = truthful(sums)
        for client_id, content in contents.items():
            scalars = dict(content[ORDER_RECORD]) | LIES[lie][client_id == VICTIM]
            record = ConfigRecord(dict(TrainingOrder.from_scalars(scalars).to_scalars()))
            contents[client_id] = RecordDict({**content, ORDER_RECORD: record})
        return contents

    monkeypatch.setattr(fleet_module, "training_contents", lying)
    second = replace(asked, name="b")
    (attacked,) = fleet.sum_updates(order, as_charged([second]))
    assert attacked.total is None
    assert attacked.failure is not None
