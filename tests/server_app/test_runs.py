"""Tests of whole runs through the real server and client handlers, without Flower's runtime between."""

import json
import math

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from gdpfed.errors import ConfigError, RunError
from gdpfed.methods import METHODS
from testing.local_grid import FIRST_NODE_ID, IN_CLEAR, LocalGrid, refusals
from testing.small_runs import ACTIVE, FIRST_SEEN, NUM_CLIENTS, TRAINING, files_in, final_model, run


# Of mr_mtl the server reads every update, noised by its client, which goes with no node.
@pytest.mark.parametrize("method", [name for name in TRAINING if name != "mr_mtl"])
def test_every_method_trains_and_leaves_a_complete_directory(tmp_path, method):
    unit = METHODS.get(method).unit or "client"
    overrides = [f"method={method}", f"privacy.unit={unit}"]
    if method == "fedpcs":  # Its cost is one Gaussian, and only this accountant has that.
        overrides += ["privacy.accountant=pld", "method.local=update"]
    if method == "sampled_fedavg":  # Its weights are unequal, and nothing is clipped.
        overrides.append("secagg=off")
    records = run(tmp_path / "run", overrides, pictures=method == "gdpfed_plus")
    assert [record.round for record in records] == [1, 2, 3]
    own = {"rewards.json"} if method == "fedpcs" else set()
    own.add("at_chance.json")  # What so short a run learns may be no more than the most frequent class.
    assert {path.name for path in (tmp_path / "run").iterdir()} - own == {
        "config.yaml",
        "plan.json",
        "rounds.jsonl",
        "ledger.json",
        "model",
        "accuracy.png",
        "budget.png",
        "assignment.json",
        "data_cut.json",
        "model_card.md",
        "seal.json",
        "tensorboard",
    }
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["method"]["name"] == method
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    for group, spent in zip(plan["groups"], records[-1].spent_epsilon, strict=True):
        assert spent <= group["epsilon"] if plan["private"] else spent is None
    assert np.isfinite(final_model(tmp_path / "run")).all()


def test_secure_aggregation_and_plain_sum_train_the_same_model(tmp_path):
    run(tmp_path / "mask", ["method=fedavg"])
    run(tmp_path / "plain", ["method=fedavg", "secagg=off"])
    masked, plain = final_model(tmp_path / "mask"), final_model(tmp_path / "plain")
    np.testing.assert_array_equal(masked, plain)
    assert np.abs(masked).max() > 0.01


def test_sessions_are_gone_from_every_context_after_a_run(tmp_path):
    grid = LocalGrid(NUM_CLIENTS)
    run(tmp_path / "run", grid=grid)
    assert all(len(context.state) == 0 for context in grid.contexts.values())


def test_nothing_leaves_a_client_but_session_bytes(tmp_path):
    grid = LocalGrid(NUM_CLIENTS)
    run(tmp_path / "run", grid=grid)
    shapes = {(name, tuple(record)) for reply in grid.replies for name, record in reply.items()}
    stages = ("advertise", "share", "mask", "unmask")
    joined = ("client", ("client_id", "wire", "versions"))
    assert shapes == {joined, *((stage, ("data",)) for stage in stages)}


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_a_client_may_vanish_at_any_stage(tmp_path, stage):
    grid = LocalGrid(NUM_CLIENTS, vanishes=lambda kind, client: kind == stage and client == 3)
    overrides = [
        "method=dp_fedavg",
        "privacy.sampling_rate=1",
        "run.num_rounds=1",
        "secagg.dropout_tolerance=0.1",
    ]
    (record,) = run(tmp_path / "run", overrides, grid=grid)
    assert record.failures == {}
    assert record.survivors == [NUM_CLIENTS if stage == "unmask" else NUM_CLIENTS - 1]


def test_a_round_that_loses_too_many_changes_nothing_and_is_charged(tmp_path):
    gone = lambda kind, client: kind == "mask" and client < 5  # noqa: E731
    overrides = ["method=dp_fedavg", "privacy.sampling_rate=1"]
    grid = LocalGrid(NUM_CLIENTS, vanishes=gone)
    records = run(tmp_path / "run", overrides, grid=grid, without_a_sum=True)
    assert [record.survivors for record in records] == [[0], [0], [0]]
    assert (tmp_path / "run" / "model_card.md").exists()
    assert "7 clients are left, 11 are needed" in records[0].failures["group 0"]
    assert len({record.accuracy for record in records}) == 1
    spent = [record.spent_epsilon[0] or 0.0 for record in records]
    assert 0 < spent[0] < spent[1] < spent[2]


def test_a_run_that_goes_on_has_no_card_of_its_pause(tmp_path):
    overrides, card = ["method=dp_fedavg", "privacy.sampling_rate=1", "run.num_rounds=2"], []
    run(tmp_path / "run", [*overrides, "run.stop_after_round=1"])

    def watch(kind, client):
        if kind == "mask":
            card.append((tmp_path / "run" / "model_card.md").exists())

    assert (tmp_path / "run" / "model_card.md").exists()
    run(tmp_path / "run", overrides, grid=LocalGrid(NUM_CLIENTS, vanishes=watch), resume=True)
    assert card == [False] * NUM_CLIENTS
    assert (tmp_path / "run" / "model_card.md").exists()


def test_a_cohort_below_the_minimum_is_filled_up_and_charged(tmp_path):
    """A cohort below the minimum is filled up with clients that send zeros, and its round is charged."""
    everybody = ["method=dp_fedavg", "privacy.sampling_rate=0.5", f"secagg.minimum_cohort={NUM_CLIENTS}"]
    records = run(tmp_path / "run", everybody)
    assert [record.survivors for record in records] == [[NUM_CLIENTS]] * 3
    assert all(0 < sum(record.filled) < NUM_CLIENTS for record in records)
    assert (records[-1].spent_epsilon[0] or 0.0) > 0


def test_a_group_that_is_always_below_the_minimum_is_refused_before_anything_is_written(tmp_path):
    unequal = ["privacy.group_shares=[0.25,0.25,0.5]", "privacy.sampling_rate=1"]
    with pytest.raises(
        RunError, match="group 0: at most 3 clients are drawn a round, always fewer than secagg"
    ):
        run(tmp_path / "run", ["method=gdpfed", "secagg.minimum_cohort=5", *unequal])
    assert not (tmp_path / "run").exists()


def test_a_client_that_got_another_model_is_left_out(tmp_path):
    def other_model(kind, client, content):
        if kind == "mask" and client == 5:
            theta = content["theta"]["theta"].numpy().copy()
            theta[0] += 1
            content["theta"] = ArrayRecord({"theta": Array(theta)})
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=other_model)
    overrides = ["method=dp_fedavg", "privacy.sampling_rate=1", "run.num_rounds=1"]
    (record,) = run(tmp_path / "run", overrides, grid=grid)
    assert record.survivors[0] == NUM_CLIENTS - 1
    assert record.failures == {}


def test_a_node_refuses_what_its_own_limits_forbid(tmp_path):
    grid = LocalGrid(NUM_CLIENTS, node_config={"minimum-noise-multiplier": 50.0})
    (record, *_) = run(tmp_path / "run", ["method=dp_fedavg"], grid=grid, without_a_sum=True)
    assert record.survivors == [0]
    assert "50, this client's own limit" in refusals(grid)[-1]


def test_too_few_nodes_name_the_flag(tmp_path):
    with pytest.raises(RunError, match="11 SuperNodes for 12 clients.*num-supernodes=12"):
        run(tmp_path / "run", grid=LocalGrid(NUM_CLIENTS - 1))
    assert not (tmp_path / "run").exists()


def test_a_client_that_no_node_is_is_missed_with_the_reason(tmp_path):
    grid = LocalGrid(NUM_CLIENTS)
    grid.contexts[FIRST_NODE_ID + 1].node_config["partition-id"] = 0
    with pytest.raises(RunError, match="says it is client 1 .*; two SuperNodes say they are client 0"):
        run(tmp_path / "run", grid=grid)


def test_an_occupied_directory_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("keep me")
    with pytest.raises(RunError, match="is not empty"):
        run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious.txt"]


def test_data_that_is_not_there_is_refused_before_anything_is_written(tmp_path):
    from gdpfed.errors import LearningError

    with pytest.raises(LearningError, match="plays.txt"):
        run(tmp_path / "run", ["dataset=shakespeare", f"dataset.path='{tmp_path}/plays.txt'"])
    assert not (tmp_path / "run").exists()


def test_resume_and_directory_together_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="leave out run.directory"):
        run(tmp_path / "run", ["run.resume=elsewhere"])


@pytest.mark.parametrize("setting", ["simulation.precision=bf16", "simulation.backend=ray"])
def test_what_only_a_simulation_has_is_refused(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"{setting} is for gdpfed simulate"):
        run(tmp_path / "run", [setting])
    assert not (tmp_path / "run").exists()


def test_learning_rate_decays_by_round(tmp_path):
    rates = []

    def listen(kind, client, content):
        if kind == "plain":
            rates.append((content["order"]["round_index"], content["order"]["learning_rate"]))
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=listen, node_config=IN_CLEAR)
    run(tmp_path / "run", ["method=fedavg", "secagg=off"], grid=grid)
    assert dict(rates) == pytest.approx({t: 0.5 * math.pow(0.99, t) for t in range(3)})


@pytest.mark.parametrize(
    "overrides",
    [
        [*ACTIVE],
        ["secagg.complete_below=8", "privacy.sampling_rate=1", "method=dp_fedavg"],
        ["privacy.noise=discrete_gaussian"],
        ["privacy.noise=discrete_gaussian", "secagg=off"],
        ["privacy.noise=discrete_gaussian", "secagg.noise_levels=2", "secagg.dropout_tolerance=0.2"],
        [*ACTIVE, "privacy.noise=discrete_gaussian", "secagg.noise_levels=2"],
        ["secagg.modulus_bits=32"],
        ["secagg.suite=chacha20"],
    ],
)
def test_every_kind_of_sum_trains(tmp_path, overrides):
    grid = LocalGrid(NUM_CLIENTS, node_config=IN_CLEAR if "secagg=off" in overrides else FIRST_SEEN)
    records = run(tmp_path / "run", ["run.num_rounds=1", *overrides], grid=grid)
    assert sum(records[0].survivors) >= 3
    assert refusals(grid) == []
    assert all(size in (0.0, 4.0) or 2 < size < 4 for size in records[0].upload_bytes) or (
        overrides == ["secagg.modulus_bits=32"]
    )


def test_a_changed_roster_is_refused(tmp_path):
    def swap(kind, client, content):
        if kind == "advertise" and client == 2 and content["advertise"]["round"] == 1:
            content = RecordDict(dict(content))
            keys = content["roster"]["keys"]
            content["roster"] = ConfigRecord({**content["roster"], "keys": keys[::-1]})
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=swap, node_config=FIRST_SEEN)
    overrides = [*ACTIVE, "method=dp_fedavg", "privacy.sampling_rate=1", "run.num_rounds=2"]
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.survivors for record in records] == [[NUM_CLIENTS], [NUM_CLIENTS - 1]]
    assert refusals(grid) == [
        "stage advertise, from the server: the roster of identities has changed since this node joined"
    ]


def test_a_node_that_wants_signatures_refuses_a_sum_without(tmp_path):
    grid = LocalGrid(NUM_CLIENTS, node_config={"secagg-mode": "active", **FIRST_SEEN})
    alone = ["run.num_rounds=1", "method=dp_fedavg"]
    records = run(tmp_path / "run", alone, grid=grid, without_a_sum=True)
    assert records[0].survivors == [0]
    assert "mode curious is less than active" in refusals(grid)[-1]


def test_noise_levels_need_noise_in_integers(tmp_path):
    with pytest.raises(ConfigError, match="use privacy.noise=discrete_gaussian"):
        run(tmp_path / "run", ["secagg.noise_levels=4"])


def test_no_secret_lies_in_the_run_directory(tmp_path):
    drawn: list[bytes] = []

    def listen(kind, client, content):
        for context in grid.contexts.values():
            drawn.extend(
                data for record in context.state.values() if isinstance(data := record["data"], bytes)
            )
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=listen)
    run(tmp_path / "run", ["run.num_rounds=1"], grid=grid)
    written = b"".join(files_in(tmp_path / "run").values())
    assert drawn
    windows = {state[at : at + 16] for state in set(drawn) for at in range(0, len(state) - 16, 16)}
    # Runs of zeros and the label, with the run's name, stand in a saved session as well as in any file.
    secret_like = {window for window in windows if len(set(window)) > 12 and not window.isascii()}
    assert len(secret_like) > NUM_CLIENTS
    assert not any(window in written or window.hex().encode() in written for window in secret_like)
