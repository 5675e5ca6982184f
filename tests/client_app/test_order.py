"""A client takes part only in sums in which its update cannot stand out from the others'."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.learning.datasets import DataSource
from gdpfed.learning.local_update import LocalTraining
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from testing.joined_sessions import make_parameters

TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0)
ORDER = TrainingOrder(TASK, LocalTraining(5, 4, 0.5, 0.0), round_index=0, device="cpu")
NOISY = make_parameters(clipping_norm=2.0, noise_multiplier=1.0)
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


def test_everything_that_an_update_depends_on_is_in_the_context():
    """But for what is a member's own, whose range is in it: so others told otherwise stay masked."""
    theta = flatten(TASK.build_model())
    same = ORDER.context(theta)
    assert ORDER.for_part(ClientPart(0.5, 0.5)).context(theta) == same
    other_training = replace(ORDER.training, learning_rate=0.51)
    others = [
        replace(ORDER, smallest_norm=0.5),
        replace(ORDER, smallest_weight=0.5),
        replace(ORDER, largest_weight=2.0),
        replace(ORDER, round_index=1),
        replace(ORDER, training=other_training),
        replace(ORDER, noise="discrete_gaussian"),
        replace(ORDER, work="other"),
        replace(ORDER, task=replace(TASK, seed=1)),
    ]
    contexts = {each.context(theta) for each in others} | {ORDER.context(theta + 1), same}
    assert len(contexts) == len(others) + 2
