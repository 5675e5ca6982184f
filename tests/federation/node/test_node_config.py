"""Tests of a node's settings: unknown settings and wrong values are refused before any charge."""

from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from client_app.carried import settings_of
from gdpfed.clients.messages import CLIENT_RECORD, DATA, JOIN, REFUSAL, ROUND, RUN
from gdpfed.federation.node.node_config import NodeConfigError, SumLimits, check_settings
from gdpfed.federation.node.node_file import HEARD, JOURNAL
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.federation.node.stand_ins import settings_in
from secagg import RemoteProtocolError, SumParameters
from testing.local_grid import ask, make_context

LIMITS = [field.name.replace("_", "-") for field in fields(SumLimits)]
GOOD = {
    "partition-id": 3,
    "num-partitions": 24,
    "epsilon": 3,
    "delta": 1e-5,
    "ledger": "ledger.json",
    "max-epsilon-against-server": 9.0,
    "raised-from": 0.5,
    "max-participations": 4,
    "min-separation": 2,
    "aversion": 0.3,
    "first-budget": 2,
    "data": "examples.npz",
    "secagg-mode": "curious",
    "session-file": "sessions.json",
    "session-seconds": 3600,
    "minimum-cohort": 3,
    "minimum-survivors": 2,
    "minimum-bare-survivors": 2,
    "minimum-noise-multiplier": 0.5,
    "minimum-own-noise": 0,
    "maximum-dropout-fraction": 0.25,
    "corrupt-fraction": 0.1,
    "sparse-corrupt-fraction": 0.2,
    "maximum-clients": 1000,
    "maximum-neighbours": 100,
    "maximum-dimension": 1_000_000,
    "maximum-clipping-norm": 10,
}


def test_every_known_setting_passes():
    check_settings(GOOD)
    assert GOOD.keys() >= set(LIMITS)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("minimum_cohort", "minimum-cohort"),
        ("secag-mode", "secagg-mode"),
        ("maximum-dropout", "maximum-dropout-fraction"),
        ("partition_id", "partition-id"),
    ],
)
def test_an_unknown_setting_names_the_nearest_known_one(key, nearest):
    with pytest.raises(
        NodeConfigError, match=f"^{key} is not a setting of a node; the nearest one is {nearest}$"
    ):
        check_settings({**GOOD, key: 1})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("partition-id", True, "a whole number from 0"),
        ("partition-id", -1, "a whole number from 0"),
        ("partition-id", "3", "a whole number from 0"),
        ("epsilon", float("nan"), "a number above 0"),
        ("epsilon", float("inf"), "a number above 0"),
        ("epsilon", 0, "a number above 0"),
        ("epsilon", "3.0", "a number above 0"),
        ("delta", 1.0, "a number above 0 and below 1"),
        ("ledger", 3, "a path in quotes"),
        ("secagg-mode", "Active", "one of off, curious, active"),
        ("secagg-mode", True, "one of off, curious, active"),
        ("session-seconds", 0, "a number above 0"),
        ("minimum-cohort", 1, "a whole number from 2"),
        ("minimum-cohort", 3.0, "a whole number from 2"),
        ("minimum-noise-multiplier", float("inf"), "a finite number, 0 or more"),
        ("minimum-noise-multiplier", float("nan"), "a finite number, 0 or more"),
        ("maximum-dropout-fraction", 1.0, "a number from 0 to below 1"),
        ("maximum-clipping-norm", 0, "a number above 0"),
        ("maximum-clients", False, "a whole number from 2"),
    ],
)
def test_a_value_that_a_setting_does_not_take_is_refused(key, value, wanted):
    with pytest.raises(NodeConfigError, match=f"^{key} is {value!r}: give {wanted}"):
        check_settings({**GOOD, key: value})


@pytest.mark.parametrize("setting", [{"minimum-chort": 3}, {"minimum-cohort": "3"}])
def test_such_a_node_joins_nothing_and_answers_no_stage(tmp_path, setting):
    """A node with a wrong setting refuses to join and to answer, and writes neither ledger nor session."""
    own = {"epsilon": 3.0, "ledger": str(tmp_path / "ledger.json"), **setting}
    context = make_context(0, own)
    (refusal,) = ask(f"query.{JOIN}", RecordDict({CLIENT_RECORD: ConfigRecord()}), context).values()
    assert str(refusal["reason"]).startswith(next(iter(setting)))
    stage = RecordDict({"advertise": ConfigRecord({DATA: b"", RUN: "run", ROUND: 0})})
    answer = ask("train.advertise", stage, context)["advertise"]
    assert str(answer[REFUSAL]).startswith(next(iter(setting)))
    assert list(tmp_path.iterdir()) == []
    assert len(context.state) == 0


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        ({"y_train": np.array(list("abcd"))}, {}, "data cannot be used, see the log of this client"),
        ({"y_train": np.zeros((4, 1), int)}, {}, "data cannot be used"),
        ({"x_train": np.zeros((4, 9))}, {}, "data cannot be used"),
        ({"x_train": np.full((4, 10), "1")}, {}, "data cannot be used"),
        ({}, {"minimum-cohort": 7}, "minimum-cohort is 7, and this run has 6 clients"),
        ({}, {"ledger": "/nowhere/ledger.json"}, "ledger="),
    ],
)
def test_what_every_round_would_fail_of_is_found_when_the_node_joins(tmp_path, arrays, settings, words):
    data, ledger = tmp_path / "own.npz", tmp_path / "ledger.json"
    own = {"epsilon": 3.0, "ledger": str(ledger), "data": str(data)}
    fields: dict[str, Any] = {"input-shape": [10], "input-dtype": "float32", "clients": 6}
    question = RecordDict({CLIENT_RECORD: ConfigRecord(fields)})
    # Labels of classes that nobody has are no reason: a server could ask for them one after the other.
    fitting: dict[str, Any] = {"x_train": np.zeros((4, 10)), "y_train": np.array([0, 1, 2, 10**6])}
    np.savez(data, **fitting)
    (answer,) = ask(f"query.{JOIN}", question, make_context(0, own)).values()
    assert answer["client_id"] == 0
    ledger.unlink()
    ledger.with_name(f"{ledger.name}.lock").unlink()
    np.savez(data, **fitting | arrays)
    (refusal,) = ask(f"query.{JOIN}", question, make_context(0, own | settings)).values()
    assert words in str(refusal["reason"])
    noted = {f"{ledger.name}{suffix}" for suffix in (JOURNAL, HEARD)}
    assert {path.name for path in tmp_path.iterdir()} - noted == {data.name}


@pytest.mark.parametrize(
    ("sum_of", "refusal"),
    [
        ({"num_clients": 2, "threshold": 1}, "num_clients 2 is below 3"),
        ({"num_clients": 3, "threshold": 2}, None),
        (
            {"num_clients": 1000, "threshold": 2, "num_neighbours": 2},
            "num_neighbours 2 with threshold 2",
        ),
        ({"num_clients": 1000, "threshold": 40, "num_neighbours": 64, "graph_corrupt": 100}, None),
    ],
)
def test_a_node_that_was_told_nothing_takes_no_sum_that_hides_nothing(sum_of, refusal):
    base = {"label": "test", "dropout_tolerance": 0, "dimension": 10, "clipping_norm": 1.0}
    parameters: Any = {**base, "noise_multiplier": 0.0, **sum_of}
    policy = NodeSettings({"partition-id": 0}).policy
    with pytest.raises(RemoteProtocolError, match=f"{refusal}.*own limit$") if refusal else nullcontext():
        policy.check(SumParameters(**parameters))


def test_the_limits_of_the_operator_are_those_of_every_sum():
    limits = {key: GOOD[key] for key in LIMITS}
    policy = settings_of(make_context(0, limits)).policy
    assert {key: getattr(policy, key.replace("-", "_")) for key in LIMITS} == limits


@pytest.mark.parametrize(
    "places",
    [
        {"ledger": "/state/ledger.json", "session-file": "/state/../state/ledger.json"},
        {"ledger": "~/ledger.json", "session-file": str(Path.home() / "ledger.json")},
        {"ledger": "/state/ledger.json", "ledger-copy": "/copy", "session-file": "/copy/ledger.copy"},
        {"ledger": "/copy/ledger.copy", "ledger-copy": "/copy/"},
        {"identity-file": "/state/identity.key", "session-file": "/state/identity.key"},
    ],
)
def test_no_file_of_a_node_takes_the_place_of_another(places):
    """A session file is begun anew where it is damaged, and would forget what a ledger has spent."""
    with pytest.raises(NodeConfigError, match="^[a-z-]+ and [a-z-]+ are one file, /.*: give each a file of"):
        check_settings({"epsilon": 3.0, **places})


@pytest.mark.parametrize(
    ("places", "words"),
    [
        *(
            ({"ledger": "/s/l", "session-file": f"/s/l{end}"}, f"session-file and the ledger's {end} are")
            for end in (".lock", ".journal", ".journal.old", ".heard", ".roster", ".data", ".data.lock")
        ),
        (
            {"ledger": "/s/l", "identity-file": "/s/l.sessions"},
            "identity-file and the ledger's .sessions are",
        ),
        ({"ledger": "/s/s.lock", "session-file": "/s/s"}, "ledger and the session-file's .lock are"),
        ({"session-file": "/s/s", "identity-file": "/s/s.roster"}, "and the session-file's .roster are"),
        ({"ledger": "/s/l", "session-file": "/s/l.sessions"}, None),
        ({"ledger": "/s/l", "session-file": "/s/l.lock.x", "identity-file": "/s/l.key"}, None),
    ],
)
def test_no_file_of_a_node_takes_the_place_of_one_beside_another(places, words):
    budget = {"epsilon": 3.0} if "ledger" in places else {}
    with pytest.raises(NodeConfigError, match=words) if words else nullcontext():
        check_settings({**budget, **places})


@pytest.mark.parametrize(
    "left_over",
    [
        *("max-epsilon-against-server = 1.0", "max-epsilon-against-server: 1.0", "max-participations"),
        *("minimum-own-noise= 0.5", "minimum-own-noise =0.5", "'minimum-own-noise'"),
    ],
)
def test_a_word_that_is_no_setting_is_refused_and_not_dropped(left_over):
    words = f"partition-id=0 {left_over}\n epsilon=1.0\tledger='/state/of node/ledger.json' "
    with pytest.raises(NodeConfigError, match=rf"cannot be read \({left_over} is not of the form name=value"):
        settings_in(words)
    assert settings_in(words.replace(left_over, ""))["ledger"] == "/state/of node/ledger.json"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, None),
        ({"epsilon": 1.0, "ledger": "/state/ledger.json"}, "/state/ledger.json.sessions"),
        ({"session-file": "/state/open"}, "/state/open"),
        ({"ledger": "/state/ledger.json", "session-file": "/state/open"}, "/state/open"),
    ],
)
def test_sessions_lie_beside_the_ledger_unless_a_file_is_named(settings, name):
    path = settings_of(make_context(0, settings)).session_file
    assert (path and str(path)) == name
