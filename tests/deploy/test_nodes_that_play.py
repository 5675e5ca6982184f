"""Tests of nodes that play FedPCS's game: each starts with its own privacy cost weight and first budget."""

import argparse
import json

import pytest

from conf.load import load
from deploy import local
from deploy.federation import Federation, TopologyError
from deploy.local import with_types
from deploy.options import add_federation, federation_of, federation_words
from testing.flower_traces import FlowerTraces
from tests.deploy.compose_promises import told
from tests.deploy.test_local import TIMEOUT_SECONDS, start

PLAYING = Federation.of(4, (30.0,), unit="record").playing((0.2, 0.6), (2.0, 4.0, 6.0), 2)


def test_types_go_to_the_nodes_in_turn():
    assert [(node.aversion, node.first_budget) for node in PLAYING.nodes] == [
        (0.2, 2.0),
        (0.6, 4.0),
        (0.2, 6.0),
        (0.6, 2.0),
    ]
    words = told(PLAYING, 1)
    assert "epsilon-record=${NODE_1_EPSILON:-30.0} " in words
    assert (
        "aversion=${NODE_1_AVERSION:-0.6} first-budget=${NODE_1_FIRST_BUDGET:-4.0} max-participations=2"
    ) in words
    plain = told(Federation.of(3, (1.0,)))
    assert "aversion" not in plain
    assert "max-participations" not in plain


def test_the_words_of_a_federation_make_it_again():
    parser = argparse.ArgumentParser()
    add_federation(parser)
    assert federation_of(parser.parse_args(federation_words(PLAYING))) == PLAYING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (((0.2,), ()), "give both or neither"),
        (((1.0,), (2.0,)), "--aversions has 1; each must lie in \\(0, 1\\)"),
        (((0.2,), (0.0,)), "--first-budgets has 0"),
        (((), (), 0), "--max-participations 0 must be at least 1"),
    ],
)
def test_what_no_node_can_play_with_is_refused(words, said):
    with pytest.raises(TopologyError, match=said):
        Federation.of(3, (1.0,), unit="record").playing(*words)
    with pytest.raises(TopologyError, match="give --unit record"):
        Federation.of(3, (1.0,)).playing((0.2,), (2.0,))


def test_the_game_is_planned_before_the_nodes_start(capsys):
    words = ["method=fedpcs", "privacy=record_level", "method.types=clients", "dataset.num_clients=4"]
    config = load(with_types(PLAYING, words))
    assert config.method.types == "configuration"
    assert config.method.aversions == [0.2, 0.6, 0.2, 0.6]
    assert with_types(PLAYING, ["method=gdpfed"]) == ["method=gdpfed"]
    assert local.main(["--unit", "record", "method=fedpcs", "method.types=clients"]) == 2
    assert "give --aversions and --first-budgets" in capsys.readouterr().err


@pytest.mark.slow
def test_nodes_play_train_and_pay(tmp_path):
    traces, directory = FlowerTraces(tmp_path), tmp_path / "run"
    nodes = ("--nodes", "3", "--unit", "record", "--budgets", "30")
    types = ("--aversions", "0.2,0.6", "--first-budgets", "2,4,6", "--max-participations", "2")
    run = ("method=fedpcs", "method.types=clients", "method.budget_scale=0.01", "method.most_announcements=3")
    process = start(traces, *nodes, *types, *run, "privacy.sampling_rate=1.0", f"run.directory={directory}")
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, out + err
    assert out.count("(2 of 2 updates sent)") == 3
    assert "Every budget held, and the files agree." in out
    assert len(json.loads((directory / "rewards.json").read_text())["clients"]) == 3
    assert traces.left() == []
