"""Tests of a posted price, to which each node answers with an epsilon that no run may exceed."""

import json

import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.messages import CLIENT_RECORD
from gdpfed.errors import RunError
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.node_side import PRICE
from testing.local_grid import FIRST_NODE_ID, refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, ledger_of, run

PRICED = ["privacy.budgets=clients", "privacy.delta=null", "method=gdpfed", "run.num_rounds=2"]
PRICED += ["privacy.price=0.1"]
AVERSIONS = [0.05 + 0.06 * client for client in range(NUM_CLIENTS)]


def priced_grid(folder, epsilon=20.0, **options):
    grid = grid_of_owners(folder, [epsilon] * NUM_CLIENTS, **options)
    for client, aversion in enumerate(AVERSIONS):
        grid.contexts[FIRST_NODE_ID + client].node_config["aversion"] = aversion
    return grid


def said(grid):
    answers = [reply[CLIENT_RECORD] for reply in grid.replies if CLIENT_RECORD in reply]
    return {answer["client_id"]: answer["epsilon"] for answer in answers if "epsilon" in answer}


def test_nodes_say_what_a_price_is_worth_to_them_and_the_plan_is_made_of_it(tmp_path):
    grid = priced_grid(tmp_path / "ledgers")
    # One has less than that left in its own budget, one has no aversion.
    grid.contexts[FIRST_NODE_ID].node_config["epsilon"] = 1.0
    del grid.contexts[FIRST_NODE_ID + 7].node_config["aversion"]
    grid.contexts[FIRST_NODE_ID + 7].node_config["epsilon"] = 3.0
    run(tmp_path / "run", PRICED, grid=grid)
    expected = [epsilon_of_total(min(1.0, 0.1 / (2 * c)), 1e-3) for c in AVERSIONS]
    expected[0], expected[7] = 1.0, 3.0
    assert said(grid) == pytest.approx(dict(enumerate(expected)))
    assert refusals(grid) == []
    groups = json.loads((tmp_path / "run" / "plan.json").read_text())["groups"]
    assert {group["epsilon"] for group in groups} <= set(said(grid).values())
    assert audit_run(tmp_path / "run").passed
    for client in range(NUM_CLIENTS):
        assert ledger_of(tmp_path / "ledgers", client).epsilon(1e-3) <= expected[client]


def test_a_run_that_costs_more_than_the_answer_is_refused(tmp_path):
    """A node refuses a run that costs more than its answer to the price, even if its budget would suffice."""

    def meddle(kind, client, content):
        if kind == "offer" and client == 11:
            content[PRICE]["price"] = 0.001
        return content

    grid = priced_grid(tmp_path / "ledgers", meddle=meddle)
    with pytest.raises(
        RunError, match=r"client 11 .*: this run costs epsilon .* above the .* spends at the server's price"
    ):
        run(tmp_path / "run", PRICED, grid=grid)
    assert ledger_of(tmp_path / "ledgers", 11).runs == ()
    assert not (tmp_path / "run").exists()


def test_a_price_that_is_none_is_not_answered(tmp_path):
    def meddle(kind, client, content):
        if kind == "join":
            content[PRICE]["price"] = -1.0
        return content

    with pytest.raises(RunError, match="a price of -1.0 is posted"):
        run(tmp_path / "run", PRICED, grid=priced_grid(tmp_path / "ledgers", meddle=meddle))
