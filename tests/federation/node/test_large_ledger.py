"""Tests that no server fills a node's disk or its time with runs that cost nothing, or with odd numbers."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms
from tests.federation.node.test_after_any_run import allocated, path, steps, sums, turns

BLANKS = 10_000


@pytest.fixture
def own(tmp_path) -> Any:
    place = tmp_path / "ledger.json"
    return {unit: Budget((8.0,), 1e-5, place) for unit in ("client", "record")}


def free(run: str, length: int = 0) -> Any:
    terms: Any = turns(run, 40.0)
    return replace(terms, schedule="[[4, 1, [[0, 14, 1]]]]" + " " * length)


def runs_in(own):
    with locked_ledger(*own["client"].places) as file:
        return [each.terms.run for each in file.ledger.runs]


@pytest.mark.parametrize("act", [budget.consider, budget.begin])
def test_terms_that_are_too_long_are_refused_before_the_ledger_is_locked(own, act, monkeypatch):
    monkeypatch.setattr(budget, "locked_ledger", None)
    with pytest.raises(budget.BudgetRefusedError, match="terms of run r have .* bytes, .* 256000 at most"):
        act(own, free("r", 256_000))
    alike = path("r", 1e6)
    (charge,) = alike.charges
    many: Any = replace(alike, charges=(replace(charge, count=1),) * 3)
    object.__setattr__(many, "charges", many.charges * 1000)
    with pytest.raises(budget.BudgetRefusedError, match="use fewer rounds, or rounds that are more alike"):
        act(own, many)


def test_a_ledger_that_holds_long_terms_is_still_read():
    ledger = ClientLedger()
    ledger.begin(free("old", 300_000), epsilons=(8.0,), delta=1e-5)
    read = ClientLedger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert read.runs[0].terms == ledger.runs[0].terms


def test_runs_that_cost_nothing_are_forgotten_by_their_length_the_oldest_first(own):
    ledger = ClientLedger()
    for index in range(30):
        ledger.begin(free(f"r{index}", BLANKS), epsilons=(8.0,), delta=1e-5)
    ledger.begin(sums("paid", 40.0), epsilons=(8.0,), delta=1e-5)
    ledger.forget_free(most_bytes=5 * BLANKS)
    names = [each.terms.run for each in ledger.runs]
    assert names == ["r26", "r27", "r28", "r29", "paid"]
    ledger.forget_free(most_bytes=10)
    assert [each.terms.run for each in ledger.runs] == ["r29", "paid"]
    ledger.forget_free(most=0)
    assert len(ledger.runs) == 2


def test_a_node_keeps_a_megabyte_of_runs_that_cost_nothing(own):
    for index in range(6):
        budget.begin(own, free(f"r{index}", 240_000))
    assert runs_in(own) == ["r2", "r3", "r4", "r5"]


def test_a_full_ledger_begins_no_run_and_goes_on_with_those_it_has(own, monkeypatch, caplog):
    budget.begin(own, sums("first", 40.0))
    monkeypatch.setattr(budget, "MOST_LEDGER_BYTES", 100)
    for act in (budget.consider, budget.begin):
        act(own, sums("first", 40.0))
        with pytest.raises(budget.BudgetRefusedError, match="ledger is full: see the node's log"):
            act(own, sums("second", 40.0))
    assert "takes new runs up to 100: keep it, lower the budget by what is spent" in caplog.text
    assert runs_in(own) == ["first"]


@pytest.mark.parametrize("act", [budget.consider, budget.begin])
@pytest.mark.parametrize(
    "terms",
    [
        path("r", 1e300),
        path("r", 1e13),
        steps("r", 1e-300),
        sums("r", 1e-10),
        sums("r", 5.0, clipping_norm=1e300),
        turns("r", 1e-300),
        allocated("r", 1001.0),
        replace(
            sums("r", 5.0),
            charges=(
                Charge(
                    event=SampledGaussian(
                        sampling="poisson",
                        sampling_rate=0.5,
                        group_size=3,
                        noise_stddev=1e300,
                        clipping_norm=1e-300,
                    ),
                    count=1,
                ),
            ),
        ),
    ],
    ids=range(8),
)
def test_noise_that_no_accounting_can_hold_is_refused_in_one_line(own, act, terms):
    with pytest.raises(budget.BudgetRefusedError, match="run r has noise of .* use noise within this range"):
        act(own, terms)


def test_a_block_of_rounds_with_huge_noise_takes_no_memory(own):
    """At a noise of 1e9 norms its losses took 117 GB."""
    event = AllocatedGaussian(block_rounds=2, noise_stddev=1e9, clipping_norm=1.0)
    terms = replace(allocated("r", 5.0), charges=(Charge(event=event, count=1),))
    with pytest.raises(budget.BudgetRefusedError, match="accounts for 1e-09 to 1000"):
        budget.consider(own, terms)


def test_a_work_or_a_kind_that_is_no_text_is_refused_in_one_line():
    saved = steps("r", 5.0).to_scalars()
    records = json.loads(str(saved["records"])) | {"work": ["dp_sgd"]}
    with pytest.raises(PrivacyError, match="the terms' work is .'dp_sgd'.; give the name of a work"):
        Terms.from_scalars(saved | {"records": json.dumps(records)})
    (charge,) = json.loads(str(saved["charges"]))
    charge["event"]["kind"] = ["dp_sgd_steps"]
    with pytest.raises(PrivacyError, match="the kind of the event .* is not known"):
        Terms.from_scalars(saved | {"charges": json.dumps([charge])})
