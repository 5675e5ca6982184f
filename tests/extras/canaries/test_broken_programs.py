"""Tests of programs that break their privacy statement: measurements with canaries find each fault.

docs/privacy.md says with what power, by the command that measured it.
"""

import numpy as np
import pytest

import gdpfed.clients.update as node
import gdpfed.simulation.joined_sessions as sessions
from gdpfed.extras.canaries.transcript import WatchedFleet
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from testing.broken_programs import FAULTS, STREAM_FAULTS, broken
from tests.extras.canaries.small_measurements import FEW, MANY, STREAM, measured

USUALLY = 0.95


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    # One cohort for all rounds costs little more than others as long as there are few rounds.
    more = ["dataset.num_rounds=16", "privacy.sampling_rate=0.2"] if "cohort" in fault else []
    with broken(fault):
        measurement = measured([*MANY, *more], runs=12 if "twice" in fault else 6, confidence=USUALLY)
    assert not measurement.passed
    assert max(figure.scale for figure in measurement.final) > 1


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_a_fault_of_a_stream_of_noise_is_found(fault):
    hard = "taps" in fault or "twice" in fault
    with broken(fault):
        measurement = measured([*MANY, *STREAM], runs=6 if hard else 3, confidence=USUALLY)
    assert not measurement.passed


def test_canaries_that_are_asked_too_often_show_it(monkeypatch):
    """Canaries reveal a server that asks clients in three of four rounds instead of the planned two."""

    def draw(self, m, group, round_index, generator):
        places = np.arange(len(group.clients))
        return places[(places + round_index) % 4 != 0]

    monkeypatch.setattr(ScheduledSums, "draw", draw)
    monkeypatch.setattr(ScheduledSums, "broken_turn", lambda *each: "")
    monkeypatch.setattr(ScheduledSums, "most_rounds", lambda *each: None)
    assert not measured([*MANY, *STREAM], runs=6, confidence=USUALLY).passed


def test_a_node_that_does_not_clip_is_found(monkeypatch):
    """Canaries reveal a node that does not clip, if the encoding's check of the update's norm is removed."""

    def rounded(update, encoding):
        return (update / encoding.grid).round().long().numpy()

    monkeypatch.setattr(node, "encoded_anyway", rounded)
    measurement = measured([*MANY, "simulation.engine=sequential"], runs=3)
    assert not measurement.passed


def test_clients_that_add_no_noise_under_masks_are_found(monkeypatch):
    """Canaries reveal clients that send masked updates without noise, if no code checks for the noise."""

    def silent(order, parameters, *more):
        return np.zeros(parameters.dimension, dtype=np.int64)

    monkeypatch.setattr(sessions, "own_noise", silent)
    monkeypatch.setattr("secagg.protocol.client_keys._check_noise", lambda state, noise: None)
    measurement = measured([*FEW, "method=dp_fedavg"], runs=3, confidence=USUALLY)
    assert measurement.sums_revealed > 0
    assert not measurement.passed


def test_a_run_that_reveals_nothing_confirms_nothing(monkeypatch):
    monkeypatch.setattr(WatchedFleet, "sum_wave", lambda self, sums, upcoming: {})
    measurement = measured([*FEW, "method=dp_fedavg"], runs=1)
    assert measurement.sums_revealed == 0
    assert not measurement.passed
    assert not measurement.checks
    assert {each.why for each in measurement.not_computed if each.view == "noise"} == {"no sum came out"}
