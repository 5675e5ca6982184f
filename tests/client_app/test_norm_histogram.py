"""Tests of the histogram of update norms: one client's effect; simulations send the same as real nodes."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import MOST_WORK, ClientPart, OrderError, TrainingOrder
from gdpfed.clients.order_checks import check_order, model_dimension
from gdpfed.clients.update import contribution_steps, update_of, update_steps, update_without_examples
from gdpfed.clients.works import Job
from gdpfed.clients.works.norm_histogram import histograms
from gdpfed.learning.models import flatten
from gdpfed.record_steps import NORM_MULTIPLES, RecordSteps
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort, SequentialEngine
from secagg import SumParameters

CONFIG = load(["dataset=digits", "dataset.num_clients=6"])
TASK = task_of(CONFIG).described()
THETA = flatten(TASK.build_model())
PLAIN = order_of(CONFIG, TASK)


def steps_of(norm):
    return RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=norm, noise_multiplier=0.0)


ORDER = replace(PLAIN, work="norm_histogram", records=steps_of(2.0))
ENCODING = SumParameters(
    label="one",
    num_clients=6,
    threshold=4,
    dropout_tolerance=0,
    corrupt_tolerance=0,
    dimension=len(NORM_MULTIPLES) + 1,
    clipping_norm=1.0,
    noise_multiplier=6.0,
).encoding(6)


def test_a_client_is_in_one_bin_and_two_are_within_the_square_root_of_two():
    """Each update falls into exactly one bin; the vectors of two updates differ by the root of 2 at most."""
    lengths = [0.0, 0.25, 0.26, 1.0, 2.0, 2.1, math.inf, math.nan]
    updates = torch.tensor([[length, 0.0] for length in lengths], dtype=torch.float64)
    sent = histograms(updates, [ORDER] * len(lengths), ENCODING)
    assert sent.argmax(dim=1).tolist() == [0, 0, 1, 2, 3, 4, 4, 4]
    steps = [ENCODING.grid * contribution_steps(ORDER, each, ENCODING) for each in sent]
    assert all(0.9 < np.linalg.norm(each) <= 1 and np.count_nonzero(each) == 1 for each in steps)
    for one, other in itertools.combinations(steps, 2):
        assert np.linalg.norm(one - other) <= math.sqrt(2)


def test_every_client_says_the_bin_of_the_update_that_it_would_send():
    for client in range(3):
        length = float(torch.linalg.vector_norm(update_of(Job(PLAIN, THETA, ENCODING, client))))
        for norm, expected in ((length * 1.01, 3), (length * 0.99, 4), (length * 2.01, 2), (length * 9, 0)):
            own = replace(ORDER, records=steps_of(norm))
            assert np.flatnonzero(update_steps(Job(own, THETA, ENCODING, client))).tolist() == [expected]
    # Who cannot use its examples sends what an update of zeros is, as it would send zeros in a round.
    nothing = contribution_steps(ORDER, update_without_examples(Job(ORDER, THETA, ENCODING, 0)), ENCODING)
    assert np.flatnonzero(nothing).tolist() == [0]


def test_both_engines_send_what_a_node_sends():
    parts = {client: ClientPart(records=steps_of(0.5 + client)) for client in (0, 2, 3)}
    cohort = Cohort([0, 2, 3], ENCODING, parts)
    node = [
        update_steps(Job(replace(ORDER, records=parts[client].records), THETA, ENCODING, client))
        for client in cohort.clients
    ]
    for engine in (SequentialEngine(), BatchedEngine(TASK, torch.device("cpu"))):
        assert (engine.sum_updates(ORDER, THETA, cohort).total == np.sum(node, axis=0)).all()


def test_an_order_that_no_examples_make_right_is_refused_before_a_charge():
    assert TrainingOrder.from_scalars(ORDER.to_scalars()) == ORDER
    assert model_dimension(ORDER, 5) == len(THETA)
    check_order(ORDER, THETA, ENCODING, 0)
    with pytest.raises(OrderError, match="5 bins, not 6"):
        model_dimension(ORDER, 6)
    with pytest.raises(OrderError, match="does not state the clipping norm of updates"):
        check_order(replace(ORDER, records=None), THETA, ENCODING, 0)
    long = replace(ORDER.training, local_steps=int(MOST_WORK))
    with pytest.raises(OrderError, match="more work than"):
        check_order(replace(ORDER, training=long), THETA, ENCODING, 0)
    coarse: Any = SimpleNamespace(grid=0.2, clipping_norm=1.0)
    with pytest.raises(OrderError, match="rounding counts of norms to steps of 0.2"):
        check_order(ORDER, THETA, coarse, 0)
