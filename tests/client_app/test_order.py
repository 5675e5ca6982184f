"""Tests of a client's check of training instructions: sums that could single out an update are refused."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.clients.order_checks import check_numbers
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import RecordSteps
from testing.secagg_sums import make_parameters

TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0)
ORDER = TrainingOrder(TASK, LocalTraining(5, 4, 0.5, 0.0), round_index=0, device="cpu")
NOISY = make_parameters(clipping_norm=2.0, noise_multiplier=1.0)
RECORDS = RecordSteps(num_steps=3, batch_rates=(0.1, 0.4), clipping_norm=0.7, noise_multiplier=1.1)
SILENT = make_parameters(clipping_norm=2.0, noise_multiplier=0.0)
UNCLIPPED = make_parameters(clipping_norm=inf, noise_multiplier=0.0)


@pytest.mark.parametrize("parameters", [NOISY, SILENT, UNCLIPPED])
def test_members_that_are_all_alike_are_accepted(parameters):
    ORDER.check_part(parameters)
    replace(ORDER, weight=3.0, smallest_weight=3.0, largest_weight=3.0).check_part(parameters)


@pytest.mark.parametrize(
    "changes",
    [
        {"smallest_norm": 0.2},
        {"smallest_norm": 0.2, "clipping_norm": 0.2},
        {"smallest_norm": 0.2, "clipping_norm": 1.0, "smallest_weight": 0.1},
    ],
)
def test_ranges_up_to_the_largest_ratio_need_noise(changes: dict[str, Any]):
    replace(ORDER, **changes).check_part(NOISY)
    with pytest.raises(OrderError, match="would stand out"):
        replace(ORDER, **changes).check_part(SILENT)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"smallest_norm": 0.19}, "clipping norms from 0.19 to 2 in one sum"),
        ({"smallest_norm": 0.0}, "clipping norms from 0 to 2"),
        ({"smallest_norm": nan}, "clipping norm 2 is not in the range"),
        ({"clipping_norm": 0.5}, "clipping norm 0.5 is not in the range of the sum, 2 to 2"),
        ({"clipping_norm": 0.2, "smallest_norm": 0.5}, "0.2 is not in the range"),
        ({"clipping_norm": nan, "smallest_norm": 0.5}, "is not in the range"),
        ({"weight": 1e-9}, "weight 1e-09 is not in the range of the sum, 1 to 1"),
        ({"weight": 1e-9, "smallest_weight": 1e-9}, "weights from 1e-09 to 1 in one sum"),
        ({"weight": 5.0, "largest_weight": 50.0}, "weights from 1 to 50"),
        ({"weight": nan}, "weight nan"),
        ({"weight": 1.0, "largest_weight": nan}, "weight 1 is not in the range"),
    ],
)
def test_a_member_that_would_stand_out_is_refused(changes: dict[str, Any], match: str):
    with pytest.raises(OrderError, match=match):
        replace(ORDER, **changes).check_part(NOISY)


def test_others_may_send_zeros_in_a_sum_with_noise_alone():
    """Zeros are allowed only in sums with enough noise; without noise, a single update would be visible."""
    filled = replace(ORDER, may_fill=True)
    for order in (filled, replace(filled, fills=True)):
        check_numbers(order)
        order.check_part(NOISY)
        order.check_part(replace(NOISY, noise_multiplier=0.1))
        for parameters in (SILENT, UNCLIPPED, replace(NOISY, noise_multiplier=0.099)):
            with pytest.raises(OrderError, match="of its clipping norm, below 1/10: one client's"):
                order.check_part(parameters)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"may_fill": False}, "asks for zeros in a sum in which"),
        ({"work": "vote"}, "asks for vote: .* not for records, scheduled rounds .* or a sum beside"),
        ({"work": "gradient_sum"}, "asks for gradient_sum: zeros are for rounds"),
        ({"work": "noised_update"}, "asks for noised_update: zeros are for rounds"),
        ({"records": RECORDS}, "not for records"),
        ({"taps": (0.5,)}, "not for records, scheduled rounds"),
    ],
)
def test_zeros_are_refused_where_the_others_were_told_otherwise_or_nobody_is_drawn(changes, match):
    order = replace(ORDER, may_fill=True, fills=True)
    for fills in (True, "may_fill" in changes):
        with pytest.raises(OrderError, match=match):
            check_numbers(replace(order, fills=fills, **changes))


@pytest.mark.parametrize("name", ["fills", "may_fill"])
@pytest.mark.parametrize("value", [2, 1, 0, -1, 0.5, "no", "", b"", [], None])
def test_whether_a_client_fills_is_true_or_false(name, value):
    with pytest.raises(OrderError, match=rf"the server sent {name}=.*; it must be true or false"):
        TrainingOrder.from_scalars(ORDER.to_scalars() | {name: value})


def test_everything_that_an_update_depends_on_is_in_the_context():
    """The hash of a training instruction covers all that affects updates, except a member's own values."""
    theta = flatten(TASK.build_model())
    same = ORDER.context(theta)
    assert ORDER.for_part(ClientPart(0.5, 0.5, RECORDS)).context(theta) == same
    other_training = replace(ORDER.training, learning_rate=0.51)
    others = [
        replace(ORDER, smallest_norm=0.5),
        replace(ORDER, smallest_weight=0.5),
        replace(ORDER, largest_weight=2.0),
        replace(ORDER, may_fill=True),
        replace(ORDER, round_index=1),
        replace(ORDER, training=other_training),
        replace(ORDER, noise="discrete_gaussian"),
        replace(ORDER, work="other"),
        replace(ORDER, task=replace(TASK, seed=1)),
        replace(ORDER, task=replace(TASK, record_shares=(0.5, 0.5))),
    ]
    contexts = {each.context(theta) for each in others} | {ORDER.context(theta + 1), same}
    assert len(contexts) == len(others) + 2


def test_steps_on_records_travel_as_flat_values_and_are_absent_where_there_are_none():
    assert not any(key.startswith("record_") for key in ORDER.to_scalars())
    order = replace(ORDER, work="dp_sgd", task=replace(TASK, record_shares=(0.25, 0.75)))
    order = order.for_part(ClientPart(records=RECORDS))
    scalars = order.to_scalars()
    assert scalars["record_num_steps"] == 3
    assert scalars["record_batch_rates"] == [0.1, 0.4]
    message = RecordDict({"order": ConfigRecord(dict(scalars))})
    assert TrainingOrder.from_scalars(dict(message.config_records["order"])) == order
    assert order.for_part(ClientPart()).records is None
    for key, value in (("record_num_steps", 0), ("record_batch_rates", [0.0]), ("record_clipping_norm", nan)):
        with pytest.raises(ValueError, match="must"):
            TrainingOrder.from_scalars(scalars | {key: value})
    with pytest.raises(KeyError):
        TrainingOrder.from_scalars({key: scalars[key] for key in scalars if key != "record_noise_multiplier"})


def test_weights_may_be_far_apart_where_the_contribution_is_private_by_itself():
    far = replace(ORDER, weight=0.001, smallest_weight=0.001, largest_weight=1.0)
    noised = replace(far, work="dp_sgd", records=RECORDS)
    noised.check_part(UNCLIPPED)
    for order in (
        far,
        replace(noised, work="update"),
        replace(noised, work="gradient_sum"),
        replace(noised, records=replace(RECORDS, noise_multiplier=0.0)),
        replace(noised, records=None),
    ):
        with pytest.raises(OrderError, match="would stand out"):
            order.check_part(UNCLIPPED)
    wrong: list[dict[str, Any]] = [
        {"weight": 0.0001},
        {"smallest_weight": 0.0, "weight": 0.0},
        {"largest_weight": nan},
    ]
    for changes in wrong:
        with pytest.raises(OrderError, match="weight"):
            replace(noised, **changes).check_part(UNCLIPPED)
    with pytest.raises(OrderError, match="clipping norms from"):
        replace(noised, smallest_norm=0.1, clipping_norm=0.1).check_part(SILENT)
