"""Tests of waiting for a submitted run: advice after a failure, required nodes, and the run's name."""

from pathlib import Path

import pytest
from flwr.proto.run_pb2 import RunStatus

from deploy.operate import nodes_to_wait_for, run_name
from deploy.superlink_client import SuperLinkClient, SuperLinkError


def test_a_run_that_broke_off_says_how_it_is_resumed_and_what_it_took(monkeypatch, capsys):
    ended = RunStatus(status="finished", sub_status="failed", details="ServerApp failed")
    monkeypatch.setattr(
        SuperLinkClient, "_lines", lambda self, *words: iter(["Successfully started run 7\n"])
    )
    monkeypatch.setattr(SuperLinkClient, "status", lambda self, run_id: ended)
    words = ["dataset=digits", "run.resume=20260101-federation"]
    with pytest.raises(SuperLinkError) as error:
        SuperLinkClient(Path("home"), "127.0.0.1:1", Path("ca")).follow(["flwr", "run"], run_name(words))
    assert "run.resume=20260101-federation: what its rounds have cost stays" in str(error.value)
    assert "'audit /runs/20260101-federation' says how much" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_training_waits_for_as_many_nodes_as_it_needs():
    assert nodes_to_wait_for(6, ["run.num_rounds=2"]) == 6
    assert nodes_to_wait_for(6, ["run.minimum_nodes=5"]) == 5
    assert nodes_to_wait_for(6, ["run.minimum_nodes=9"]) == 6
    assert nodes_to_wait_for(6, ["run.resume=20260101-federation"]) == 1


def test_a_run_has_the_name_that_it_is_given_or_a_new_one():
    assert run_name(["run.directory=first"]) == "first"
    assert run_name(["run.num_rounds=2"]).endswith("-federation-run")
