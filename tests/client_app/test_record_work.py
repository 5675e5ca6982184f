"""Tests of work on records (such as DP-SGD): what a client sends, and how much one record changes it."""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
import torch

from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients
from fastgrad.record_parts import Rows
from gdpfed.clients.noise import secret_bits
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.record_forms import gradients_of
from gdpfed.clients.record_work import RecordJobs, checked_steps, holder_of, record_bound
from gdpfed.clients.rounding import clipped_steps
from gdpfed.clients.update import contribution_steps, update_steps, update_without_examples
from gdpfed.clients.works import Job, function_of
from gdpfed.errors import LearningError, PrivacyError
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import MODELS, flatten
from gdpfed.learning.models.networks import convex_bounds
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_training import RecordHolder
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.record_steps import KINDS, RecordSteps, record_move
from secagg import Contributors, Encoding

TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0).described()
THETA = flatten(TASK.build_model())
DP_SGD = RecordSteps(num_steps=4, batch_rates=(0.3,), clipping_norm=0.5, noise_multiplier=0.8)
SUM = RecordSteps(num_steps=1, batch_rates=(0.5,), clipping_norm=0.5, noise_multiplier=0.0)


def order_for(work, records, **changes):
    training = LocalTraining(1, 1, 0.3, 0.0)
    return TrainingOrder(TASK, training, 0, "cpu", work=work, records=records, **changes)


def encoding_of(clipping_norm=inf, noise_multiplier=0.0, contributors=10):
    return Encoding.for_sum(
        Contributors(contributors),
        dimension=len(THETA),
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
    )


def bits_of(client_id):
    return np.random.default_rng(client_id).bytes


def softmax_rows(split):
    """Return each record's gradient of multinomial logistic regression in float64, with shape (n, d)."""
    x = split.x.reshape(len(split), -1).astype(float)
    weight, bias = THETA[:640].reshape(10, 64), THETA[640:]
    scores = np.exp(x @ weight.T + bias)
    errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[split.y]
    return np.concatenate([(errors[:, :, None] * x[:, None]).reshape(len(split), -1), errors], axis=1)


def test_a_gradient_sum_is_the_negated_sum_of_a_batchs_clipped_gradients():
    encoding = encoding_of(50.0)
    sent = encoding.grid * update_steps(Job(order_for("gradient_sum", SUM), THETA, encoding, 3, bits=bits_of))
    data = TASK.client_data(3)
    words = np.frombuffer(bits_of(3)(8 * len(data)), dtype="<u8")
    rows = softmax_rows(data)[words < 2**63]
    assert 0 < len(rows) < len(data)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert (norms > 0.5).any()
    expected = -(rows * np.minimum(1, 0.5 / norms)).sum(axis=0)
    np.testing.assert_allclose(sent, expected, atol=1e-5)


def test_dp_sgd_sends_the_change_of_the_model_and_is_put_on_the_edge_of_the_range():
    order, encoding = order_for("dp_sgd", DP_SGD), encoding_of()
    sent = encoding.grid * update_steps(Job(order, THETA, encoding, 3, bits=bits_of))
    again = encoding.grid * update_steps(Job(order, THETA, encoding, 3, bits=bits_of))
    np.testing.assert_array_equal(sent, again)
    size = 0.3 * len(TASK.client_data(3))
    # Noise dominates: eta C sigma sqrt(tau) / B in each of 650 coordinates, and the signal beside it.
    assert sent.std() == pytest.approx(0.3 * 0.5 * 0.8 * 2 / size, rel=0.25)
    far = replace(order, training=LocalTraining(1, 1, 1e12, 0.0))
    steps = update_steps(Job(far, THETA, encoding, 3, bits=bits_of))
    assert (np.abs(steps) == encoding.coordinate_limit).all()


def test_batches_and_noise_are_secret_and_fresh():
    order, encoding = order_for("dp_sgd", DP_SGD), encoding_of()
    first, second = (update_steps(Job(order, THETA, encoding, 3)) for _ in range(2))
    assert np.mean(first == second) < 0.01
    assert secret_bits(3)(32) != secret_bits(3)(32)


def test_a_client_without_records_sends_zeros():
    empty = replace(TASK, num_clients=3000)
    client = next(k for k in range(3000) if len(empty.client_indices(k)) == 0)
    for work, records in (("dp_sgd", DP_SGD), ("gradient_sum", SUM)):
        order = replace(order_for(work, records), task=empty)
        assert not update_steps(Job(order, THETA, encoding_of(), client)).any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_client_whose_examples_cannot_be_used_sends_noise_as_large_as_that_of_any_other(momentum):
    records = replace(DP_SGD, noise_multiplier=300.0)
    order = replace(order_for("dp_sgd", records), training=LocalTraining(4, 1, 0.01, momentum))
    encoding, count = encoding_of(1e6), len(TASK.client_data(3))
    used = update_steps(Job(order, THETA, encoding, 3, bits=bits_of))
    zeros = update_without_examples(Job(order, THETA, encoding, 3, records=count))
    unused = contribution_steps(order, zeros, encoding)
    # Of 650 coordinates, so that each is within a tenth of its standard deviation.
    assert unused.std() == pytest.approx(used.std(), rel=0.2)
    assert unused.std() > 10


def test_groups_of_records_have_rates_of_their_own():
    shared = replace(TASK, record_shares=(0.5, 0.5))
    records = replace(SUM, batch_rates=(1.0, 1e-12))
    order = replace(order_for("gradient_sum", records), task=shared)
    data = shared.client_data(0)
    holder = holder_of(order, 0, np.arange(len(data)), lambda: data, bits_of)
    drawn = {len(holder.draw()) for _ in range(5)}
    assert drawn == {(len(data) + 1) // 2}
    with pytest.raises(LearningError, match="0 shares for 2 groups of records"):
        update_steps(Job(replace(order, task=TASK), THETA, encoding_of(50.0), 0))


@pytest.mark.parametrize(
    ("work", "records", "match"),
    [
        ("dp_sgd", None, "does not state the steps on records"),
        ("gradient_sum", None, "does not state the steps on records"),
        ("dp_sgd", replace(DP_SGD, noise_multiplier=0.0), "use a positive one, or, in a run without privacy"),
        ("gradient_sum", DP_SGD, "gradient_sum with 4 steps on records and noise_multiplier 0.8"),
        ("gradient_sum", replace(SUM, num_steps=2), "gradient_sum with 2 steps"),
    ],
)
def test_numbers_that_are_not_for_the_work_are_refused(work, records, match):
    with pytest.raises(OrderError, match=match):
        update_steps(Job(order_for(work, records), THETA, encoding_of(), 0))


def test_a_grid_that_is_too_coarse_for_the_records_norm_is_refused():
    encoding = encoding_of(50.0, noise_multiplier=0.05)
    most = 0.1 * 0.5 / sqrt(len(THETA)) * (1 - 1e-9)
    assert encoding.grid < most
    order = order_for("gradient_sum", SUM)
    assert record_bound(order, len(THETA), most) == pytest.approx(0.45)
    with pytest.raises(OrderError, match=r"moves a sum by 0\.05\d*, more than a tenth of the records' clip"):
        record_bound(order, len(THETA), most * 1.001)
    with pytest.raises(OrderError, match="more than a tenth"):
        record_bound(replace(order, weight=0.5), len(THETA), most)


def updates_of(order, theta, gradients, holder, take, grid):
    """Return one client's update, of shape (1, d), for the kind of work that a training instruction names."""
    jobs = RecordJobs([order], theta, gradients, [holder], take, grid)
    return function_of(order.work, "updates")(jobs)


def sums_with_and_without(order, encoding, scales, rng):
    """Yield pairs of a client's sum as two engines encode it: of all records, then without one record."""
    rows = rng.normal(size=(12, len(THETA))) * rng.choice(scales, size=(12, 1))
    if rng.random() < 0.5:
        # All alike, so that the sum is as long as it can be.
        rows[:] = rows[0] * rng.uniform(0.5, 2, size=(12, 1))
    rows = torch.from_numpy(rows.astype(np.float32))
    left_out = int(rng.integers(12))

    class Given(RecordGradients):
        """Preset gradients in place of computed ones; a record's input is the index of its gradient."""

        def __init__(self, zeroed):
            super().__init__(torch.nn.Linear(1, 1), cross_entropy, torch.device("cpu"))
            self.values = rows.clone()
            self.values[zeroed] = 0.0

        def records_at_once(self, least_bytes=0):
            return 5

        def parts(self, thetas, x, y):
            return [Rows(self.values[y])]

    def take(places):
        return torch.from_numpy(places), torch.from_numpy(places)

    every = replace(order.records, batch_rates=(1.0,))
    order = replace(order, records=every)
    for zeroed in ([], [left_out]):
        holder = holder_of(order, 0, np.arange(12), lambda: TASK.client_data(0), bits_of)
        update = updates_of(order, THETA, Given(zeroed), holder, take, encoding.grid)
        own = encoding if order.clipping_norm == inf else encoding.clipped_to(order.clipping_norm)
        yield (
            contribution_steps(order, update[0], encoding),
            clipped_steps(order.weight * update, [own])[0].numpy(),
        )


@pytest.mark.parametrize(
    ("sum_norm", "noise_multiplier", "contributors", "changes"),
    [
        (50.0, 0.01, 10, {}),
        (1.0, 0.5, 50, {}),
        (1.0, 1e-4, 2, {}),
        (0.6, 0.8, 200, {}),
        (5.0, 0.1, 40, {"clipping_norm": 0.7}),
        (5.0, 0.1, 40, {"weight": 3.0, "largest_weight": 3.0, "smallest_weight": 3.0}),
        (inf, 0.0, 10, {}),
        (inf, 0.0, 2**22, {}),
    ],
)
def test_without_a_record_the_integers_differ_by_its_norm_at_most(
    sum_norm, noise_multiplier, contributors, changes
):
    """One record moves a client's encoded sum by at most the record clipping norm, also in a clipped sum."""
    encoding = encoding_of(sum_norm, noise_multiplier, contributors)
    order = order_for("gradient_sum", SUM, **changes)
    record_bound(order, len(THETA), encoding.grid)
    limit = (order.weight * SUM.clipping_norm / encoding.grid) ** 2
    rng = np.random.default_rng(5)
    nearest, longest = 0.0, 0.0
    for _ in range(25):
        with_all, without = sums_with_and_without(order, encoding, [1e-4, 1.0, 1e4], rng)
        for sent, other in zip(with_all, without, strict=True):
            moved = [int(step) for step in sent - other]
            assert sum(step * step for step in moved) <= limit
            assert sent.any()
            nearest = max(nearest, float(np.linalg.norm(sent - other)) / sqrt(limit))
            longest = max(longest, float(np.linalg.norm(sent)) * encoding.grid)
    if not changes and sum_norm >= 5 and contributors < 1000:
        assert nearest > 0.85
    if sum_norm <= 5:
        assert longest > 0.9 * min(sum_norm, order.clipping_norm)


def test_a_record_without_a_finite_gradient_is_left_out_of_the_sum():
    order = order_for("gradient_sum", replace(SUM, batch_rates=(1.0,)))
    data = TASK.client_data(0)
    gradients = gradients_of(TASK, torch.device("cpu"))

    def sent(rows):
        def take(places):
            return torch.from_numpy(rows[places]), torch.from_numpy(data.y[places])

        holder = holder_of(order, 0, np.arange(len(data)), lambda: data, bits_of)
        return updates_of(order, THETA, gradients, holder, take, 2.0**-20)

    broken = data.x.copy()
    broken[0] = np.nan
    alone = np.full_like(data.x, np.nan)
    alone[0] = data.x[0]
    whole, rest, one = sent(data.x), sent(broken), sent(alone)
    assert rest.any()
    assert one.any()
    # In units of the integers, since each record is cut to them by itself; a GEMM may round otherwise.
    assert (whole - rest - one).abs().max() <= 1e-5


SOFTMAX = replace(TASK, model="softmax")
CONVEX = convex_bounds(SOFTMAX.build_model())


@pytest.mark.parametrize("work", ["convex_steps", "window_steps"])
@pytest.mark.parametrize("eta", [0.05, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1e3, 1e6, 1e9])
def test_no_model_and_no_rate_let_a_record_move_a_window_further_than_is_accounted(work, eta, scale):
    """No record moves a result of local steps by more than the accounted bound, or nodes refuse the steps."""
    assert CONVEX is not None
    norm, tau = CONVEX.gradient_norm * (1 + 1e-6), 3
    steps = RecordSteps(num_steps=tau, batch_rates=(1.0,), clipping_norm=norm, noise_multiplier=0.0)
    order = order_for(work, steps)
    order = replace(order, task=SOFTMAX, training=LocalTraining(1, 1, eta, 0.0))
    theta = flatten(SOFTMAX.build_model())
    theta = np.random.default_rng(3).choice([-scale, scale], len(theta)).astype(np.float32)
    gradients, data = gradients_of(SOFTMAX, torch.device("cpu")), TASK.load().train.take(np.arange(100))

    def take(places):
        flat = places.reshape(-1)
        x, y = torch.from_numpy(data.x[flat]), torch.from_numpy(data.y[flat])
        return x.view(*places.shape, *x.shape[1:]), y.view(*places.shape)

    def end(num_records):
        draws = PoissonBatches((1.0,), np.zeros(num_records, np.int64))
        # B is public: of both it is that of the larger.
        draws.expected_size = 100.0
        holder = RecordHolder(np.arange(num_records), steps, draws, bits_of(0))
        return updates_of(order, theta, gradients, holder, take, 1e-9)[0]

    if scale / eta >= (1e9 if work == "convex_steps" else 1e12) or (scale >= 1e6 and work == "convex_steps"):
        with pytest.raises(OrderError, match="are below rounding errors"):
            end(100)
        return
    moved = float(torch.linalg.vector_norm(end(100) - end(99)))
    assert moved <= record_move(work, steps) * (tau if work == "convex_steps" else 1)


@pytest.mark.parametrize("norm", [1e-42, 3e38])
def test_a_clipping_norm_that_float32_cannot_hold_or_add_up_is_refused(norm):
    with pytest.raises(PrivacyError, match=r"clipping_norm is .*; it must be from 1e-12 to 1e\+30"):
        replace(SUM, clipping_norm=norm)


def test_models_that_couple_records_are_refused_before_they_train(monkeypatch):
    def centred(input_shape, num_classes):
        class Centred(torch.nn.Linear):
            def forward(self, x):
                outputs = super().forward(x.flatten(1))
                return outputs - outputs.mean(dim=0)

        return Centred(64, num_classes)

    monkeypatch.setitem(MODELS._items, "centred", centred)
    order = replace(order_for("dp_sgd", DP_SGD), task=replace(TASK, model="centred"))
    with pytest.raises(LearningError, match="couples records"):
        update_steps(Job(order, THETA, encoding_of(), 0))


@pytest.mark.parametrize("work", [work for work, kind in KINDS.items() if kind.window])
def test_a_node_takes_no_momentum_in_windows(work):
    """A node refuses momentum in windows (several local steps per sum), as their bound ignores momentum."""
    steps = RecordSteps(num_steps=2, batch_rates=(0.5,), clipping_norm=0.5, noise_multiplier=0.0)
    order = order_for(work, steps)
    assert checked_steps(order) == steps
    with pytest.raises(OrderError, match=f"asks for {work} with momentum 0.9: by momentum a record acts"):
        checked_steps(replace(order, training=replace(order.training, momentum=0.9)))
