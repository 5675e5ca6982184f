"""Tests of servers that did not begin a run: they learn nothing of it, nor of a client's rounds."""

import json
from unittest.mock import patch

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.messages import ADVERTISE, PLAIN, RoundOfRun
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget, known_data
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.known_data import keep_data
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.sum_stages import StageRequest, answer_stage
from gdpfed.methods import make_method
from gdpfed.privacy.ledgers.terms import terms_of
from secagg.protocol.sum_messages import AdvertiseRequest
from testing.secagg_sums import make_parameters

CLIENTS, SECRET = 8, "0123456789abcdef"
PLAN = make_method(
    load(
        [
            *("dataset=digits", f"dataset.num_clients={CLIENTS}", "method=dp_fedavg", "privacy.budgets=[8]"),
            *("privacy.against=outsiders", "run.num_rounds=4", "privacy.sampling_rate=0.5"),
        ]
    )
).plan
TERMS = terms_of(PLAN, 0, "run", dropout_tolerance=0.2, corrupt_tolerance=0.0)
DRAWN = (0, 2)


@pytest.fixture
def settings(tmp_path):
    own = {"partition-id": 0, "epsilon": 9.0, "delta": 1e-5, "ledger": str(tmp_path / "ledger.json")}
    budget.begin((settings := NodeSettings(own)).budgets, TERMS, SECRET)
    with locked_ledger(tmp_path / "ledger.json") as file:
        for index in DRAWN:
            file.ledger.charge("run", index)
        file.save()
    return settings


def ask(settings, secret, index, run="run", stage=ADVERTISE):
    norm, stddev = PLAN.groups[0].clipping_norm, PLAN.groups[0].noise_stddev
    label = f"{run}/1/round {index}/all"
    parameters = make_parameters(CLIENTS, label=label, clipping_norm=norm, noise_multiplier=stddev / norm)
    data = AdvertiseRequest(parameters, 0, corrects=False).encode()
    request = StageRequest(data, RoundOfRun(run, index), secret=secret)
    return answer_stage(stage, lambda: request, Node(settings, {}, "1"))


def test_the_runs_own_server_is_answered(settings):
    for index in DRAWN:
        with pytest.raises(PrivacyError, match=f"round {index} of run run has had its update already"):
            ask(settings, SECRET, index)
    assert ask(settings, SECRET, 1)


@pytest.mark.parametrize("secret", ["", "f" * 16])
@pytest.mark.parametrize("stage", [ADVERTISE, PLAIN])
def test_another_server_gets_one_line_for_every_round_and_for_a_run_that_never_began(settings, secret, stage):
    """A server without the run's secret gets the same error for every round and for unknown runs."""
    if stage == PLAIN:
        settings = NodeSettings({**settings.config, "secagg-mode": "off"})
    for run, index in (("run", 0), ("run", 1), ("unknown", 0)):
        with pytest.raises(
            PrivacyError, match=f"^run {run} was never begun with this client: begin it first$"
        ):
            ask(settings, secret, index, run, stage)


def test_another_server_cannot_begin_a_run_again_under_its_own_secret(settings):
    budget.begin(settings.budgets, TERMS, SECRET)
    for secret in ("", "f" * 16):
        with pytest.raises(BudgetRefusedError, match=r"put the server's client_history\.json back"):
            budget.begin(settings.budgets, TERMS, secret)


def test_a_run_of_before_there_were_secrets_goes_on(settings, tmp_path):
    with locked_ledger(tmp_path / "ledger.json") as file:
        file.ledger.run("run").secret = ""
        file.save()
    assert ask(settings, "f" * 16, 1)


def test_free_runs_of_a_server_do_not_make_a_node_forget_the_data_of_runs_in_its_ledger(tmp_path):
    path = tmp_path / "own.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x_train=rng.random((6, 64), np.float32), y_train=np.arange(6) % 2)
    own = {"partition-id": 0, "epsilon": 9.0, "ledger": str(tmp_path / "ledger.json"), "data": str(path)}
    settings = NodeSettings(own)
    budget.begin(settings.budgets, TERMS)
    keep_data(settings, "run")
    for number in range(3):
        with patch.object(known_data, "MOST_RUNS", 1):
            keep_data(settings, f"free {number}")
    assert set(json.loads((tmp_path / "ledger.json.data").read_text())["runs"]) == {"run", "free 2"}
