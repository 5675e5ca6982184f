"""Tests of canaries in a federation of real nodes, with their messages and noise, in this process."""

import numpy as np
import pytest

from gdpfed.clients.configured import task_of
from gdpfed.extras.canaries.canary import Canaries, CanaryEngine, choose_clients, dirac_directions
from gdpfed.extras.canaries.lower_bounds import epsilon_lower_bounds
from gdpfed.extras.canaries.transcript import Transcript
from gdpfed.federation.node.contribution import Contributor
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method
from gdpfed.simulation.engine import Cohort
from server_app.grid_fleet import GridFleet
from testing.small_runs import run, small_config

# With so few canaries nothing is refuted by chance: not even 24 right guesses of 24 do it.
SIGNIFICANCE = 0.01
OVERRIDES = ("method=dp_fedavg", "privacy.budgets=[1]", "privacy.group_shares=[1]", "dataset.num_rounds=2")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return a function that trains a number of runs with canaries as clients, and returns transcripts."""
    config = small_config(tmp_path / "none", OVERRIDES)
    plan, start = make_method(config).plan, flatten(task_of(config).build_model())
    generator = np.random.default_rng(5)
    found: list[Transcript] = []

    def steps_at_node(who, order, theta, encoding):
        engine = CanaryEngine(found[-1].canaries, None, many_at_once=False)
        ((_, steps),) = engine.updates(order, theta, Cohort([who.client_id], encoding))
        return steps[0]

    def sum_wave(fleet, sums, upcoming):
        results = summed(fleet, sums, upcoming)
        for each in sums:
            found[-1].add_sum(each, results[each.name])
        return results

    def train(count):
        for number in range(count):
            clients, groups = choose_clients(plan, plan.num_clients, generator)
            directions = dirac_directions(len(clients), len(start), generator)
            present = generator.permutation(len(clients)) % 2 == 0
            found.append(
                Transcript(plan, Canaries(clients, groups, present, directions, plan.adjacency), start)
            )
            run(tmp_path / str(number), OVERRIDES)
        return found

    summed = GridFleet.sum_wave
    monkeypatch.setattr(Contributor, "steps", steps_at_node)
    monkeypatch.setattr(GridFleet, "sum_wave", sum_wave)
    return train


def silent(order, parameters, *more):
    return np.zeros(parameters.dimension, dtype=np.int64)


def figures(runs):
    plan = runs[0].plan
    return epsilon_lower_bounds(runs, plan, [plan.num_rounds], SIGNIFICANCE, independent=True)


def test_a_federation_shows_no_more_than_is_stated(trained):
    runs = trained(1)
    assert len(runs[0].sums) == 2
    assert all(figure.held for figure in figures(runs))


def test_nodes_that_add_no_noise_are_found(trained, monkeypatch):
    monkeypatch.setattr("gdpfed.clients.noise.own_noise", silent)
    monkeypatch.setattr("secagg.protocol.client_keys._check_noise", lambda state, noise: None)
    assert not all(figure.held for figure in figures(trained(4)))
