"""Tests of waiting for replies to messages, with a clock that moves only when the code sleeps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from gdpfed.federation.server import questions
from gdpfed.federation.server.questions import PATIENCE_SECONDS
from server_app import exchange as replies_module
from server_app.exchange import (
    LONGEST_PAUSE,
    MOST_NAMED,
    PART_OF_THE_WAIT,
    SHORTEST_PAUSE,
    Exchanger,
    named,
    send_and_receive,
)
from testing.local_grid import identify_task


class SlowGrid:
    """A grid that replies to message k after ``seconds[k]``, or never; a message with id None is not sent."""

    def __init__(self, seconds, ids=None):
        self.seconds = seconds
        self.ids = list(range(1, len(seconds) + 1)) if ids is None else ids
        self.now, self.pauses, self.asked = 0.0, [], []

    def push_messages(self, messages):
        assert len(messages) == len(self.ids)
        return [None if each is None else str(each) for each in self.ids]

    def pull_messages(self, message_ids):
        self.asked.append(set(message_ids))
        arrived = [
            each
            for each, seconds in zip(self.ids, self.seconds, strict=True)
            if seconds is not None and seconds <= self.now and str(each) in message_ids
        ]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=str(each))) for each in arrived]

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


def received(grid, monkeypatch, timeout_seconds=60.0, tell_silent=None):
    clock = SimpleNamespace(monotonic=lambda: grid.now, sleep=grid.sleep)
    monkeypatch.setattr(replies_module, "time", clock)
    messages: list[Any] = [object()] * len(grid.ids)
    arrived = send_and_receive(grid, messages, timeout_seconds, tell_silent)
    return [reply.metadata.reply_to_message_id for reply in arrived]


def test_every_reply_is_returned_once_in_the_order_of_arrival(monkeypatch):
    grid = SlowGrid([3.0, 0.0, 1.0])
    assert received(grid, monkeypatch) == ["2", "3", "1"]
    assert grid.asked[0] == {"1", "2", "3"}
    assert grid.asked[-1] == {"1"}


@pytest.mark.parametrize("seconds", [0.2, 5.0, 17.0, 50.0])
def test_a_reply_waits_for_a_twentieth_of_its_time_at_most(monkeypatch, seconds):
    grid = SlowGrid([seconds])
    assert received(grid, monkeypatch) == ["1"]
    assert grid.now - seconds <= max(PART_OF_THE_WAIT * grid.now, SHORTEST_PAUSE)
    assert SHORTEST_PAUSE <= min(grid.pauses) <= max(grid.pauses) <= LONGEST_PAUSE


def test_who_is_silent_ends_the_wait_at_the_timeout_with_what_came(monkeypatch):
    grid = SlowGrid([1.0, None, 100.0])
    assert received(grid, monkeypatch, timeout_seconds=30.0) == ["1"]
    assert 30.0 <= grid.now <= 30.0 + LONGEST_PAUSE


def test_a_reply_that_came_during_the_last_pause_counts(monkeypatch):
    grid = SlowGrid([30.001])
    assert received(grid, monkeypatch, timeout_seconds=30.0) == ["1"]


def test_the_wait_ends_after_the_timeout_and_not_at_it(monkeypatch):
    """A wait ends one pause after its timeout, and takes the replies that have arrived by then."""
    grid = SlowGrid([2 * SHORTEST_PAUSE, 3 * SHORTEST_PAUSE])
    assert received(grid, monkeypatch, timeout_seconds=SHORTEST_PAUSE) == ["1"]
    assert grid.pauses == [SHORTEST_PAUSE] * 2


def test_nobody_waits_for_a_message_that_was_not_sent(monkeypatch):
    grid = SlowGrid([0.0, 0.0], ids=[1, None])
    assert received(grid, monkeypatch) == ["1"]
    assert grid.pauses == []


def test_after_a_minute_of_a_long_wait_the_silent_are_told_once(monkeypatch):
    told: list[Any] = []
    grid = SlowGrid([1.0, None, 100.0, 500.0])
    assert received(grid, monkeypatch, 900.0, told.append) == ["1", "3", "4"]
    assert told == [{"2", "3", "4"}]
    grid = SlowGrid([PATIENCE_SECONDS - LONGEST_PAUSE])
    assert received(grid, monkeypatch, 900.0, told.append) == ["1"]
    assert len(told) == 1


def test_after_a_tenth_of_a_short_wait_the_silent_are_told(monkeypatch):
    told: list[Any] = []
    grid = SlowGrid([8.0, 12.0, 50.0])
    assert received(grid, monkeypatch, 100.0, told.append) == ["1", "2", "3"]
    assert told == [{"2", "3"}]


def test_a_reply_at_the_end_of_the_patience_is_told_of_by_nobody(monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE_SECONDS", SHORTEST_PAUSE)
    told: list[Any] = []
    assert received(SlowGrid([2 * SHORTEST_PAUSE]), monkeypatch, tell_silent=told.append) == ["1"]
    assert told == []
    assert received(SlowGrid([3 * SHORTEST_PAUSE]), monkeypatch, tell_silent=told.append) == ["1"]
    assert told == [{"1"}]


class SilentGrid(SlowGrid):
    """A grid that answers each of Flower's messages with an error, or never."""

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for message, each in zip(messages, ids, strict=True):
            message.metadata.__dict__["_message_id"] = each
        return ids

    def pull_messages(self, message_ids):
        failed = {"has_error": lambda: True, "error": SimpleNamespace(reason="out of memory")}
        return [SimpleNamespace(**vars(each), **failed) for each in super().pull_messages(message_ids)]


def test_the_log_names_the_clients_that_a_stage_waits_for(monkeypatch, caplog):
    grid = SilentGrid([1.0, None, 15.0, None])
    monkeypatch.setattr(replies_module, "time", SimpleNamespace(monotonic=lambda: grid.now, sleep=grid.sleep))
    identify_task()
    contents = {client: RecordDict({"mask": ConfigRecord({})}) for client in (5, 40, 6, 7)}
    exchanger = Exchanger(cast("Grid", grid), {client: 100 + client for client in contents}, 100.0)
    assert exchanger.exchange(contents) == {}
    assert [each.getMessage() for each in caplog.records if each.name == "flwr"] == [
        "stage mask waits for clients 6, 7, 40, after 10 s of at most 100 s",
        "client 5 left in stage mask: out of memory",
        "client 6 left in stage mask: out of memory",
        "stage mask goes on without an answer of clients 7, 40",
    ]


def test_of_many_clients_the_first_are_named():
    assert named([3]) == "client 3"
    assert named(range(MOST_NAMED + 2, 0, -1)) == f"clients {', '.join(map(str, range(1, 21)))} and 2 more"


def test_without_messages_nothing_is_asked(monkeypatch):
    grid = SlowGrid([])
    assert received(grid, monkeypatch) == []
    assert grid.asked == []
