"""Tests of optimizers chosen by name: every training engine takes the same steps, then clips the update."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.configured import learning_rate_of, training_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_forms import gradients_of
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.clients.works.update import batch_generator
from gdpfed.errors import ConfigError, LearningError
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    Descent,
    LocalTraining,
    check_training,
)
from gdpfed.learning.training.record_training import RecordGradients, RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.methods import make_method
from gdpfed.record_steps import RecordSteps
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.training_choice import choose_training
from secagg import keystream
from tests.simulation.small_cohorts import cohort_of, order_of, theta_of

CPU = torch.device("cpu")
SGD = LocalTraining(4, 4, 0.5, 0.0)
KINDS = {
    "adam": replace(SGD, optimizer="adam", learning_rate=0.05),
    "adamw": replace(SGD, optimizer="adamw", optimizer_options='{"weight_decay": 0.1}', learning_rate=0.05),
    "nesterov": replace(SGD, momentum=0.9, optimizer_options='{"nesterov": 1, "weight_decay": 0.01}'),
    "proximal": replace(SGD, momentum=0.5, proximal=0.7),
}


def by_hand(kind, start, gradients):
    """Return the parameters after steps of an optimizer along given gradients, by the optimizer's formula."""
    p, m, v, first = start.copy(), 0.0, 0.0, start.copy()
    for t, g in enumerate(gradients, start=1):
        if kind == "proximal":
            m = 0.5 * m + g + 0.7 * (p - first)
            p = p - 0.5 * m
        elif kind == "nesterov":
            decayed = g + 0.01 * p
            m = 0.9 * m + decayed
            p = p - 0.5 * (decayed + 0.9 * m)
        else:
            decay = 0.1 if kind == "adamw" else 0.0
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            p = p - 0.05 * decay * p
            p = p - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_written_out_and_clients_go_their_own_ways(kind):
    rng = np.random.default_rng(0)
    starts, gradients = rng.normal(size=(3, 5)), rng.normal(size=(4, 3, 5))
    ours = torch.from_numpy(starts.copy())
    descent = Descent(ours, KINDS[kind])
    for number, gradient in enumerate(torch.from_numpy(gradients)):
        # The second client ends after two steps.
        if number < 2:
            descent.step(gradient)
        else:
            descent.step(gradient[[0, 2]], [0, 2])
    ends = [by_hand(kind, starts[k], gradients[: 2 if k == 1 else 4, k]) for k in range(3)]
    np.testing.assert_allclose(ours.numpy(), ends, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_all_engines_end_where_a_node_ends(kind):
    order = replace(order_of("cnn3", num_clients=90, batch_size=5), training=KINDS[kind])
    theta, clients = theta_of(order), [3, 8]
    programmed, _ = choose_training(order.task, CPU, "float32")
    assert isinstance(programmed, ProgrammedTraining)
    examples, batches = DeviceExamples(order.task, CPU), Batches.draw(order, clients)
    many = BatchedTraining(order.task.build_model(), CPU)
    found = [each.updates(theta, order.training, examples, batches) for each in (programmed, many)]
    for row, client in enumerate(clients):
        alone = local_update(
            order.task.build_model(),
            theta,
            order.task.client_data(client),
            order.training,
            rng=batch_generator(order, client),
            device=CPU,
        )
        assert alone.norm() > 0.01
        for each in found:
            assert (each[row] - alone).norm() <= 1e-4 * alone.norm()


class Spy(torch.optim.Optimizer):
    """An optimizer that records the gradients which it is given, and sets every parameter to one number."""

    seen: list[torch.Tensor]

    def __init__(self, parameters, lr, to=1e30):
        super().__init__(parameters, {"lr": lr})
        self.to = to
        Spy.seen = []

    @torch.no_grad()
    def step(self, closure=None):
        for row in self.param_groups[0]["params"]:
            if row.grad is not None:
                Spy.seen.append(row.grad.clone())
                row.fill_(self.to)


class Coupled(torch.optim.SGD):
    """SGD along gradients that are clipped together with all other gradients that it is given."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class Closed(Spy):
    """An optimizer that calls a closure to compute the loss, as torch's L-BFGS does."""

    def step(self, closure=None):
        closure()


@pytest.fixture
def plugged(monkeypatch):
    monkeypatch.setattr(OPTIMIZERS, "_items", {**OPTIMIZERS._items})
    for name, item in {"spy": Spy, "coupled": Coupled, "closed": Closed}.items():
        OPTIMIZERS.register(name, item)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(("to", "norm"), [(1e30, 1.0), (float("nan"), 0.0), (float("inf"), 0.0)])
def test_what_comes_back_from_a_plug_in_is_clipped_or_zero(to, norm):
    training = replace(SGD, optimizer="spy", optimizer_options=json.dumps({"to": to}))
    order = replace(order_of(), training=training)
    encoding = cohort_of(order).encoding
    steps = update_steps(Job(order, theta_of(order), encoding, 3))
    assert np.linalg.norm(steps * encoding.grid) == pytest.approx(norm, abs=1e-3)
    assert np.linalg.norm(steps * encoding.grid) <= 1.0


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize("among", [slice(None), [0, 2]])
def test_no_optimizer_of_a_package_moves_one_client_by_the_gradient_of_another(among):
    ends, moved = [], torch.zeros(3, 1)
    moved[among] = 1.0
    for size in (1.0, 1e4):
        ours = torch.zeros(3, 2)
        descent = Descent(ours, replace(SGD, optimizer="coupled"))
        gradient = torch.tensor([[size, 0.0], [0.3, 0.4], [0.6, 0.0]])
        for _ in range(2):
            descent.step(gradient[among], among)
        ends.append(ours)
    torch.testing.assert_close(ends[1], torch.tensor([[-1.0, 0.0], [-0.3, -0.4], [-0.6, 0.0]]) * moved)
    assert torch.equal(ends[0][1:], ends[1][1:])


def noised(gradients: RecordGradients, order: TrainingOrder, training: LocalTraining):
    """Return the update of two DP-SGD steps on one client's records, always with the same secret bits."""
    data = order.task.client_data(3)
    steps = RecordSteps(num_steps=2, batch_rates=(0.5,), clipping_norm=0.1, noise_multiplier=3.0)
    batches = PoissonBatches((0.5,), np.zeros(len(data), dtype=np.int64))
    holder = RecordHolder(np.arange(len(data)), steps, batches, keystream(b"k" * 32))

    def take(places):
        batch = data.take(places.reshape(-1))
        x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
        return x.view(*places.shape, *x.shape[1:]), y.view(*places.shape)

    return noised_updates(gradients, theta_of(order), training, [holder], take)[0]


@pytest.mark.usefixtures("plugged")
def test_of_records_an_optimizer_is_given_noised_gradients_alone():
    order = order_of("linear", num_clients=20)
    gradients = gradients_of(order.task, CPU)
    still = f'{{"to": {float(theta_of(order)[0])}}}'
    noised(gradients, order, replace(SGD, optimizer="spy", optimizer_options=still))
    first, second = Spy.seen
    one = noised(gradients, order, replace(SGD, local_steps=1, learning_rate=1e-3)) / -1e-3
    # The second step of SGD is from next to where it began, with the same noise, which outweighs gradients.
    assert (first.double() + second.double() - one).norm() < 0.1 * one.norm()
    expected = len(order.task.client_data(3)) * 0.5
    assert first.std() == pytest.approx(0.3 / expected, rel=0.1)
    adam = noised(gradients, order, KINDS["adam"])
    assert 0 < float(adam.abs().max()) < 0.11


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "none"}, "optimizer 'none' is not known: use adam, adamw"),
        ({"optimizer": "adam", "momentum": 0.9}, "adam does not take momentum=0.9 .*training.momentum=0"),
        ({"optimizer": "adam", "optimizer_options": '{"beta3": 1}'}, "adam does not take beta3=1 "),
        ({"optimizer": "adamw", "optimizer_options": '{"beta1": 2}'}, "adamw does not take beta1=2 "),
        ({"optimizer": "closed"}, "closed cannot step along a given gradient"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused(changes, words):
    with pytest.raises(LearningError, match=words):
        check_training(replace(SGD, **changes))


def test_orders_carry_the_optimizer_and_bind_it_to_the_masks():
    order = replace(order_of(), training=KINDS["adamw"])
    again = TrainingOrder.from_scalars(order.to_scalars())
    assert again.training == KINDS["adamw"]
    theta = theta_of(order)
    assert again.context(theta) == order.context(theta)
    assert replace(order, training=replace(KINDS["adamw"], proximal=0.1)).context(theta) != order.context(
        theta
    )


def test_settings_give_training_and_rates_of_rounds():
    words = [
        "dataset.momentum=0",
        "training.optimizer=adamw",
        "training.optimizer_options={weight_decay:0.1}",
    ]
    words += ["training.proximal=0.2", "training.learning_rate=0.5", "training.learning_rate_decay=1"]
    config = load([*words, "run.num_rounds=4", "training.schedule=cosine"])
    training = training_of(config, 2)
    assert training.optimizer_options == '{"weight_decay": 0.1}'
    assert (training.optimizer, training.proximal, training.learning_rate) == ("adamw", 0.2, 0.25)
    config.training.schedule = "linear"
    assert [learning_rate_of(config, index) for index in range(4)] == [0.5, 0.375, 0.25, 0.125]
    assert set(SCHEDULES.names()) == {"constant", "cosine", "linear"}
    config.training.schedule = "none"
    with pytest.raises(LearningError, match="schedule 'none' is not known"):
        training_of(config, 0)
    for wrong in ("training.proximal=-1", "training.optimizer_options={beta1:fast}"):
        with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
            load([wrong])


@pytest.mark.parametrize(
    ("factor", "words"), [(1.0, "gives the factor inf in round 3 of 4"), (None, "fails in round 1 of 4")]
)
def test_a_schedule_that_fails_later_is_refused_before_the_first_round(factor, words, monkeypatch):
    monkeypatch.setitem(SCHEDULES._items, "breaks", lambda index, rounds: factor if index < 2 else np.inf)
    config = load(["method=fedavg", "run.num_rounds=4", "training.schedule=breaks"])
    with pytest.raises(LearningError, match=words):
        PreparedRun.of(config)


@pytest.mark.parametrize("changed", ["training.optimizer=adam", "training.proximal=0.1"])
def test_an_optimizer_costs_no_privacy_and_methods_made_for_sgd_refuse_it(changed):
    words = ["privacy.accountant=rdp", "dataset.momentum=0"]
    assert make_method(load([*words, changed])).plan == make_method(load(words)).plan
    records = [*words, "dataset=breast_cancer", "privacy=record_level", "training.learning_rate=0.1"]
    own = [*records, "method=dp_sgd"]
    assert make_method(load([*own, changed])).plan == make_method(load(own)).plan
    with pytest.raises(ConfigError, match="method=dp_sum is made for steps of SGD"):
        make_method(load([*records, "method=dp_sum", changed]))
    with pytest.raises(ConfigError, match="training.learning_rate is chosen for SGD"):
        make_method(load([*own[:-2], own[-1], changed]))
