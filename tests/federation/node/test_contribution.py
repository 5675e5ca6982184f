"""Tests of a client's contribution to a sum: the decoded sum is that of clipped updates, up to rounding."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from client_app.carried import stage_request
from conf.errors import ConfigError
from conf.load import load
from gdpfed.clients.messages import DATA, MASK, ORDER_RECORD, ROUND, RUN, THETA_RECORD
from gdpfed.clients.noise import noise_steps
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.errors import LearningError
from gdpfed.federation.node.contribution import MOST, Contributor, checked_order
from gdpfed.learning.data import DataSource
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import clip, local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import RecordSteps
from secagg import EncodingError, SumParameters

TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0)
ORDER = TrainingOrder(TASK, LocalTraining(5, 4, 0.5, 0.0), round_index=0, device="cpu")
THETA = flatten(TASK.build_model())
FORMED = TASK.described()
FORM = ExampleForm.of(TASK.load())


def parameters(**changes):
    values: dict[str, Any] = {
        "label": "test",
        "num_clients": 10,
        "threshold": 7,
        "dropout_tolerance": 0,
        "dimension": len(THETA),
        "clipping_norm": 1.0,
        "noise_multiplier": 0.0,
    }
    return SumParameters(**values | changes)


def encoded_update(order, theta, numbers, num_contributors, client_id):
    """Return a client's contribution to a sum, noise included, as residues of the sum's modulus."""
    encoding = numbers.encoding(num_contributors)
    noise = noise_steps(order, numbers, num_contributors) if numbers.noise_multiplier else 0
    return encoding.to_residues(update_steps(Job(order, theta, encoding, client_id)) + noise)


def clipped_update(client_id, clipping_norm):
    update = local_update(
        TASK.build_model(),
        THETA,
        TASK.client_data(client_id),
        ORDER.training,
        rng=np.random.default_rng([TASK.seed, client_id, ORDER.round_index]),
        device=torch.device("cpu"),
    )
    return clip(update, clipping_norm).numpy()


@pytest.mark.parametrize("clipping_norm", [0.3, 1.0, np.inf])
def test_decoded_sum_is_the_sum_of_the_clipped_updates(clipping_norm):
    numbers = parameters(clipping_norm=clipping_norm)
    total = np.zeros(len(THETA), dtype=np.uint32)
    for client_id in range(10):
        total += encoded_update(ORDER, THETA, numbers, 10, client_id)
    encoding = numbers.encoding(10)
    expected = sum(clipped_update(client_id, encoding.clip_bound) for client_id in range(10))
    assert np.abs(encoding.decode(total) - expected).max() <= 10 * encoding.grid / 2 * (1 + 1e-9)
    assert np.abs(expected).max() > 0.1


def test_a_client_is_held_to_its_own_norm_exactly():
    numbers = parameters(clipping_norm=1.0)
    order = replace(ORDER, clipping_norm=0.3)
    sent = numbers.encoding(10).decode(encoded_update(order, THETA, numbers, 10, 0))
    assert 0.299 < np.linalg.norm(sent) <= 0.3


@pytest.mark.parametrize("clipping_norm", [1.1, 0.0, -1.0, float("nan")])
def test_a_norm_beyond_the_sums_is_refused(clipping_norm):
    with pytest.raises(EncodingError, match="use a positive one, at most the sum's"):
        encoded_update(replace(ORDER, clipping_norm=clipping_norm), THETA, parameters(), 10, 0)


def test_a_client_with_no_data_sends_noise_alone():
    task = Task(DataSource("digits"), "linear", "iid", 3000, seed=0)
    empty = next(k for k in range(3000) if len(task.client_data(k)) == 0)
    order = TrainingOrder(task, ORDER.training, 0, "cpu")
    numbers = parameters(noise_multiplier=1.0)
    sent = numbers.encoding(10).decode(encoded_update(order, THETA, numbers, 10, empty))
    assert sent.std() == pytest.approx(numbers.client_noise_stddev(10), rel=0.15)  # 5 sigma at 650 values
    silent = encoded_update(order, THETA, parameters(), 10, empty)
    assert not silent.any()


@pytest.mark.parametrize("learning_rate", [3e38, float("inf")])
def test_a_diverged_update_is_sent_as_zero_under_its_noise(learning_rate):
    order = TrainingOrder(TASK, LocalTraining(5, 4, learning_rate, 0.0), 0, "cpu")
    assert not encoded_update(order, THETA, parameters(), 10, 0).any()
    noised = encoded_update(order, THETA, parameters(noise_multiplier=1.0), 10, 0)
    assert np.count_nonzero(noised) > 600


def test_a_node_says_in_its_own_log_that_its_update_diverged(caplog):
    order, told = replace(ORDER, training=LocalTraining(5, 4, 3e38, 0.0)), list[BaseException]()
    steps = Contributor(0, "run", unusable=told.append).steps(order, THETA, parameters().encoding(10))
    assert not steps.any()
    assert [str(each) for each in told] == [
        "the update holds NaN or infinity: train with a smaller learning rate"
    ]
    (line,) = caplog.messages
    assert line == f"{told[0]}: zeros are sent in place of this client's own update"


def test_two_rounds_never_reuse_noise():
    numbers = parameters(noise_multiplier=1.0)
    first, second = (encoded_update(ORDER, THETA, numbers, 10, 0) for _ in range(2))
    assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("change", ["length", "dtype", "missing"])
def test_a_model_that_was_not_agreed_on_is_refused(change):
    thetas: dict[str, np.ndarray] = {
        "length": THETA[:-1],
        "dtype": THETA.astype(np.float64),
        "missing": THETA,
    }
    ordered = None if change == "missing" else ORDER.to_scalars()
    with pytest.raises(OrderError):
        checked_order(ordered, thetas[change], parameters())


def test_order_survives_the_message():
    content = RecordDict(
        {
            MASK: ConfigRecord({DATA: b"", RUN: "run", ROUND: 0}),
            ORDER_RECORD: ConfigRecord(dict(ORDER.to_scalars())),
            THETA_RECORD: ArrayRecord({THETA_RECORD: Array(THETA)}),
        }
    )
    request = stage_request(content, MASK)
    order, theta = checked_order(request.order, request.theta, parameters())
    assert order == ORDER
    np.testing.assert_array_equal(theta, THETA)
    assert order.context(theta) == ORDER.context(THETA)


def test_the_context_tells_models_and_orders_apart():
    contexts = {
        ORDER.context(THETA),
        ORDER.context(THETA + np.float32(1e-6)),
        replace(ORDER, round_index=1).context(THETA),
        replace(ORDER, training=LocalTraining(6, 4, 0.5, 0.0)).context(THETA),
    }
    assert len(contexts) == 4


@pytest.mark.parametrize("field", ["local_steps", "batch_size"])
@pytest.mark.parametrize("value", [0, 2**31, 1.0, True])
def test_an_order_to_train_without_end_is_refused(field, value):
    """A node refuses training whose number of local steps or batch size is zero, huge or not an integer."""
    ordered = {**ORDER.to_scalars(), field: value}
    with pytest.raises(OrderError, match=f"the server's {field} is {value!r}: it must be from 1 to"):
        checked_order(ordered, THETA, parameters())


def test_an_order_with_endless_batch_rates_is_refused():
    steps = RecordSteps(num_steps=1, batch_rates=(0.5,), clipping_norm=0.5, noise_multiplier=0.8)
    order = replace(ORDER, work="dp_sgd", records=steps)
    ordered = {**order.to_scalars(), "record_batch_rates": [0.5] * (MOST["local_steps"] + 1)}
    with pytest.raises(OrderError, match="number of batch rates is 100001: it must be from 1 to 100000"):
        checked_order(ordered, THETA, parameters())
    assert checked_order(order.to_scalars(), THETA, parameters())[0] == order


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"task": replace(FORMED, model="mlp", model_options=(("hidden_units", 10**9),))},
            "model mlp has 75000000",
        ),
        (
            {"task": replace(FORMED, model="lstm", model_options=(("num_layers", 201),))},
            "num_layers=201: use at most 200 layers",
        ),
        (
            {"task": replace(FORMED, form=replace(FORM, num_classes=10**12))},
            "has 65000000000000 parameters, not",
        ),
        (
            {"task": replace(FORMED, form=replace(FORM, input_shape=(10**9,)))},
            "has 10000000010 parameters, not",
        ),
        ({"training": LocalTraining(100_000, 1_000_000, 0.5, 0.0), "task": FORMED}, r"more work than 1e\+13"),
    ],
)
def test_what_an_order_costs_is_known_before_anything_of_it_is_built(monkeypatch, changes, words):
    monkeypatch.setattr(Task, "build_model", lambda self: pytest.fail("the model was built"))
    ordered = replace(ORDER, **changes).to_scalars()
    with pytest.raises((OrderError, LearningError), match=words):
        checked_order(ordered, THETA, parameters())


def test_a_node_takes_the_largest_order_that_a_configuration_may_ask_for():
    assert load([f"training.{name}={most}" for name, most in MOST.items()]).training.batch_size == 1_000_000
    for name, most in MOST.items():
        with pytest.raises(ConfigError, match=f"training.{name}={most + 1} must be from 1 to {most}"):
            load([f"training.{name}={most + 1}"])
