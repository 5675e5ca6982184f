"""Tests of DP-SGD steps as replayed CUDA graphs, for which a stand-in calls the recorded functions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import TapedGradients
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training import record_graphs, recorded_pass
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.learning.training.recorded_pass import EMPTY, passes_of, width_for
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.record_steps import RecordSteps
from tests.simulation.test_step_graphs import CalledAgain

CPU = torch.device("cpu")
STEPS = RecordSteps(num_steps=5, batch_rates=(0.4,), clipping_norm=0.5, noise_multiplier=1.2)
N, CLASSES = 60, 4
SGD = LocalTraining(1, 1, 0.3, 0.5)


def examples():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, 6, generator=generator)
    return x, torch.randint(CLASSES, (N,), generator=generator)


def take(places):
    where = torch.from_numpy(places)
    return tuple(each[where] for each in examples())


def gradients_of(name):
    model = build_model(name, (6,), CLASSES, seed=0)
    if name == "linear":
        return record_gradients(model, cross_entropy, *take(np.arange(3)), device=CPU), flatten(model)
    return TapedGradients(model, cross_entropy, CPU), flatten(model)


def holder(seed, records, **told):
    steps, bits = replace(STEPS, **told), np.random.default_rng(seed).bytes
    groups = np.arange(len(records)) % len(steps.batch_rates)
    return RecordHolder(np.asarray(records), steps, PoissonBatches(steps.batch_rates, groups), bits)


def holders():
    """Return five clients with records and settings; one has no records, and one samples almost none."""
    return [
        holder(1, range(40)),
        holder(2, range(3, 17), batch_rates=(0.1, 0.9), clipping_norm=2.0, num_steps=2),
        holder(3, []),
        holder(4, range(20, 60), num_steps=7, noise_multiplier=0.0),
        holder(5, range(20, 30), batch_rates=(1e-12,), clipping_norm=1e-12),
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_replays_have_the_bits_of_calls_and_end_where_steps_without_passes_end(name, momentum):
    gradients, theta = gradients_of(name)
    training, record = replace(SGD, momentum=momentum), CalledAgain()
    plain = noised_updates(gradients, theta, training, holders(), take)
    for given in (examples(), None):
        replayed = RecordGraphs(gradients, record, given).updates(theta, training, holders(), take)
        called = RecordGraphs(gradients, None, given).updates(theta, training, holders(), take)
        assert torch.equal(replayed, called)
        torch.testing.assert_close(replayed, plain, rtol=1e-4, atol=1e-6)
        assert not replayed[2].any()
    assert plain[[0, 1, 3, 4]].abs().amax(dim=1).min() > 1e-3
    # Of 4, 3 and 1 clients with steps left, twice.
    assert record.recorded == 2 * 3
    assert record.replayed >= 2 * 7


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("width", [1, 5, 7])
def test_a_batch_larger_than_its_pass_takes_more_of_them_and_loses_no_record(width, given, monkeypatch):
    gradients, theta = gradients_of("mlp")
    plain = noised_updates(gradients, theta, SGD, holders(), take)
    monkeypatch.setattr(record_graphs, "width_for", lambda batches, most: width)
    record = CalledAgain()
    graphs = RecordGraphs(gradients, record, examples() if given else None)
    torch.testing.assert_close(graphs.updates(theta, SGD, holders(), take), plain, rtol=1e-4, atol=1e-6)
    drawn = [[each.draw() for _ in range(5)] for each in (holders()[0], holders()[3])]
    largest = [max(len(batch) for batch in same) for same in zip(*drawn, strict=True)]
    assert min(largest) > width
    assert record.replayed >= sum(-(-size // width) for size in largest)


def test_every_record_of_a_batch_is_in_one_pass_and_noise_goes_with_the_last():
    batches = [np.arange(11), np.arange(0), np.arange(20, 24)]
    passes = list(passes_of(batches, 4, row=2))
    assert [row for _, row in passes] == [EMPTY, EMPTY, 2]
    for k, batch in enumerate(batches):
        together = np.concatenate([places[k] for places, _ in passes])
        np.testing.assert_array_equal(together[together != EMPTY], batch)
    ((places, row),) = passes_of([np.arange(0)] * 2, 3, row=1)
    assert (places == EMPTY).all()
    assert row == 1


def test_an_empty_batch_is_a_step_of_noise_alone():
    gradients, theta = gradients_of("mlp")
    training = replace(SGD, momentum=0.0, learning_rate=1e-12)
    rare = holder(5, range(N), batch_rates=(1e-12,), num_steps=3)
    (update,) = RecordGraphs(gradients, CalledAgain(), examples()).updates(theta, training, [rare], take)
    expected = 1e-12 * 0.5 * 1.2 * 3**0.5 / (1e-12 * N)
    assert float(update.std()) == pytest.approx(expected, rel=5 / (2 * len(theta)) ** 0.5)


def test_a_width_is_rarely_exceeded_and_follows_from_public_numbers():
    batches = [
        PoissonBatches((rate,), np.zeros(count, np.int64)) for rate, count in ((0.0256, 10_000), (0.5, 40))
    ]
    bits = np.random.default_rng(0).bytes
    for each in batches:
        drawn = [len(each.draw(bits)) for _ in range(2000)]
        width = width_for([each], 10**6)
        assert max(drawn) > each.expected_size + 2 * each.size_stddev
        assert np.mean(np.array(drawn) > width) <= 2 * recorded_pass.RARELY
        assert width <= 1.4 * each.expected_size
    # Most of a common width would be empty, so the larger one takes several passes.
    assert width_for([batches[0], *[batches[1]] * 20], 10**6) == width_for([batches[1]] * 20, 10**6)
    # Where memory holds less, in equal pieces.
    assert width_for([batches[0]], 200) == 152


def test_memory_that_runs_out_means_narrower_passes():
    gradients, theta = gradients_of("mlp")
    failures = iter([torch.cuda.OutOfMemoryError] * 2)

    def short_of_memory(act):
        if failure := next(failures, None):
            raise failure
        return CalledAgain()(act)

    graphs = RecordGraphs(gradients, short_of_memory, examples())
    ours = graphs.updates(theta, SGD, [holder(1, range(40))], take)
    (held,) = graphs._held
    assert held.width == 6
    torch.testing.assert_close(
        ours, noised_updates(gradients, theta, SGD, [holder(1, range(40))], take), rtol=1e-4, atol=1e-6
    )


def test_steps_that_cannot_be_recorded_or_have_other_bits_are_not_taken():
    gradients, theta = gradients_of("mlp")
    x, y = (each[:4] for each in examples())

    def refuse(act):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    def wrong(act):
        twice = CalledAgain()(act)
        twice.step = lambda: [act(), act()]
        return twice

    assert RecordGraphs(gradients, CalledAgain()).tried(theta, x, y) == ""
    assert RecordGraphs(gradients, refuse).tried(theta, x, y) == (
        "operation not permitted when stream is capturing"
    )
    assert "other bits" in RecordGraphs(gradients, wrong).tried(theta, x, y)
    assert gradients.model.training


def test_a_record_whose_gradient_is_not_finite_counts_as_zero():
    gradients, theta = gradients_of("mlp")
    x, y = examples()
    x[7] = float("inf")
    without = [each for each in range(40) if each != 7]
    everyone = {"batch_rates": (1.0,), "noise_multiplier": 0.0, "num_steps": 1}
    graphs = RecordGraphs(gradients, CalledAgain(), (x, y))
    (ours,) = graphs.updates(theta, SGD, [holder(1, range(40), **everyone)], take)
    (theirs,) = noised_updates(gradients, theta, SGD, [holder(1, without, **everyone)], take)
    torch.testing.assert_close(ours * 40, theirs * 39, rtol=1e-4, atol=1e-6)
    assert ours.isfinite().all()
