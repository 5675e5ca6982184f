"""Tests of DP-SGD steps on records: updates by the formula, random batches and noise, and budget groups."""

import threading
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from scipy import stats

from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from gdpfed.clients.record_forms import of_persons
from gdpfed.clients.record_work import taken_from
from gdpfed.errors import LearningError
from gdpfed.learning.data import Split
from gdpfed.learning.data.client_partition import record_groups
from gdpfed.learning.data.persons import NO_ROW, rows_to_take
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training import record_training
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_training import RecordHolder, exact_sums, noised_updates, unit_for
from gdpfed.learning.training.secret_draws import PoissonBatches, gaussian_noise
from gdpfed.record_steps import RecordSteps

CPU = torch.device("cpu")
STEPS = RecordSteps(num_steps=5, batch_rates=(0.4,), clipping_norm=0.5, noise_multiplier=1.2)
N, CLASSES = 23, 4


def bits_of(seed):
    return np.random.default_rng(seed).bytes


@pytest.fixture(scope="module")
def small():
    """Return a linear model's parameters, its gradients, data, and a function that selects records."""
    model = build_model("linear", (6,), CLASSES, seed=0)
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(N, 6, generator=generator), torch.randint(CLASSES, (N,), generator=generator)
    gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=CPU)

    def take(places):
        where = torch.from_numpy(places)
        return x[where], y[where]

    return flatten(model), gradients, x, y, take


def holder(seed=0, steps=STEPS, records=None, groups=None):
    records = np.arange(N) if records is None else records
    groups = np.zeros(len(records), dtype=np.int64) if groups is None else groups
    return RecordHolder(records, steps, PoissonBatches(steps.batch_rates, groups), bits_of(seed))


def softmax_sum(theta, x, y, norm):
    """Compute the sum of clipped gradients of softmax regression in numpy, one record at a time."""
    weight, bias = theta[: CLASSES * 6].reshape(CLASSES, 6), theta[CLASSES * 6 :]
    total = np.zeros(len(theta))
    for record, label in zip(x.numpy().astype(float), y.numpy(), strict=True):
        scores = np.exp(weight @ record + bias)
        error = scores / scores.sum() - np.eye(CLASSES)[label]
        gradient = np.concatenate([np.outer(error, record).ravel(), error])
        total += gradient * min(1.0, norm / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_the_formula_with_the_expected_batch(small, momentum):
    """Steps follow the formula of DP-SGD in numpy, with a division by the expected batch size."""
    theta, gradients, x, y, take = small
    training = LocalTraining(1, 1, 0.3, momentum)
    bits, model, velocity = bits_of(7), theta.astype(float), np.zeros(len(theta))
    sizes = []
    for _ in range(STEPS.num_steps):
        words = np.frombuffer(bits(8 * N), dtype="<u8")
        batch = np.flatnonzero(words < int(0.4 * 2**64))
        sizes.append(len(batch))
        noise = gaussian_noise(len(theta), 0.5 * 1.2, bits, device=CPU).numpy()
        noised = (softmax_sum(model, x[batch], y[batch], 0.5) + noise) / (0.4 * N)
        velocity = momentum * velocity + noised
        model = model - 0.3 * velocity
    assert len(set(sizes)) > 1
    (update,) = noised_updates(gradients, theta, training, [holder(7)], take)
    np.testing.assert_allclose(update, model - theta, rtol=2e-4, atol=2e-6)


def test_clients_with_steps_of_their_own_end_where_they_end_alone(small):
    theta, gradients, *_, take = small
    training = LocalTraining(1, 1, 0.3, 0.5)

    def holders():
        other = replace(STEPS, num_steps=2, batch_rates=(0.1, 0.9), clipping_norm=2.0, noise_multiplier=0.3)
        some = np.arange(3, 17)
        return [
            holder(1),
            holder(2, other, some, some % 2),
            holder(3, records=np.zeros(0, dtype=np.int64)),
            holder(4, replace(STEPS, num_steps=7), np.arange(2)),
        ]

    together = noised_updates(gradients, theta, training, holders(), take)
    for k in range(4):
        (alone,) = noised_updates(gradients, theta, training, [holders()[k]], take)
        torch.testing.assert_close(together[k], alone, rtol=1e-4, atol=1e-6)
    assert not together[2].any()


def test_what_memory_holds_at_once_changes_nothing(small, monkeypatch):
    theta, gradients, *_, take = small
    training = LocalTraining(1, 1, 0.3, 0.0)

    def run():
        holders = [holder(1), holder(2, records=np.arange(5)), holder(3)]
        updates = noised_updates(gradients, theta, training, holders, take)
        holders = [holder(4), holder(5, records=np.arange(5)), holder(6)]
        return updates, exact_sums(gradients, theta, holders, take, bounds=[0.5, 0.4, 0.3], unit=2.0**-20)

    everything = run()
    for at_once in (1, 2, 7):
        monkeypatch.setattr(gradients, "records_at_once", lambda least_bytes=0, n=at_once: n)
        updates, sums = run()
        torch.testing.assert_close(updates, everything[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(sums, everything[1], atol=N)


@pytest.mark.parametrize("large", [0, record_training.LARGE])
def test_threads_that_share_a_batch_add_up_to_the_same_sum(monkeypatch, large):
    model = build_model("cnn2", (1, 28, 28), 10, seed=0)
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(40, 1, 28, 28, generator=generator), torch.randint(10, (40,), generator=generator)
    gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=CPU)
    monkeypatch.setattr(gradients, "records_at_once", lambda least_bytes=0: 6)
    monkeypatch.setattr(record_training, "SHORT_WORK", 0)
    monkeypatch.setattr(record_training, "LARGE", large)
    training, where_taken = LocalTraining(1, 1, 0.3, 0.0), set[bool]()

    def take(places):
        where_taken.add(threading.current_thread() is threading.main_thread())
        where = torch.from_numpy(places)
        return x[where], y[where]

    threads, updates = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        where_taken.clear()
        (update,) = noised_updates(
            gradients, flatten(model), training, [holder(1, records=np.arange(40))], take
        )
        assert torch.get_num_threads() == count
        assert where_taken == {count == 1}
        updates.append(update)
    torch.set_num_threads(threads)
    torch.testing.assert_close(*updates, rtol=1e-4, atol=1e-6)


def test_an_empty_batch_is_a_step_of_noise_alone(small):
    theta, gradients, *_, take = small
    rare = replace(STEPS, batch_rates=(1e-12,), num_steps=3)
    (update,) = noised_updates(gradients, theta, LocalTraining(1, 1, 1e-12, 0.0), [holder(5, rare)], take)
    expected = 1e-12 * 0.5 * 1.2 * 3**0.5 / (1e-12 * N)
    # 28 values: the sample deviation is within 5 of its own standard deviations.
    assert float(update.std()) == pytest.approx(expected, rel=5 / (2 * 27) ** 0.5)


def test_the_noise_of_many_steps_has_the_variance_that_is_accounted(small):
    """If all gradients are zero, the update of 16 steps is normal noise with the accounted variance."""
    theta, gradients, *_ = small
    flat = np.zeros_like(theta)

    def take(places):
        # Records so far on the right side that their gradients vanish in float32.
        zeros = torch.zeros(*places.shape, 6)
        return zeros, torch.zeros(places.shape, dtype=torch.int64)

    flat[CLASSES * 6] = 200.0
    steps = replace(STEPS, num_steps=16)
    clients = [holder(100 + k, steps) for k in range(400)]
    updates = noised_updates(gradients, flat, LocalTraining(1, 1, 0.01, 0.0), clients, take)
    # The bias of the label is so large that float32 rounds its steps.
    values = np.delete(updates.numpy(), CLASSES * 6, axis=1).ravel()
    expected = 0.01 * 1.2 * 0.5 * 16**0.5 / (0.4 * N)
    statistic = (values**2).sum() / expected**2
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(values))
    assert low < statistic < high
    assert abs(values.mean()) < 5 * expected / len(values) ** 0.5
    assert stats.kstest(values / expected, "norm").pvalue > 1e-6


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_sizes_of_batches_are_binomial(rate):
    batches, bits = PoissonBatches((rate,), np.zeros(40, dtype=np.int64)), bits_of(11)
    sizes = np.bincount([len(batches.draw(bits)) for _ in range(20_000)], minlength=41)
    expected = 20_000 * stats.binom.pmf(np.arange(41), 40, rate)
    common = expected >= 10
    seen = np.append(sizes[common], sizes[~common].sum())
    planned = np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(seen, planned).pvalue > 1e-6


def test_records_are_drawn_independently_and_each_with_the_rate_of_its_group():
    groups = np.array([0, 1, 2, 0, 1, 2])
    batches, bits = PoissonBatches((0.1, 0.6, 1.0), groups), bits_of(12)
    assert batches.expected_size == pytest.approx(2 * (0.1 + 0.6 + 1.0))
    drawn = np.zeros((20_000, 6), dtype=bool)
    for row in drawn:
        row[batches.draw(bits)] = True
    rates = np.array([0.1, 0.6, 1.0])[groups]
    spread = np.sqrt(rates * (1 - rates) / len(drawn))
    assert (np.abs(drawn.mean(axis=0) - rates) <= 5 * spread).all()
    correlations = np.corrcoef(drawn[:, [0, 1, 3, 4]].T)
    assert np.abs(correlations - np.eye(4)).max() < 5 / len(drawn) ** 0.5


def test_a_batch_of_many_records_is_drawn_in_pieces(monkeypatch):
    batches = PoissonBatches((0.3,), np.zeros(1000, dtype=np.int64))
    whole = batches.draw(bits_of(1))
    monkeypatch.setattr("gdpfed.learning.training.secret_draws._RECORDS_AT_ONCE", 64)
    np.testing.assert_array_equal(batches.draw(bits_of(1)), whole)
    assert 220 < len(whole) < 380


def test_sums_that_differ_by_a_record_differ_by_its_bound_at_most_in_integers(small):
    theta, gradients, x, y, _ = small
    unit, bound = 2.0**-14, 0.25
    for left_out in range(N):

        def take(places, out=left_out):
            rows = x[torch.from_numpy(places)].clone()
            # Without it: its gradient is not finite, so it counts as zero.
            rows[torch.from_numpy(places == out)] = float("nan")
            return rows, y[torch.from_numpy(places)]

        def taking_all(places):
            return x[torch.from_numpy(places)], y[torch.from_numpy(places)]

        everyone = replace(STEPS, batch_rates=(1.0,))
        sums = [
            exact_sums(gradients, theta, [holder(0, everyone)], each, bounds=[bound], unit=unit)[0]
            for each in (taking_all, take)
        ]
        moved = sums[0] - sums[1]
        assert 0 < int(moved @ moved) <= (bound / unit) ** 2


@pytest.mark.parametrize(
    ("at_once", "size"), [(2**15 + 1, 2**15 + 1), (1, 2**13 + 1)], ids=["within a pass", "over passes"]
)
def test_one_record_moves_what_is_noised_by_the_clipping_norm_at_most_however_sums_are_rounded(
    monkeypatch, at_once, size
):
    """One record changes a sum by at most the clipping norm, even if float32 rounds other records away."""
    ones = size // 2
    model = build_model("linear", (1,), 1, seed=0)

    def product(outputs, targets):
        """Return a loss whose gradient is the target for the bias, and zero for weights if inputs are 0."""
        return outputs[:, 0] * targets

    examples = torch.zeros(3, 1), torch.tensor([0.1, 0.2, 0.3])
    gradients = record_gradients(model, product, *examples, device=CPU)
    monkeypatch.setattr(type(gradients), "steady_width", lambda *_, **__: at_once)
    steps = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=1.001, noise_multiplier=0.0)

    def noised(first):
        labels = torch.full((size,), -ones * 2.0**-24)
        labels[:ones], labels[ones] = 1.0, first

        def take(places):
            return torch.zeros(*places.shape, 1), labels[torch.from_numpy(places)]

        everybody = RecordHolder(
            np.arange(size), steps, PoissonBatches((1.0,), np.zeros(size, np.int64)), bits_of(0)
        )
        theta = np.zeros(len(flatten(model)), np.float32)
        return (
            size
            * noised_updates(gradients, theta, LocalTraining(1, 1, 1.0, 0.0), [everybody], take).numpy()[0]
        )

    moved = np.linalg.norm(noised(1.0) - noised(0.0))
    assert 0.99 < moved <= 1.001 + size * 2.0**-24, "float32 rounds what is noised, and no more than that"


def data_of(count, groups=None):
    split = Split(np.zeros((count, 1), np.float32), np.zeros(count, np.int64))
    if groups is not None:
        object.__setattr__(split, "groups", groups)
    return split


def test_groups_are_the_datas_own_where_it_says_them():
    own = np.array([2, 0, 1, 1])
    np.testing.assert_array_equal(record_groups(data_of(4, own), 3, (), 0, 0), own)
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(LearningError, match=r"of group (3|-1); the groups of records are 0 to 2"):
            record_groups(data_of(2, np.array(wrong)), 3, (), 0, 0)


def test_else_shares_deal_them_out_by_largest_remainders_and_the_seed():
    groups = record_groups(data_of(11), 3, (0.5, 0.3, 0.2), seed=4, client_id=9)
    # 5.5, 3.3 and 2.2: the largest remainder is the first's.
    np.testing.assert_array_equal(np.bincount(groups), [6, 3, 2])
    np.testing.assert_array_equal(groups, record_groups(data_of(11), 3, (0.5, 0.3, 0.2), 4, 9))
    others = [record_groups(data_of(11), 3, (0.5, 0.3, 0.2), *who) for who in ((4, 8), (5, 9))]
    assert not any(np.array_equal(groups, other) for other in others)
    assert len(record_groups(data_of(0), 2, (0.5, 0.5), 0, 0)) == 0
    with pytest.raises(LearningError, match="0 shares for 3 groups of records: give a share"):
        record_groups(data_of(4), 3, (), 0, 0)


class Given(PoissonBatches):
    """A sampler that always returns a given batch, and states a given expected batch size."""

    def __init__(self, batch, expected_size):
        self.batch, self.expected_size = np.asarray(batch), expected_size

    def draw(self, random_bytes):
        return self.batch


def test_clients_whose_norms_differ_by_far_have_integers_of_their_own_units(small):
    """A client of a small clipping norm loses nothing beside one whose norm is a billion times as large."""
    theta, gradients, _, _, take = small
    norms = (1e-9, 1.0)

    def client(seed, norm):
        return holder(seed, replace(STEPS, clipping_norm=norm, noise_multiplier=0.0))

    holders = [client(seed, norm) for seed, norm in enumerate(norms)]
    training = LocalTraining(1, 1, 1.0, 0.0)
    together = noised_updates(gradients, np.zeros_like(theta), training, holders, take)
    for seed, (norm, update) in enumerate(zip(norms, together, strict=True)):
        alone = noised_updates(gradients, np.zeros_like(theta), training, [client(seed, norm)], take)[0]
        assert update.norm() > 0.1 * norm
        torch.testing.assert_close(update, alone, rtol=1e-4, atol=1e-4 * norm)


PICTURE = (1, 28, 28)


@pytest.mark.parametrize("expected", [4, 20, 64])
@pytest.mark.parametrize(
    ("name", "inputs", "cancels"),
    [
        ("linear", PICTURE, False),
        ("mlp", PICTURE, False),
        ("cnn2", PICTURE, False),
        *[(name, (size,), True) for name in ("linear", "softmax", "mlp") for size in (13, 30, 64)],
    ],
)
def test_a_record_changes_no_gradient_of_another(name, inputs, cancels, expected):
    """To the last bit, a sum of clipped gradients is the sum of what each record adds alone.

    Under models whose large terms cancel, too: there the last bits are the whole gradient.
    """
    model = build_model(name, inputs, 10, seed=0)
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(25, *inputs, generator=generator), torch.randint(10, (25,), generator=generator)
    gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=CPU)
    theta = flatten(model)
    if cancels:
        half = len(theta) // 2
        theta[:half] *= 2.0**20
        theta[half : 2 * half] = -theta[:half]

    def summed(batch):
        holder = RecordHolder(np.arange(25), STEPS, Given(batch, expected), bits_of(0))
        take = lambda places: (x[torch.from_numpy(places)], y[torch.from_numpy(places)])  # noqa: E731
        return exact_sums(gradients, theta, [holder], take, bounds=[0.3], unit=2.0**-45)[0]

    alone = [summed([record]) for record in range(25)]
    for size in (2, 3, 5, 16, 17, 25):
        np.testing.assert_array_equal(summed(np.arange(size)), sum(alone[:size]))
    np.testing.assert_array_equal(summed(np.arange(3, 25)), sum(alone[3:]))


@pytest.mark.parametrize(("size", "classes"), [(30, 2), (57, 3), (63, 2), (145, 3)])
def test_a_width_is_tried_with_many_records_and_models(size, classes, monkeypatch):
    """One record of few outputs often has the same bits in all places by chance, so many are drawn."""
    monkeypatch.setattr("fastgrad.record_gradients.ALIGNED", 1)
    model = build_model("linear", (size,), classes, seed=0)
    x, y = torch.randn(3, size), torch.randint(classes, (3,))
    gradients = record_gradients(model, cross_entropy, x, y, device=CPU)
    width = gradients.steady_width(expected=256.0)
    generator = torch.Generator().manual_seed(size)
    for _ in range(1000):
        theta = torch.randn(1, classes * (size + 1), generator=generator)
        one = torch.randn(size, generator=generator)
        rows = gradients.rows(theta, one.expand(1, width, size).contiguous(), y[:1].expand(1, width))
        assert torch.equal(rows, rows[:, :1].expand_as(rows)), f"{width} records at once are not steady"


def test_a_width_at_which_places_differ_is_not_taken(small, monkeypatch):
    _, gradients, *_ = small
    rows = type(gradients).rows

    def of_place(self, thetas, x, y):
        found = rows(self, thetas, x, y)
        return found + (torch.arange(found.shape[1]) // 4)[:, None]

    monkeypatch.setattr(type(gradients), "rows", of_place)
    assert gradients.steady_width(expected=1000.5) == 4


@pytest.mark.parametrize("most_rows", [2, 4, 8, 64])
def test_how_many_rows_another_person_has_changes_no_bit_of_a_persons_gradient(most_rows):
    """Persons lie further apart where one has more rows. Large terms of this model cancel: bits are left."""
    width, count, persons = 30, 40, np.random.default_rng(0)
    row = np.round(persons.uniform(0, 10, width), 3).astype(np.float32)
    model, loss = build_model("linear", (width,), 2, seed=0), cross_entropy
    drawn = (
        torch.randn(4, 3, width, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 1, 0]] * 4),
    )
    gradients = record_gradients(*of_persons(model, loss), *drawn, device=torch.device("cpu"))
    theta = np.zeros(sum(gradients.sizes), np.float32)
    hostile = persons.normal(size=width) * 1e9
    theta[:width] = hostile - row * (hostile @ row) / (row.astype(np.float64) @ row)
    x, y = np.zeros((count, most_rows, width), np.float32), np.full((count, most_rows), NO_ROW)
    x[:, :2], y[:, :2] = row, 0
    sums = []
    for each_x, each_y in ((x[:, :2].copy(), y[:, :2].copy()), (x, y)):
        split = Split(each_x, each_y)
        steps = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=1.0, noise_multiplier=0.0)
        batches = PoissonBatches((1.0,), np.zeros(count, np.int64))
        holder = RecordHolder(np.arange(count), steps, batches, lambda size: bytes(size), rows_to_take(split))
        take = taken_from(split, torch.device("cpu"))
        sums.append(exact_sums(gradients, theta, [holder], take, bounds=[1.0], unit=unit_for(1.0))[0])
    assert np.array_equal(*sums)


class Odd(BaseException):
    """An error that says nothing of itself."""

    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("together", "error"), [(1, ValueError), (2, ValueError), (1, MemoryError), (1, GeneratorExit), (1, Odd)]
)
def test_a_record_for_which_the_loss_raises_counts_as_zeros_and_changes_nothing_of_the_others(
    small, together, error, caplog
):
    theta, _, x, y, _ = small

    def loss(outputs, targets):
        if outputs.isnan().any():
            raise error
        return cross_entropy(outputs, targets)

    gradients = record_gradients(build_model("linear", (6,), CLASSES, seed=0), loss, x[:3], y[:3], device=CPU)
    odd = x.clone()
    odd[4] = torch.nan
    everyone = replace(STEPS, batch_rates=(1.0,))

    def sums(inputs, records):
        def take(places):
            where = torch.from_numpy(places)
            return inputs[where], y[where]

        holders = [holder(at, everyone, records=records) for at in range(together)]
        return exact_sums(gradients, theta, holders, take, bounds=[1.0] * together, unit=2.0**-20)

    without = sums(x, np.delete(np.arange(N), 4))
    assert without.any()
    found = sums(odd, np.arange(N))
    assert f"since their loss or model raises {error.__name__}: {together}" in caplog.text
    if together == 1:
        np.testing.assert_array_equal(found, without)
    else:
        np.testing.assert_allclose(found, without, atol=N)
    assert not sums(odd, np.array([4])).any()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_is_due_to_no_record_ends_the_sum(small, monkeypatch, error):
    theta, gradients, *_, take = small

    def fails(*_):
        raise error

    monkeypatch.setattr(gradients, "truncated_sums", fails)
    with pytest.raises(error):
        exact_sums(gradients, theta, [holder()], take, bounds=[1.0], unit=2.0**-20)


def test_a_loss_that_raises_for_drawn_records_has_a_width_of_one_whatever_the_rows_of_a_person(small):
    _, _, x, y, _ = small

    def loss(outputs, targets):
        if outputs.detach().abs().max() > 12:
            raise ValueError("large scores")
        return cross_entropy(outputs, targets)

    gradients = record_gradients(build_model("linear", (6,), CLASSES, seed=0), loss, x[:3], y[:3], device=CPU)
    assert gradients.steady_width(100.0) == 1


@pytest.mark.parametrize("error", [MemoryError, torch.cuda.OutOfMemoryError, Odd])
def test_a_person_whose_rows_cannot_be_tried_has_a_width_of_one(small, monkeypatch, error):
    _, gradients, x, y, _ = small

    def fails(*_):
        raise error

    monkeypatch.setattr(gradients, "_widths", {})
    monkeypatch.setattr(gradients, "trial", (torch.zeros(1, 28), x[None, :1, None], y[None, :1, None]))
    monkeypatch.setattr(gradients, "_rows_of_copies", fails)
    assert gradients.steady_width(1000.0, rows=32) == 1


@dataclass(frozen=True, eq=False)
class Room:
    size: int


class Allocating:
    """Gradients of 1 for a record, computed in a memory that has room for 20 records' places.

    Record 4 needs `more`. What a pass has taken is given back when its memory is collected.
    """

    def __init__(self, more):
        self.device, self.most_clients, self.more = CPU, None, more
        self.held: WeakSet[Room] = WeakSet()

    def steady_width(self, *_, **__):
        return 16

    def records_at_once(self, **_):
        return 16

    def truncated_sums(self, thetas, x, y, present, bounds, unit):
        taken = []
        for size in (present.numel(), self.more if (x == 4).any() else 0):
            if sum(each.size for each in self.held) + size > 20:
                raise torch.cuda.OutOfMemoryError
            taken.append(Room(size))
            self.held.add(taken[-1])
        return present.sum(dim=1, keepdim=True).expand(-1, thetas.shape[1]).long()


@pytest.mark.parametrize("more", [10, 19])
def test_a_record_for_which_memory_ends_takes_none_of_the_others_along(small, more):
    """Neither what its pass had taken nor a trial in a smaller pass decides for the others."""

    def take(places):
        return torch.from_numpy(places).float(), torch.zeros(places.shape)

    def sums(clients, more):
        everyone = replace(STEPS, batch_rates=(1.0,))
        holders = [holder(at, everyone, records=np.arange(4, 20)) for at in range(clients)]
        gradients: Any = Allocating(more)
        bounds = [1.0] * clients
        return exact_sums(gradients, np.zeros(3, np.float32), holders, take, bounds=bounds, unit=1.0)

    assert sums(1, 0)[0, 0] == 16
    assert sums(1, more)[0, 0] == 15
    # A simulation trains fewer clients at once.
    with pytest.raises(torch.cuda.OutOfMemoryError):
        sums(2, more)


def test_how_much_of_a_gpu_other_records_leave_free_decides_no_width(small, monkeypatch):
    gradients = small[1]
    budgets = []
    for free in (2**30, 2**33):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**34))
        monkeypatch.setattr(gradients, "device", torch.device("cuda"))
        budgets.append(gradients.memory_budget())
    assert budgets == [2**31, 2**31]
