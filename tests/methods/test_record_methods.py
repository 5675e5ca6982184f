"""Tests of record-level methods in simulation: the sums that they ask for, their steps and noise."""

import json

import numpy as np
import pytest
from scipy import stats

from conf.load import load
from gdpfed.clients.configured import record_counts, task_of
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.learning.models import flatten
from gdpfed.methods import ClientSum, make_method
from gdpfed.methods.dp_sgd import DPSGD
from gdpfed.methods.dp_sum import DPSum
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.simulation import simulate

SIX = (
    "dataset=digits",
    "dataset.num_clients=6",
    "privacy=record_level",
    "privacy.accountant=rdp",
    "simulation.workers=1",
    "run.num_rounds=2",
    "training.local_steps=2",
)
BUDGETS = "privacy.budgets=[1,3,6]"


def configured(method, *overrides):
    return load([*SIX, BUDGETS, f"method={method}", *overrides])


def drawn(method):
    return [np.asarray(group.clients) for group in method.plan.groups]


def test_dp_sgd_weighs_by_records_batches_or_equally():
    counts = record_counts(configured("dp_sgd"))
    method = make_method(configured("dp_sgd"))
    assert isinstance(method, DPSGD)
    assert method.client_weights == pytest.approx(counts / counts.mean())
    equal = make_method(configured("dp_sgd", "method.client_weights=equal"))
    assert isinstance(equal, DPSGD)
    assert equal.client_weights.tolist() == [1.0] * 6
    batches = make_method(configured("dp_sgd", "method.client_weights=batches"))
    assert isinstance(batches, DPSGD)
    rates = [records.batch_rates[0] for records in records_of(batches.plan)]
    expected = counts * np.repeat(rates, 2)
    assert batches.client_weights == pytest.approx(expected / expected.mean())


def test_dp_sum_asks_one_step_under_the_noise_of_one_client():
    method = make_method(configured("dp_sum", "method.heterogeneous=scale", "run.num_rounds=4"))
    assert isinstance(method, DPSum)
    (request,) = method.requests(np.zeros(650, np.float32), 0, drawn(method))
    records = records_of(method.plan)
    for asked, own in zip(request.records or [], np.repeat(np.asarray(records), 2), strict=True):
        assert (asked.num_steps, asked.noise_multiplier) == (1, 0.0)
        assert asked.clipping_norm == own.clipping_norm
        assert request.noise_stddev == pytest.approx(own.noise_multiplier * own.clipping_norm, rel=1e-6)


@pytest.mark.parametrize("name", ["dp_sgd", "dp_sum", "ali_dpfl"])
def test_the_server_learning_rate_multiplies_the_whole_step(name):
    moved = []
    for rate in (0.5, 1.0):
        words = ["privacy.budgets=[1]", f"method.server_learning_rate={rate}"]
        method = make_method(configured(name, *words))
        assert isinstance(method, DPSGD | DPSum)
        moved.append(method.change(ClientSum("all clients", np.ones(650), 6, members=range(6)), 0))
    assert moved[1] == pytest.approx(2 * moved[0])


def test_momentum_of_dp_sum_is_kept_in_checkpoints():
    method = make_method(configured("dp_sum", "training.momentum=0.5", "run.num_rounds=4"))
    assert isinstance(method, DPSum)
    assert method.state_dict() == {}
    method.load_state_dict({"velocity": np.ones(650)})
    assert method.state_dict()["velocity"].sum() == 650
    with pytest.raises(ValueError, match="dp_sum must find its momentum"):
        method.load_state_dict({"other": np.ones(3)})


@pytest.mark.parametrize("secagg", ["pairwise", "off"])
def test_the_noise_of_a_real_sum_is_that_of_the_plan(tmp_path, secagg):
    """If batches are almost always empty, a round changes the model by noise of the planned variance."""
    config = configured(
        "dp_sum",
        "run.stop_after_round=1",
        "privacy.batch_rate=1e-6",
        "privacy.budgets=[1]",
        "method.noise_multiplier=2",
        "training.learning_rate=1.0",
        "training.learning_rate_decay=1.0",
        "secagg=" + secagg,
        "secagg.dropout_tolerance=0",
        f"run.directory={tmp_path / 'run'}",
    )
    simulate(config)
    method = make_method(config)
    assert isinstance(method, DPSum)
    start = flatten(task_of(config).build_model())
    moved = (
        Checkpoint.load(tmp_path / "run").theta.astype(np.float64) - start
    ) * method.expected_batches.sum()
    # Under masks the share of a member does not count, since it knows its own: six add what five must have.
    members = config.dataset.num_clients
    factor = 1.0 if secagg == "off" else members / (members - 1)
    variance = np.sum((moved / 2.0) ** 2) / factor
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(start))
    assert low < variance < high


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("dp_sgd", ["method.heterogeneous=scale"]),
        ("dp_sgd", ["privacy.budgets_of=records", "privacy.group_shares=[0.7,0.2,0.1]"]),
        ("dp_sum", ["secagg=off"]),
        ("ali_dpfl", ["method.rule=budget", "method.noise_multiplier=3", "method.heterogeneous=steps"]),
        ("dp_sgd", ["privacy.sampling_rate=0.5", "dataset.num_clients=20", "privacy.sampling=fixed_size"]),
    ],
    ids=["scale", "groups of records", "in clear", "until spent", "sampled clients"],
)
def test_runs_end_within_every_budget(tmp_path, method, overrides):
    config = configured(method, "run.num_rounds=2", f"run.directory={tmp_path / 'run'}", *overrides)
    simulate(config)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert len(records) == 2
    for group, spent in zip(plan["groups"], records[-1]["spent_epsilon"], strict=True):
        assert 0 < spent <= group["epsilon"]
        for own in group["records"]["groups"]:
            assert own["epsilon_accounted"] <= own["epsilon"]
    card = (tmp_path / "run" / "model_card.md").read_text()
    assert "record-level differential privacy" in card
    assert "Take any client" not in card
    assert "whether a record took part" in card


@pytest.mark.parametrize(
    ("overrides", "error", "reason"),
    [
        (["privacy.unit=client"], ConfigError, "method=dp_sgd protects a record, not privacy.unit=client"),
        (["method=gdpfed"], ConfigError, "method=gdpfed protects a client, not privacy.unit=record"),
        (["privacy.batch_rate=1.5"], ConfigError, "privacy.batch_rate=1.5 must be in"),
        (
            ["privacy.noise=discrete_gaussian"],
            ConfigError,
            "noise=discrete_gaussian does not go with",
        ),
        (["privacy.adjacency=replace_one"], ConfigError, "privacy.adjacency=replace_one does not go with"),
        (["privacy.accountant=theorem1"], PrivacyError, "theorem1 is about sums over sampled clients"),
        (["method.heterogeneous=sometimes"], ConfigError, "method.heterogeneous=sometimes is not known: use"),
        (
            ["method=ali_dpfl", "method.rule=budget"],
            ConfigError,
            "method.rule=budget finds the steps",
        ),
        (
            ["method=ali_dpfl", "method.rule=bound", "method.noise_multiplier=2"],
            ConfigError,
            "method.rule=bound needs method.strong_convexity",
        ),
        (
            ["privacy.budgets_of=records", "privacy.group_shares=[0.5,0.5]"],
            ConfigError,
            "one share for each",
        ),
        (
            ["privacy.budgets_of=records", "privacy.budgets=[5,1,0.1]"],
            PrivacyError,
            r"budgets are \[5.0, 1.0, 0.1\]; they must be strictly increasing, but 1.0 follows 5.0",
        ),
        (
            ["method=ali_dpfl", "method.rule=budget", "method.noise_multiplier=500", "run.num_rounds=20"],
            ConfigError,
            "method.rule=budget plans 500000 steps a round, and a client takes up to 100000",
        ),
        (["privacy.budgets=[1e9]"], PrivacyError, "needs practically no noise"),
    ],
)
def test_what_cannot_be_had_is_one_line(overrides, error, reason):
    chosen = [] if overrides[0].startswith("method=") else ["method=dp_sgd"]
    with pytest.raises(error, match=reason) as caught:
        make_method(load([*SIX, BUDGETS, *chosen, *overrides]))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_numbers_of_records_that_are_not_those_of_the_data_set_are_refused_in_a_simulation(tmp_path):
    said = ["method=dp_sum", "privacy.client_records=[1,2,3,4,5,6]", f"run.directory={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match="says 1 records of client 0, and the data set gives it"):
        simulate(load([*SIX, BUDGETS, *said]))
    assert not (tmp_path / "run").exists()


def test_a_client_without_records_is_named():
    config = load([*SIX, BUDGETS, "method=dp_sum", "privacy.client_records=[100,100,100,100,100]"])
    with pytest.raises(ConfigError, match="has 5 entries for dataset.num_clients=6"):
        make_method(config)
    with pytest.raises(ConfigError, match="has a client without records"):
        load([*SIX, BUDGETS, "method=dp_sum", "privacy.client_records=[100,100,100,100,100,0]"])
