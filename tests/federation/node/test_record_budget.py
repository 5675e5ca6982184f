"""Tests of a node's budget for its records, which is separate from the budget for the client itself."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from client_app.carried import settings_of
from gdpfed.clients import record_work
from gdpfed.clients.messages import (
    CLIENT_RECORD,
    DATA,
    JOIN,
    ORDER_RECORD,
    PLAIN,
    RECORDS,
    REFUSAL_RECORD,
    ROUND,
    RUN,
    TERMS_RECORD,
    THETA_RECORD,
    UNIT,
    RoundOfRun,
)
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget, sum_stages
from gdpfed.federation.node.known_data import dealt_by
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_config import NodeConfigError, check_settings
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.learning.data import DataSource
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import LocalWindows
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.record_steps import RecordSteps
from secagg import SumParameters
from testing.local_grid import ask, make_context

ONE = groups_from_shares(4, (2.0,))
OWN_NOISE = RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(5, 5, 5), noise_multiplier=2.0)
ONE_NOISE = RecordTraining(
    batch_rate=0.05, clipping_norm=1.0, schedule=(1, 1, 1), noise_multiplier=2.0, work="gradient_sum"
)
SHARED_OUT = RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(5, 5, 5))
TASK = "the digest of what is trained"
OFFERED: Any = {"dropout_tolerance": 0.0, "corrupt_tolerance": 0.0, "task": TASK}
DP_SGD = terms_of(record_plan(groups=ONE, num_rounds=3, training=OWN_NOISE), 0, "run", **OFFERED)
IN_CLEAR = terms_of(
    record_plan(groups=ONE, num_rounds=3, training=OWN_NOISE, sums_hidden=False), 0, "run", **OFFERED
)
DP_SUM = terms_of(
    record_plan(groups=ONE, num_rounds=3, training=ONE_NOISE, most_records=100), 0, "run", **OFFERED
)
GROUPED: Any = terms_of(
    record_plan(
        groups=ONE,
        num_rounds=3,
        training=SHARED_OUT,
        record_budgets=[(0.5, 0.7), (1.0, 0.2), (2.0, 0.1)],
    ),
    0,
    "run",
    **OFFERED,
)
OF_CLIENTS = terms_of(
    make_plan(groups=ONE, num_rounds=2, sampling_rate=1.0, clipping_norm=1.0, delta=1e-5),
    0,
    "of clients",
    **OFFERED,
)
FIRST = RoundOfRun("run", 0)


@pytest.fixture
def own(tmp_path):
    """Return a function that makes a node's budgets from settings, with one ledger."""

    def make(**settings):
        told = {name.replace("_", "-"): value for name, value in settings.items()}
        return settings_of(make_context(0, told | {"ledger": str(tmp_path / "ledger.json")})).budgets

    return make


def parameters(**changes: Any) -> SumParameters:
    values: dict[str, Any] = {
        "label": "test",
        "num_clients": 6,
        "threshold": 3,
        "dropout_tolerance": 0,
        "dimension": 10,
        "clipping_norm": float("inf"),
        "noise_multiplier": 0.0,
    }
    return SumParameters(**values | changes)


def order(work="dp_sgd", noise="gaussian", weight=1.0, **steps) -> Any:
    values: dict[str, Any] = {
        "num_steps": 5 if work == "dp_sgd" else 1,
        "batch_rates": (0.05,),
        "clipping_norm": 1.0,
        "noise_multiplier": 2.0 if work == "dp_sgd" else 0.0,
    }
    records = RecordSteps(**values | steps)
    task = SimpleNamespace(digest=TASK)
    return SimpleNamespace(
        **{"work": work, "noise": noise, "weight": weight, "clipping_norm": 9.0},
        **{"records": records, "task": task, "announced": "", "taps": ()},
        **{"fills": False, "may_fill": False},
    )


def replaced(**changes) -> Any:
    """Return the server's training instruction with some fields changed."""
    return SimpleNamespace(**vars(order()) | changes)


def test_each_unit_has_its_own_budget_and_they_share_one_ledger(own):
    both = own(epsilon=3, epsilon_record=2.0, delta=1e-6, delta_record=1e-7)
    assert (both["client"].epsilons, both["client"].delta) == ((3.0,), 1e-6)
    assert (both["record"].epsilons, both["record"].delta) == ((2.0,), 1e-7)
    assert both["client"].ledger == both["record"].ledger
    only = own(epsilon_record="0.5,1,4", delta=1e-6)
    assert set(only) == {"record"}
    assert (only["record"].epsilons, only["record"].epsilon) == ((0.5, 1.0, 4.0), 0.5)
    assert only["record"].delta == 1e-6


@pytest.mark.parametrize("value", [0, -1.0, "", "a", "1,", "2,1", "1,1", "0,1", "1,inf", "nan", True])
def test_a_budget_that_is_no_number_or_no_ascending_ones_is_refused(value):
    with pytest.raises(NodeConfigError, match="^epsilon-record is .*: give a number above 0, or several in"):
        check_settings({"epsilon-record": value})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon-record": 2.0}, "epsilon-record is given without ledger: a budget of the node's own needs"),
        ({"ledger": "x.json"}, "ledger is given without epsilon: .* needs epsilon or epsilon-record"),
        (
            {"ledger": "x.json", "epsilon": 1.0, "delta-record": 1e-6},
            "delta-record is given without epsilon-record",
        ),
    ],
)
def test_settings_without_those_they_need_are_refused(settings, words):
    with pytest.raises(NodeConfigError, match=words):
        _ = settings_of(make_context(0, settings)).budgets


@pytest.mark.parametrize(
    ("settings", "terms", "words"),
    [
        (
            {"epsilon": 3.0},
            DP_SGD,
            "this run protects a record, and this node has a budget for a client only: give it one for both, "
            'as in --node-config "epsilon-record=2.0 ..."',
        ),
        (
            {"epsilon_record": 3.0},
            OF_CLIENTS,
            "this run protects a client, and this node has a budget for a record only: give it one for both, "
            'as in --node-config "epsilon=2.0 ..."',
        ),
    ],
)
def test_a_run_in_a_unit_without_a_budget_is_refused(own, settings, terms, words):
    for question in (budget.consider, budget.begin):
        with pytest.raises(PrivacyError) as refusal:
            question(own(**settings), terms)
        assert str(refusal.value) == words
    assert not own(**settings)[("client" if "epsilon" in settings else "record")].ledger.exists()


def test_a_run_is_charged_to_the_budget_of_its_unit_alone(own):
    budgets = own(epsilon=3.0, epsilon_record=1.0)
    budget.begin(budgets, DP_SGD)
    budget.begin(budgets, OF_CLIENTS)
    with locked_ledger(budgets["client"].ledger) as file:
        alone = file.ledger.epsilon(1e-5), file.ledger.epsilon(1e-5, unit="record")
    assert 1.0 < alone[0] <= 3.0
    assert 0 < alone[1] <= 1.0


def test_what_does_not_fit_is_refused_and_the_figures_stay_with_the_node(own, caplog):
    budgets = own(epsilon_record=0.3)
    with pytest.raises(PrivacyError, match="^this run does not fit this client's own budget$"):
        budget.begin(budgets, DP_SGD)
    assert "15 steps at batch rate 0.05 with noise multiplier 2 would take group 0 of" in caplog.text
    assert "above its own budget of 0.3" in caplog.text


@pytest.mark.parametrize(
    ("epsilons", "fits"),
    [("0.5,1,2", True), (2.0, True), ("0.49,1,2", False), ("0.5,0.9,2", False), (1.9, False)],
)
def test_every_group_of_records_has_to_fit_its_budget(own, epsilons, fits):
    budgets = own(epsilon_record=epsilons)
    if fits:
        budget.begin(budgets, GROUPED)
        return
    with pytest.raises(PrivacyError, match="does not fit this client's own budget"):
        budget.begin(budgets, GROUPED)


def test_records_that_are_all_alike_have_to_fit_the_smallest_budget(own):
    budget.consider(own(epsilon_record="2,9"), DP_SGD)
    with pytest.raises(PrivacyError, match="does not fit"):
        budget.consider(own(epsilon_record="0.3,9"), DP_SGD)
    with pytest.raises(PrivacyError, match="makes 3 groups of a client's records, .* has 2 budgets"):
        budget.consider(own(epsilon_record="2,9"), GROUPED)


@pytest.mark.parametrize(("shares", "seed"), [((0.7, 0.2, 0.1), 1), ((0.2, 0.7, 0.1), 0), ((), 0)])
def test_records_stay_in_the_groups_that_were_agreed(own, shares, seed):
    """A node refuses an instruction that assigns its records to other budget groups than agreed."""
    budgets = own(epsilon_record="0.5,1,2")
    budget.begin(budgets, GROUPED)
    asked = order(batch_rates=GROUPED.records.batch_rates, noise_multiplier=GROUPED.step_noise)
    asked.record_groups = shares, seed
    with pytest.raises(PrivacyError, match="assigned to other groups than under the terms"):
        budget.charge(budgets, FIRST, parameters(), asked)
    asked.record_groups = (0.7, 0.2, 0.1), 0
    budget.charge(budgets, FIRST, parameters(), asked)


def node_with(folder, x, client=0, **more):
    np.savez(folder / "own.npz", x_train=x, y_train=np.arange(len(x)) % 2)
    settings = {"data": str(folder / "own.npz"), "epsilon-record": "1,2,4"}
    return make_context(client, settings | {"ledger": str(folder / "ledger.json")} | more)


ROWS = np.random.default_rng(3).random((40, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "client", "fits"),
    [
        (ROWS, 0, True),
        (np.vstack([ROWS, ROWS[:1]]), 0, False),
        (ROWS[::-1], 0, False),
        (ROWS, 1, False),
    ],
    ids=["as before", "a row more", "another order", "known by another number"],
)
def test_a_second_run_over_records_that_were_dealt_otherwise_counts_at_the_largest_rate(
    tmp_path, caplog, x, client, fits
):
    """If a node's rows, row order or client number changed, a second run is charged more and so refused."""
    begun = query("begin", offered(GROUPED), node_with(tmp_path, ROWS))
    assert REFUSAL_RECORD not in begun
    again = query("offer", offered(replace(GROUPED, run="again")), node_with(tmp_path, x, client))
    assert (REFUSAL_RECORD not in again) == fits
    assert ("above its own budget of 1 " in caplog.text) != fits


@pytest.mark.parametrize("rows", [ROWS, np.vstack([ROWS, ROWS[:1]])])
@pytest.mark.parametrize("when", ["before the round", "after the charge"])
def test_records_that_are_dealt_anew_within_a_run_have_the_least_rate(tmp_path, monkeypatch, rows, when):
    """After a node's examples change during a run, all its records are sampled at the lowest group rate."""
    form, shares = ExampleForm((2,), "float32", 2), (0.7, 0.2, 0.1)
    task = Task(DataSource("npz"), "linear", "iid", 4, seed=0, form=form, record_shares=shares)
    node, rates = node_with(tmp_path, ROWS, **{"secagg-mode": "off"}), GROUPED.records.batch_rates
    terms = replace(GROUPED, sums_hidden=False, task=task.digest)
    assert REFUSAL_RECORD not in query("begin", offered(terms), node)
    steps = RecordSteps(num_steps=5, batch_rates=rates, clipping_norm=1.0, noise_multiplier=terms.step_noise)
    asked = TrainingOrder(
        task, LocalTraining(1, 4, 0.5, 0.0), round_index=0, device="cpu", work="dp_sgd", records=steps
    )
    drawn_at: list[Any] = []
    holder_of, charge = record_work.holder_of, budget.charge_in_clear

    def seen(order, *words):
        drawn_at.append(order.records.batch_rates)
        return holder_of(order, *words)

    def charged(*words):
        charge(*words)
        if when == "after the charge":
            node_with(tmp_path, rows)

    monkeypatch.setattr(record_work, "holder_of", seen)
    monkeypatch.setattr(budget, "charge_in_clear", charged)
    if when == "before the round":
        node_with(tmp_path, rows)
    theta = np.zeros(task.dimension, np.float32)
    numbers = parameters(clipping_norm=float("inf"), noise_multiplier=0.0, dimension=len(theta)).to_bytes()
    content: Any = {
        PLAIN: ConfigRecord({DATA: numbers, RUN: "run", ROUND: 0}),
        ORDER_RECORD: ConfigRecord(dict(asked.to_scalars())),
        THETA_RECORD: ArrayRecord({THETA_RECORD: Array(theta)}),
    }
    answer = ask(f"train.{PLAIN}", RecordDict(content), node)
    assert DATA in answer[PLAIN], answer
    assert drawn_at == [rates if rows is ROWS else (min(rates),) * len(rates)]


def offered(terms):
    """Return a server's message whose terms set `dealt_by`, a field that only a node may set."""
    return {TERMS_RECORD: ConfigRecord(dict(replace(terms, dealt_by="the same").to_scalars()))}


def test_where_a_column_says_the_groups_its_declaration_decides_and_no_row(tmp_path):
    def dealt(values, rows):
        declared = {
            "label": {"column": "sick", "classes": ["no", "yes"]},
            "numeric": {"age": [0, 100]},
            "record_group": {"column": "consent", "values": values},
        }
        (tmp_path / "columns.yaml").write_text(json.dumps(declared))
        (tmp_path / "own.csv").write_text("age,sick,consent\n" + rows)
        return dealt_by(NodeSettings({"partition-id": 0, "data": str(tmp_path / "own.csv")}), GROUPED)

    first = dealt(["strict", "open"], "30,no,strict\n40,yes,open\n")
    assert first == dealt(["strict", "open"], "50,yes,open\n30,no,strict\n40,yes,open\n")
    assert first != dealt(["open", "strict"], "30,no,strict\n40,yes,open\n")


def test_records_of_one_group_and_nodes_without_data_need_no_hash(tmp_path):
    settings = settings_of(node_with(tmp_path, ROWS))
    assert dealt_by(settings, DP_SGD) == dealt_by(NodeSettings({"partition-id": 0}), GROUPED) == ""
    assert len(dealt_by(settings, GROUPED)) == 64


def test_steps_are_on_the_disk_before_anything_leaves_and_run_out(own):
    budgets = own(epsilon_record=2.0)
    budget.begin(budgets, DP_SGD)
    for index in range(3):
        budget.check_sum(budgets, RoundOfRun("run", index), parameters())
        budget.charge(budgets, RoundOfRun("run", index), parameters(), order())
        with locked_ledger(budgets["record"].ledger) as file:
            assert file.ledger.runs[0].steps == [5] * (index + 1)
    with pytest.raises(PrivacyError, match="round 2 of run run has had its update already"):
        budget.check_sum(budgets, RoundOfRun("run", 2), parameters())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replaced(task=SimpleNamespace(digest="fewer classes")), "number of classes .* than the terms"),
        (replaced(may_fill=True), "members may send zeros in a sum without secret Poisson sampling"),
        (replaced(announced="other rewards"), "another announcement of the game than the terms"),
        (order(num_steps=16), "round 0 of run run would take 16 steps, and 15 of the 15 of its terms"),
        (order(batch_rates=(0.06,)), "batch rates 0.06 are not within the 0.05 of the terms"),
        (order(batch_rates=(0.05, 0.01)), "batch rates 0.05, 0.01 are not within the 0.05 of the terms"),
        (order(noise_multiplier=1.9), "noise multiplier 1.9 of a step is below the 2 of the terms"),
        (order("gradient_sum"), "the server asks for gradient_sum where the terms say dp_sgd"),
        (replaced(work="dp_sgd", records=None), "the server asks for dp_sgd where the terms say dp_sgd"),
        (replaced(work="update", records=None), "the server asks for update where the terms say dp_sgd"),
    ],
)
def test_an_order_beyond_the_terms_is_refused_and_costs_nothing(own, asked, words):
    budgets = own(epsilon_record=2.0)
    budget.begin(budgets, DP_SGD)
    with pytest.raises(PrivacyError, match=words):
        budget.charge(budgets, FIRST, parameters(), asked)
    with locked_ledger(budgets["record"].ledger) as file:
        assert (file.ledger.runs[0].rounds, file.ledger.runs[0].steps) == ([], [])


NOISED = {"clipping_norm": 5.0, "noise_multiplier": 0.4}


def test_a_sum_of_gradients_has_one_step_and_the_noise_of_the_terms(own):
    budgets = own(epsilon_record=2.0)
    budget.begin(budgets, DP_SUM)
    budget.charge(budgets, FIRST, parameters(**NOISED), order("gradient_sum"))
    with locked_ledger(budgets["record"].ledger) as file:
        assert file.ledger.runs[0].steps == [1]


@pytest.mark.parametrize(
    ("numbers", "asked", "words"),
    [
        ({"noise_multiplier": 0.39}, order("gradient_sum"), "noise of standard deviation 1.95 is below 2"),
        # Without clipping and without noise, C sigma is infinity times zero.
        (
            {"noise_multiplier": 0.0, "clipping_norm": float("inf")},
            order("gradient_sum"),
            "noise of standard deviation 0 is below 2",
        ),
        ({"dropout_tolerance": 1}, order("gradient_sum"), "a tolerance of 1 dropouts is above 0"),
        ({}, order("gradient_sum", num_steps=2), "a sum over 2 steps, and its noise is for one step"),
        (
            {},
            order("gradient_sum", clipping_norm=1.1),
            "could move the sum by 1.1, above the clipping norm 1",
        ),
        ({}, order("gradient_sum", weight=1.5), "could move the sum by 1.5, above the clipping norm 1"),
        ({}, order("gradient_sum", weight=float("nan")), "could move the sum by nan"),
        ({}, order("gradient_sum", noise="discrete_gaussian"), "the server asks for discrete_gaussian noise"),
        ({}, order("dp_sgd"), "the server asks for dp_sgd where the terms say gradient_sum"),
    ],
)
def test_a_sum_of_gradients_beyond_the_terms_is_refused(own, numbers, asked, words):
    budgets = own(epsilon_record=2.0)
    budget.begin(budgets, DP_SUM)
    with pytest.raises(PrivacyError, match=words):
        budget.charge(budgets, FIRST, parameters(**NOISED | numbers), asked)


def test_a_limit_against_the_server_counts_the_steps_that_were_taken(own, caplog):
    budgets = own(epsilon_record=2.0, max_epsilon_against_server=0.25)
    budget.begin(budgets, DP_SGD)
    budget.check_sum(budgets, FIRST, parameters())
    with pytest.raises(PrivacyError, match="one more update does not fit this client's own limit"):
        budget.charge(budgets, FIRST, parameters(), order())
    budget.charge(budgets, FIRST, parameters(), order(num_steps=1))
    assert "against the server, above its own limit of 0.25" in caplog.text


def test_only_steps_that_are_private_by_themselves_leave_in_clear(own):
    budgets = own(epsilon_record=2.0)
    budget.begin(budgets, IN_CLEAR)
    budget.charge_in_clear(budgets, FIRST, parameters(), order())
    with pytest.raises(PrivacyError, match="the server would see single updates"):
        budget.check_in_clear(own(epsilon=2.0), 0, IN_CLEAR)


def test_an_update_in_clear_is_judged_by_the_terms_that_are_charged(own, monkeypatch):
    """A node sends no unmasked update if the run's terms change to masked sums before the update leaves."""
    budgets = own(epsilon_record=2.0)
    settings = SimpleNamespace(budgets=budgets, policy=SimpleNamespace(check=lambda _: None))
    budget.begin(budgets, IN_CLEAR)

    def prepare_slowly(*_):
        with locked_ledger(budgets["record"].ledger) as file:
            del file.ledger._runs["run"]
            file.save()
        budget.begin(budgets, DP_SUM)
        return order("gradient_sum"), None

    monkeypatch.setattr(sum_stages, "_order_and_model", prepare_slowly)
    monkeypatch.setattr(sum_stages, "_contributor", lambda *_: SimpleNamespace(check=lambda *_: None))
    monkeypatch.setattr(sum_stages, "update_in_clear", lambda *_: pytest.fail("an update has left in clear"))
    node: Any = SimpleNamespace(settings=settings)
    asked = sum_stages.StageRequest(parameters(**NOISED).to_bytes(), FIRST)
    with pytest.raises(PrivacyError, match="the server would see single updates"):
        sum_stages.plain(asked, node)
    with locked_ledger(budgets["record"].ledger) as file:
        assert not any(run.rounds for run in file.ledger.runs)


def test_terms_that_a_ledger_could_not_read_again_are_not_agreed_to(own):
    budgets = own(epsilon_record=2.0)
    with pytest.raises(PrivacyError, match="run run promises no epsilon, and its charges have one"):
        budget.begin(budgets, replace(DP_SGD, epsilon=float("inf")))
    budget.check_ledger(budgets["record"])


def test_an_edge_that_is_trusted_sees_updates_only_if_the_terms_and_so_the_ledger_say_so(own):
    budgets = own(epsilon_record=2.0, edge_trusted=True)
    budget.begin(budgets, DP_SUM)
    with pytest.raises(PrivacyError, match="the server would see single updates"):
        budget.check_in_clear(budgets, 0, DP_SUM)
    budget.begin(budgets, replace(DP_SUM, run="in clear", sums_hidden=False))
    with locked_ledger(budgets["record"].ledger) as file:
        budget.check_in_clear(budgets, 0, file.ledger.terms("in clear"))


def test_a_sum_of_gradients_in_clear_is_never_agreed_to(own):
    with pytest.raises(PrivacyError, match="the server would see single updates"):
        budget.begin(own(epsilon_record=2.0), replace(DP_SUM, sums_hidden=False))


def query(name, records, context):
    return ask(f"query.{name}", RecordDict(records), context)


def test_terms_that_do_not_say_what_is_trained_are_not_agreed_to(tmp_path):
    own = {"epsilon-record": 2.0, "ledger": str(tmp_path / "ledger.json")}
    terms = {TERMS_RECORD: ConfigRecord(dict(replace(DP_SGD, task="").to_scalars()))}
    for query_type in ("offer", "begin"):
        (refusal,) = query(query_type, terms, make_context(0, own)).values()
        assert "the terms do not say what is trained" in str(refusal["reason"])


@pytest.mark.parametrize(("settings", "agrees"), [({}, False), ({"secagg-mode": "off"}, True)])
def test_a_node_that_sends_nothing_in_clear_says_so_before_the_run(tmp_path, settings, agrees):
    own = {"epsilon-record": 2.0, "ledger": str(tmp_path / "ledger.json"), **settings}
    terms = {TERMS_RECORD: ConfigRecord(dict(IN_CLEAR.to_scalars()))}
    answer = query("offer", terms, make_context(0, own))
    if agrees:
        assert not answer
    else:
        (refusal,) = answer.values()
        assert "was not started with secagg-mode=off" in str(refusal["reason"])


def joining(unit, **settings):
    fields: dict[str, Any] = {"input-shape": [3], "input-dtype": "float32", "clients": 6, UNIT: unit}
    context = make_context(0, {name.replace("_", "-"): value for name, value in settings.items()})
    (answer,) = query(JOIN, {CLIENT_RECORD: ConfigRecord(fields)}, context).values()
    return dict(answer)


def test_a_node_says_how_many_records_it_has_where_they_are_protected_and_only_there(tmp_path):
    data = tmp_path / "own.npz"
    np.savez(data, x_train=np.zeros((7, 3)), y_train=np.zeros(7, int))
    told = {"data": str(data), "ledger": str(tmp_path / "ledger.json"), "epsilon": 3, "epsilon_record": "1,2"}
    as_record = joining("record", **told)
    assert (as_record[RECORDS], as_record["epsilon"], as_record["delta"]) == (7, 1.0, 1e-5)
    as_client = joining("client", **told)
    assert (RECORDS in as_client, as_client["epsilon"]) == (False, 3.0)
    # A node without data of its own leaves it to the partition.
    assert joining("record").keys() == {"client_id", "wire", "versions"}


def test_a_party_without_records_joins_no_run_that_protects_records(tmp_path):
    data, ledger = tmp_path / "own.npz", tmp_path / "ledger.json"
    np.savez(data, x_train=np.zeros((0, 3)), y_train=np.zeros(0, int))
    told = {"data": str(data), "ledger": str(ledger), "epsilon_record": 1.0}
    assert joining("record", **told)["reason"] == (
        "data is without records, and this run protects records: bring at least one, or stay away"
    )
    assert not ledger.exists()
    assert "client_id" in joining("client", data=str(data))


def test_a_node_with_a_budget_of_the_other_unit_does_not_join(tmp_path):
    ledger = tmp_path / "ledger.json"
    answer = joining("record", epsilon=3.0, ledger=str(ledger))
    assert "this node has a budget for a client only" in str(answer["reason"])
    assert not ledger.exists()


def test_a_node_with_a_budget_of_the_other_unit_tells_nothing_of_its_records(tmp_path):
    """Nor whether it has any, or whether they can be read."""
    data = tmp_path / "own.npz"
    for content in (np.zeros((7, 3)), np.zeros((0, 3)), np.full((7, 3), "text")):
        np.savez(data, x_train=content, y_train=np.zeros(len(content), int))
        answer = joining("record", epsilon=3.0, ledger=str(tmp_path / "ledger.json"), data=str(data))
        assert "this node has a budget for a client only" in str(answer["reason"])


def test_work_for_groups_of_records_counts_for_each_of_them(own, monkeypatch):
    """What is computed for every group takes as much longer, while the ledger is locked."""
    budgets = own(epsilon_record=8.0)
    monkeypatch.setattr(budget, "locked_ledger", None)
    (charge,) = GROUPED.charges
    grouped: Any = charge.event
    long = replace(charge, event=replace(grouped, num_steps=10**7 // 3 + 1), count=1)
    many = tuple(
        Charge(event=replace(grouped, batch_rate=(1 + index) / 1000), count=1, unit="record")
        for index in range(34)
    )
    for act in (budget.consider, budget.begin):
        with pytest.raises(budget.BudgetRefusedError, match="for 3 groups of records, .* 3333333 at most"):
            act(budgets, replace(GROUPED, charges=(long,), records=replace(GROUPED.records, num_rounds=1)))
        different: Any = replace(GROUPED)
        object.__setattr__(different, "charges", many)
        with pytest.raises(budget.BudgetRefusedError, match="34 kinds of releases for 3 groups .* most 33"):
            act(budgets, different)


def test_terms_that_take_minutes_to_account_are_refused_before_the_ledger_is_locked(own, monkeypatch):
    budgets = own(epsilon=8.0, epsilon_record=8.0)
    monkeypatch.setattr(budget, "locked_ledger", None)
    (charge,) = OF_CLIENTS.charges
    event: Any = charge.event
    many = tuple(replace(charge, event=replace(event, noise_stddev=3 + index / 1000)) for index in range(101))
    window = LocalWindows(
        bound="convex", batch_rate=0.01, noise_multiplier=50.0, num_steps=1001, window_steps=1001
    )
    wide: Any = SimpleNamespace(
        unit="record", run="run", charges=(Charge(event=window, count=1, unit="record"),)
    )
    monkeypatch.setattr(budget, "_refuse_large", lambda terms: None)
    steps: Any = replace(window, num_steps=10**7 + 1, window_steps=1)
    long: Any = SimpleNamespace(**vars(wide) | {"charges": (Charge(event=steps, count=1, unit="record"),)})
    own_steps: Any = DP_SGD.charges[0].event
    shared = Charge(event=replace(own_steps, num_steps=1, parties=10**8), count=3, unit="record")
    for act in (budget.consider, budget.begin):
        with pytest.raises(budget.BudgetRefusedError, match="has 10000001 steps .* 10000000 at most"):
            act(budgets, long)
        with pytest.raises(
            budget.BudgetRefusedError, match="has 300000000 steps .of a person, at all parties together"
        ):
            act(budgets, replace(DP_SGD, charges=(shared,)))
        with pytest.raises(budget.BudgetRefusedError, match="have 101 kinds of releases, .* at most 100"):
            act(budgets, replace(OF_CLIENTS, charges=many))
        with pytest.raises(budget.BudgetRefusedError, match="takes 1001 local steps .* 1000 at most"):
            act(budgets, wide)
