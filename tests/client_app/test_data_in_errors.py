"""Tests of nodes whose update is huge or not finite: no answer reveals this fact or an error's text."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import gdpfed.clients.works.update as client_update
from gdpfed.clients.messages import DATA, ORDER_RECORD, PLAIN, ROUND, RUN, THETA_RECORD
from gdpfed.clients.update import encoded_anyway
from gdpfed.federation.node.journal import read_journal
from secagg import Encoding, EncodingError
from testing.local_grid import IN_CLEAR, LocalGrid, ask, make_context, refusals
from testing.small_runs import run
from tests.client_app.test_plain import ORDER, THETA, parameters

SECRET = 1234567.890625
ODD = {
    "a huge coordinate": [SECRET * 1e6],
    "not a number": [float("nan"), SECRET],
    "infinite": [float("-inf"), SECRET],
    "too long to square": [1e200, SECRET],
}


def odd_update(kind):
    def train(model, theta, data, training, *, rng, device, loss, added):
        update = torch.zeros(len(theta), dtype=torch.float64)
        update[5 : 5 + len(ODD[kind])] = torch.tensor(ODD[kind], dtype=torch.float64)
        return update

    return train


def answer(clipping_norm: float) -> tuple[Any, np.ndarray]:
    """Return the bytes of one node's unmasked update, and the numbers that the bytes encode."""
    numbers = parameters(clipping_norm=clipping_norm, noise_multiplier=0.0)
    record = ConfigRecord({DATA: numbers.to_bytes(), RUN: "run", ROUND: 0})
    order, theta = ConfigRecord(dict(ORDER.to_scalars())), ArrayRecord({THETA_RECORD: Array(THETA)})
    content = RecordDict({PLAIN: record, ORDER_RECORD: order, THETA_RECORD: theta})
    answered = ask(f"train.{PLAIN}", content, make_context(3, IN_CLEAR))[PLAIN]
    assert answered.keys() == {DATA}
    return answered[DATA], numbers.encoding(10).decode(np.frombuffer(answered[DATA], "<u4"))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("clipping_norm", [1.0, np.inf])
def test_an_odd_update_is_sent_as_zero_or_on_the_edge(monkeypatch, kind, clipping_norm):
    """A node sends zeros if an update's squared norm is not finite, and clips a huge finite coordinate."""
    monkeypatch.setattr(client_update, "local_update", odd_update(kind))
    data, sent = answer(clipping_norm)
    assert len(data) == 4 * len(THETA)
    assert not np.delete(sent, 5).any()
    limit = parameters(clipping_norm=np.inf, noise_multiplier=0.0).encoding(10)
    edge = limit.coordinate_limit * limit.grid if clipping_norm == np.inf else 1.0
    assert sent[5] == (pytest.approx(edge, rel=1e-6) if kind == "a huge coordinate" else 0.0)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_update_under_masks_looks_like_any_other(tmp_path, monkeypatch, kind):
    """With masks, the answer for an update that is huge or not finite has the same length as all others."""
    monkeypatch.setattr(client_update, "local_update", odd_update(kind))
    grid = LocalGrid(6)
    overrides = ["dataset.num_clients=6", "privacy.sampling_rate=1", "method=fedavg", "run.num_rounds=1"]
    (record,) = run(tmp_path / "run", overrides, grid=grid)
    assert (sum(record.survivors), refusals(grid)) == (6, [])
    answers: list[Any] = [reply["mask"] for reply in grid.replies if "mask" in reply]
    lengths = {len(each[DATA]) for each in answers}
    assert len(lengths) == 1


def test_an_update_that_cannot_be_encoded_at_all_is_zero(monkeypatch):
    def refuse(encoding, update):
        raise EncodingError(f"coordinate 5 is {SECRET}")

    monkeypatch.setattr(Encoding, "encode", refuse)
    steps = encoded_anyway(torch.ones(len(THETA), dtype=torch.float64), parameters().encoding(10))
    assert steps.dtype == np.int64
    assert not steps.any()


@pytest.mark.parametrize("error", [EncodingError, ValueError, RuntimeError, MemoryError])
def test_no_error_in_data_leaves_a_node(monkeypatch, tmp_path, error, caplog):
    """If training fails, a node sends zeros; its own log has the error's text, its journal only the type."""

    def fail(order, client_id):
        raise error(f"coordinate 5 is {SECRET}")

    monkeypatch.setattr("gdpfed.clients.works.update.batch_generator", fail)
    numbers, node = parameters(), {**IN_CLEAR, "session-file": str(tmp_path / "kept")}
    record = ConfigRecord({DATA: numbers.to_bytes(), RUN: "run", ROUND: 0})
    order, theta = ConfigRecord(dict(ORDER.to_scalars())), ArrayRecord({THETA_RECORD: Array(THETA)})
    content = RecordDict({PLAIN: record, ORDER_RECORD: order, THETA_RECORD: theta})
    with caplog.at_level(logging.ERROR):
        answered = ask(f"train.{PLAIN}", content, make_context(3, node))[PLAIN]
    assert answered.keys() == {DATA}
    assert not np.frombuffer(answered[DATA], "<u4").any()
    assert str(SECRET) in caplog.text
    (line,) = read_journal(tmp_path / "kept")
    said = f"{error.__name__}: zeros were sent, under the noise of any other"
    assert (line.asked, line.run, line.cause, line.reason) == (PLAIN, "run", "zeros", said)
