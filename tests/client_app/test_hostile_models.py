"""Tests of extreme models from a server: no answer of a node shows whether its examples are unusual.

Every work is ordered with models at the ends of float32, and of nodes whose examples differ in what might
break a computation. Whether a node answers, and with how many bytes, must not tell them apart.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.messages import DATA, ORDER_RECORD, PLAIN, ROUND, RUN, THETA_RECORD
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.update import contribution_steps
from gdpfed.clients.works import Job
from gdpfed.clients.works.held_out_counts import of_records
from gdpfed.errors import InputError, LearningError
from gdpfed.federation.node.contribution import Contributor
from gdpfed.learning.data import Split
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.data.own_files import READERS
from gdpfed.learning.models import flatten
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import KINDS, NORM_MULTIPLES, RecordSteps
from secagg import SumParameters
from testing.local_grid import IN_CLEAR, ask, make_context

CONFIG = load(["dataset=breast_cancer"])
TASK = task_of(CONFIG).described()
SOFTMAX = replace(TASK, model="softmax")
ORDER = replace(order_of(CONFIG, TASK), device="cpu", training=LocalTraining(2, 4, 0.05, 0.0))
MODEL = TASK.build_model()
THETA = flatten(MODEL)
FEATURES, BIG, NUM_RECORDS = 30, float(np.finfo(np.float32).max), 8
STEPS = RecordSteps(num_steps=2, batch_rates=(0.5,), clipping_norm=2.0, noise_multiplier=0.5)
ONE_STEP = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=1e-12, noise_multiplier=1e-3)
VOTED = (0.1, 0.0, 1.0, 0.2, 0.0, 1.0)


def at_threshold(*outputs):
    """Return parameters with which these outputs overflow exactly for records with feature 7 above 0.3."""
    weights = np.zeros_like(THETA)
    for output in outputs:
        weights[FEATURES * output + 7] = 1.5e38
        weights[2 * FEATURES + output] = np.float32(BIG - 1.5e38 * 0.3)
    return weights


MODELS = {
    "honest": THETA,
    **{name: np.full_like(THETA, value) for name, value in (("NaN", np.nan), ("inf", np.inf), ("most", BIG))},
    "squares overflow": np.full_like(THETA, 1e30),
    "one output overflows": at_threshold(1),
    "both overflow": at_threshold(0, 1),
}


def examples():
    """Return sets of examples, each with one unusual property, by the name of the property."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-0.5, 0.25, (NUM_RECORDS, FEATURES)).astype(np.float32)
    y = generator.integers(0, 2, NUM_RECORDS)
    every = {"nothing": (x, y), "one class": (x, 0 * y), "one record": (x[:1], y[:1]), "none": (x[:0], y[:0])}
    for name, values in (("above", [0.9]), ("not finite", [np.nan, np.inf]), ("huge", [3e38])):
        every[name] = (x.copy(), y)
        every[name][0][5, 7 : 7 + len(values)] = values
    every["no such class"] = (x, np.concatenate([[7, -1, 2**40], y[3:]]))
    return every


OF_MODELS = list(KINDS)
"""Statistics count in tables and look at no model: tests/extras/statistics asks the same of them."""

BROKEN: dict[str, tuple[Any, Any]] = {
    "another shape": (np.zeros((4, 3), np.float32), np.zeros(4, np.int64)),
    "text": (np.full((4, FEATURES), "x"), np.zeros(4, np.int64)),
    "no classes": (np.zeros((4, FEATURES), np.float32), np.full(4, 0.5)),
}


def order_for(work):
    """Return a training instruction (order) for this kind of work, and the parameters of the order's sum."""
    kind, task = KINDS[work], SOFTMAX if work == "convex_steps" else TASK
    counted = {"held_out_counts": 24, "held_out_rates": 2, "norm_histogram": len(NORM_MULTIPLES) + 1}
    dimension = counted.get(work, 2 if kind.vote else task.dimension)
    steps = replace(STEPS, num_steps=1) if work in ("noised_update", "gradient_sum") else STEPS
    if kind.on_records and not kind.own_noise:
        steps = replace(steps, noise_multiplier=0.0)
    records = steps if kind.on_records or kind.once in ("vote", "norm_histogram") or kind.own_noise else None
    settings = VOTED if kind.vote else ()
    order = replace(ORDER, task=task, work=work, records=records, settings=settings)
    parameters = SumParameters(
        label="test",
        num_clients=4,
        threshold=3,
        dropout_tolerance=0,
        dimension=dimension,
        clipping_norm=100.0 if kind.held_out else 1.0,
        noise_multiplier=0.03 if kind.held_out else 3.0,
    )
    return order, parameters


def said(order, theta, encoding, read):
    """Return an answer's shape, or the node's refusal, and the errors that the node hides from the server."""
    failed: list[BaseException] = []
    own = OwnData(Path(__file__).with_suffix(".npz"), None, 0.4 * order.kind.held_out)
    with patch.object(Path, "exists", lambda path: True), patch.object(READERS, "get", lambda kind: read):
        node = Contributor(0, "run", own, unusable=failed.append)
        try:
            node.check(order, theta, encoding)
        except InputError as error:
            return str(error), []
        return node.steps(order, theta, encoding).shape, failed


@pytest.mark.parametrize("work", OF_MODELS)
def test_no_model_asks_a_node_a_question_by_whether_it_answers(work, caplog):
    caplog.set_level(logging.CRITICAL)
    order, parameters = order_for(work)
    encoding, most = parameters.encoding(4), replace(order.training, learning_rate=1e30)
    for name, weights in MODELS.items():
        theta = weights[: order.task.dimension]
        for each in (order, replace(order, training=most))[: 1 if order.kind.once else 2]:
            answers = {odd: said(each, theta, encoding, lambda path, r=r: r) for odd, r in examples().items()}
            assert {repr(shape) for shape, _ in answers.values()} == {repr(answers["nothing"][0])}, name
            # Nothing of that has failed; only for an update of NaN or infinity does a node send zeros.
            failed = {str(error) for _, errors in answers.values() for error in errors}
            assert all(error.startswith("the update holds NaN or infinity") for error in failed), failed
    assert said(order, THETA[: order.task.dimension], encoding, lambda path: examples()["nothing"])[0] == (
        parameters.dimension,
    )


def fail(path):
    raise MemoryError("12345")


@pytest.mark.parametrize("work", OF_MODELS)
def test_a_file_that_cannot_be_used_is_not_seen_in_a_round(work, caplog):
    caplog.set_level(logging.CRITICAL)
    order, parameters = order_for(work)
    theta, encoding = THETA[: order.task.dimension], parameters.encoding(4)
    for read in (*((lambda path, r=r: r) for r in BROKEN.values()), fail):
        shape, failed = said(order, theta, encoding, read)
        assert (shape, len(failed)) == ((parameters.dimension,), 1)


def test_a_node_answers_a_message_with_counts_whatever_the_model_makes_of_its_records(tmp_path):
    order, parameters = order_for("held_out_counts")
    lengths = set()
    for name in ("nothing", "above", "no archive"):
        path = tmp_path / f"{name}.npz"
        if name in examples():
            np.savez(path, **dict(zip(("x_train", "y_train"), examples()[name], strict=True)))
        node = IN_CLEAR | {"data": str(path), "held-out-share": 0.99}
        content = RecordDict(
            {
                PLAIN: ConfigRecord({DATA: parameters.to_bytes(), RUN: "run", ROUND: 0}),
                ORDER_RECORD: ConfigRecord(dict(order.to_scalars())),
                THETA_RECORD: ArrayRecord({THETA_RECORD: Array(MODELS["one output overflows"])}),
            }
        )
        (answer,) = ask(f"train.{PLAIN}", content, make_context(0, node))[PLAIN].values()
        lengths.add(len(answer))
    assert lengths == {4 * parameters.dimension}


def sent(theta, records):
    """Return the held-out counts that a client sends for these records, rounded to the encoding's grid."""
    order, parameters = order_for("held_out_counts")
    encoding = parameters.encoding(4)
    update = of_records(Job(order, theta, encoding, 0), records)
    return encoding.grid * contribution_steps(order, update, encoding)


@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_counts_by_the_square_root_of_two_under_any_model(name):
    records = Split(*examples()["above"])
    whole = sent(MODELS[name], records)
    for left_out in range(NUM_RECORDS):
        rest = records.take(np.delete(np.arange(NUM_RECORDS), left_out))
        assert 0 < np.linalg.norm(whole - sent(MODELS[name], rest)) <= np.sqrt(2)


def test_what_a_model_says_of_a_record_does_not_follow_from_how_many_others_there_are():
    """Removing a record moves the held-out counts by norm sqrt(2) at most, even if two classes nearly tie."""
    generator = np.random.default_rng(1)
    weights = 1e6 * generator.standard_normal(FEATURES)
    beside = weights + 1e-2 * generator.standard_normal(FEATURES)
    theta = np.concatenate([weights, beside, [0, 0]]).astype(np.float32)
    x = generator.uniform(-0.5, 0.5, (40, FEATURES)).astype(np.float32)
    records = Split(x, np.zeros(40, np.int64))
    for kept in range(1, 40):
        both, alone = (sent(theta, records.take(np.array(each))) for each in ([0, kept], [kept]))
        assert np.linalg.norm(both - alone) <= np.sqrt(2)


def with_long_inputs(record):
    """Return parameters of an mlp whose 64 hidden units are about 1e32 for this record; its gradient is so
    long that the factor that clips it to norm 1e-12 is about the smallest positive number of float32.
    """
    length = float(record @ record)
    size = 1e-12 / (0.5004 * 2.0**-149) / (8 * np.sqrt(2) * 0.5005 * 0.1 * length)
    hidden = np.tile(size * record, (64, 1)), np.full(64, -0.9 * size * length)
    return np.concatenate([*map(np.ravel, hidden), np.zeros(128), [-0.001, 0.001]]).astype(np.float32)


def test_no_model_moves_a_step_by_more_than_the_clipping_norm_of_a_record():
    """A record moves a step by at most its clipping norm, also where float32 rounds the clipping factor."""
    _, parameters = order_for("dp_sgd")
    task = task_of(load(["dataset=breast_cancer", "dataset.model=mlp"])).described()
    training = LocalTraining(1, 1, 1e12, 0.0)
    order = replace(ORDER, task=task, work="dp_sgd", training=training, records=ONE_STEP)
    record = np.random.default_rng(0).uniform(-1, 1, FEATURES).astype(np.float32)
    parameters = replace(parameters, dimension=task.dimension, clipping_norm=1000.0)
    encoding = parameters.encoding(4)
    theta, failed = with_long_inputs(record.astype(np.float64)), list[BaseException]()
    node = Contributor(0, "run", OwnData(Path(__file__).with_suffix(".npz")), unusable=failed.append)
    with (
        patch.object(Path, "exists", lambda path: True),
        patch.object(READERS, "get", lambda kind: lambda path: (record[None], np.zeros(1, np.int64))),
    ):
        node.check(order, theta, encoding)
        moved = encoding.grid * node.steps(order, theta, encoding)
    assert failed == []
    # In clipping norms: 1, and the noise.
    assert np.linalg.norm(moved) <= 1.1


def node_check(order, parameters):
    """Let a node check an instruction to train before it reads an example."""
    Contributor(0, "run", OwnData(Path("own.npz"))).check(order, THETA, parameters.encoding(4))


@pytest.mark.parametrize("work", ["gradient_sum", "dp_sgd", "held_out_counts"])
@pytest.mark.parametrize("weights", [(1.0,), (1.0, 1.0, 1.0)])
def test_class_weights_that_are_not_one_for_each_class_are_refused_before_the_charge(work, weights):
    """Otherwise a record of the class without a weight would be an error, and the node would send zeros."""
    order, parameters = order_for(work)
    with pytest.raises(LearningError, match=f"class_weights has {len(weights)} numbers: give 2"):
        node_check(replace(order, task=replace(order.task, class_weights=weights)), parameters)


def test_shares_of_more_groups_of_records_than_batch_rates_are_refused_before_the_charge():
    """Otherwise a record of a group without a rate would be an error, and the node would send zeros."""
    order, parameters = order_for("dp_sgd")
    records = replace(order.records, batch_rates=(0.1, 0.2))
    order = replace(order, records=records, task=replace(order.task, record_shares=(0.4, 0.4, 0.2)))
    with pytest.raises(OrderError, match="2 batch rates for 3 groups of records"):
        node_check(order, parameters)


@pytest.mark.parametrize("of_form", [True, False])
def test_a_form_of_examples_and_a_source_with_two_transforms_are_refused(of_form):
    """An encoder's vocabulary would let tokens through that the model does not have."""
    form = replace(TASK.known_form, features="random_prior") if of_form else TASK.form
    source = TASK.source if of_form else replace(TASK.source, features="random_prior")
    scalars = replace(ORDER, task=replace(TASK, form=form, source=source)).to_scalars()
    with pytest.raises(ValueError, match="two transforms of the inputs"):
        TrainingOrder.from_scalars(scalars)
