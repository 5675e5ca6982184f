"""Tests of clients' votes on settings: the setting chosen, a vote's norm, and votes in simulations."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.clients.order_checks import model_dimension
from gdpfed.clients.update import contribution_steps, update_steps
from gdpfed.clients.works import Job
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.record_steps import RecordSteps
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort, SequentialEngine
from secagg import SumParameters, keystream

TASK = task_of(load(["dataset=breast_cancer"])).described()
SETTINGS = (1e-6, 0.0, 1.0, 1.0, 0.0, 1.0, 1e-5, 0.0, 1.0)
STEPS = RecordSteps(num_steps=8, batch_rates=(0.5,), clipping_norm=1.0, noise_multiplier=0.5)
ORDER = replace(
    order_of(load(["dataset=breast_cancer"]), TASK), work="vote", settings=SETTINGS, records=STEPS
)
THETA = flatten(TASK.build_model())


def encoding_of(noise, clipping_norm=1.0, settings=3):
    return SumParameters(
        label="one",
        num_clients=4,
        threshold=3,
        dropout_tolerance=0,
        corrupt_tolerance=0,
        dimension=settings,
        clipping_norm=clipping_norm,
        noise_multiplier=noise / clipping_norm,
    ).encoding(4)


@pytest.mark.parametrize("noise", [0.5, 6.0, 60.0])
@pytest.mark.parametrize("clipping_norm", [1.0, 50.0])
def test_a_vote_is_within_norm_one_and_two_are_within_the_square_root_of_two(noise, clipping_norm):
    """A vote has norm 1 at most and two differ by the root of 2 at most, whatever norm the server names."""
    encoding = encoding_of(noise, clipping_norm, settings=5)
    votes = []
    for number in range(5):
        vote = torch.zeros(5, dtype=torch.float64)
        vote[number] = 1 - encoding.grid
        votes.append(contribution_steps(ORDER, vote, encoding))
        assert 0.9 < encoding.grid * np.linalg.norm(votes[-1]) <= 1
    for one, other in itertools.combinations(votes, 2):
        assert encoding.grid * np.linalg.norm(one - other) <= math.sqrt(2)


def test_a_client_votes_for_what_does_best_on_its_records_and_every_vote_is_one_setting():
    encoding = encoding_of(6.0)
    for client in range(4):
        steps = update_steps(Job(ORDER, THETA, encoding, client))
        assert np.flatnonzero(steps).tolist() == [1]
    alone = replace(ORDER, settings=(0.5, 0.0, 1.0) * 3)
    data = TASK.client_data(0).take(np.arange(1))
    found = {
        int(np.flatnonzero(update_steps(Job(alone, THETA, encoding, 0, own_data=data)))[0]) for _ in range(40)
    }
    # Who cannot try anything votes at random: 40 votes miss one of three with a chance below 1e-6.
    assert found == {0, 1, 2}


def test_both_engines_send_what_a_node_sends():
    encoding = encoding_of(6.0)
    order = replace(ORDER, settings=(0.1, 0.0, 1.0, 0.2, 0.0, 1.0, 0.3, 0.5, 1.0))

    def bits(client):
        return keystream(bytes([client]) * 32)

    parts = {client: ClientPart(records=STEPS) for client in (0, 3)}
    cohort = Cohort([0, 3], encoding, parts)
    node = [update_steps(Job(order, THETA, encoding, client, bits=bits)) for client in cohort.clients]
    engines = (SequentialEngine(bits=bits), BatchedEngine(TASK, torch.device("cpu"), bits=bits))
    for engine in engines:
        assert (engine.sum_updates(order, THETA, cohort).total == np.sum(node, axis=0)).all()


@pytest.mark.parametrize(
    "settings",
    [
        (0.1, 0.0, 1.0),
        (0.1, 0.0, 1.0, -1.0, 0.0, 1.0),
        (0.1, 0.0, 1.0, 0.2),
        (0.1, 0.0, 1.0) * 17,
        (0.1, 1.0, 1.0, 0.2, 0.0, 1.0),
        (0.1, 0.0, 1.0, 0.2, 0.0, 0.0),
    ],
)
def test_an_order_with_other_settings_is_refused(settings):
    order = replace(ORDER, settings=settings)
    assert TrainingOrder.from_scalars(order.to_scalars()) == order
    with pytest.raises(OrderError, match="the server asks for a vote on .*: give from 2 to 16 settings"):
        update_steps(Job(order, THETA, encoding_of(6.0, settings=max(1, len(settings) // 3)), 0))
    with pytest.raises(OrderError, match="coordinates"):
        model_dimension(order, 18)


@pytest.fixture(params=["classes at every position", "label_sets", "pixels"])
def several(request, tmp_path):
    """Return a task whose records have several labels each, for three kinds of such tasks in turn."""
    rng, kind = np.random.default_rng(0), request.param
    x = rng.normal(size=(60, 1, 4, 4))
    arrays, source = {"x": x, "y": (x > 0)[:, 0].astype(int)}, DataSource("npz")
    options: tuple[tuple[str, int], ...] = ()
    loss, model = ("cross_entropy", "fcn") if kind == "pixels" else ("binary_cross_entropy", "linear")
    if kind == "label_sets":
        arrays["y"] = (x > 0).reshape(60, 16).astype(int)
    elif kind != "pixels":
        arrays, loss, model = {"x": rng.integers(0, 9, (60, 5))}, "next_token", "transformer"
        options, source = (("layers", 1), ("width", 8)), DataSource("npz", vocabulary=9)
    path = tmp_path / "several.npz"
    both = {f"{k}_{part}": each for k, each in arrays.items() for part in ("train", "test")}
    np.savez(path, **both)  # type: ignore[arg-type]  # its keywords are arrays
    return Task(replace(source, path=str(path)), model, "iid", 4, 0, model_options=options, loss=loss)


@pytest.mark.parametrize("work", ["vote", "vote_by_rounds"])
def test_records_with_several_labels_are_voted_on(several, work):
    order, theta = replace(ORDER, task=several.described(), work=work), flatten(several.build_model())
    assert np.count_nonzero(update_steps(Job(order, theta, encoding_of(6.0), 0))) == 1
