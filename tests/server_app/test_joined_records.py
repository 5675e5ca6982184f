"""Tests of joining a message's small Flower records into one, which the node splits again."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from client_app.carried import parted
from gdpfed.clients.messages import JOINED, JOINED_BYTES, MASK, REFUSAL_RECORD
from gdpfed.federation.node.sessions import MASKED_SLOT
from server_app.exchange import joined
from testing.local_grid import ask, make_context

STAGE = ConfigRecord({"data": b"\0\1", "run": "a/b", "round": 3})
ORDER = ConfigRecord({"seed": 2**40, "private": True, "norms": [1.5, 2.5]})


def array(numbers):
    return ArrayRecord({"theta": Array(numbers)})


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8"])
def test_records_that_came_as_one_are_what_they_were(dtype):
    theta = np.arange(650).astype(dtype)
    content = RecordDict({"mask": STAGE, "order": ORDER, "theta": array(theta)})
    one = joined(content)
    assert [*one] == [JOINED]
    assert len(get_all_nested_objects(one)) == 2
    again = parted(one)
    assert {name: dict(record) for name, record in again.config_records.items()} == {
        "mask": dict(STAGE),
        "order": dict(ORDER),
    }
    np.testing.assert_array_equal(again.array_records["theta"]["theta"].numpy(), theta)
    assert again.array_records["theta"]["theta"].dtype == content.array_records["theta"]["theta"].dtype
    assert dict(parted(content)) == dict(content)


@pytest.mark.parametrize(
    "large",
    [
        array(np.zeros(JOINED_BYTES, np.int8)),
        array(np.zeros((2, 3))),
        ConfigRecord({"x": bytes(1 << 17)}),
        ConfigRecord(),
    ],
)
def test_what_is_large_or_has_several_axes_or_no_field_travels_by_itself(large):
    sent = joined(RecordDict({"mask": STAGE, "theta": large}))
    assert {*sent} == {JOINED, "theta"}
    assert sent["theta"] is large
    assert {*parted(sent)} == {"mask", "theta"}


@pytest.mark.parametrize(
    "fields",
    [
        {"mask": b""},
        {"theta/theta/<f4": b"123"},
        {"theta/theta/O": bytes(8)},
        {"theta/theta/<f4": 1, "theta/x": 2},
    ],
)
def test_what_no_server_joins_so_is_refused_and_ends_the_session(fields):
    context = make_context(0)
    context.state[MASKED_SLOT] = ConfigRecord({"x": 1})
    answer = ask(f"train.{MASK}", RecordDict({JOINED: ConfigRecord(fields)}), context)
    assert [*answer] == [REFUSAL_RECORD]
    assert "see the log of the client" in answer[REFUSAL_RECORD]["reason"]
    assert MASKED_SLOT not in context.state
