"""Tests of a user's ClientApp under a privacy plan: refused requests, sent data, and client identity."""

import json
import math
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager

from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError, InputError, LearningError, PrivacyError, RunError
from gdpfed.federation.node.stand_ins import StandInError
from gdpfed.flower import GDPFed, private_client
from gdpfed.learning.prediction import load_model
from gdpfed.privacy.ledgers.charged import ChargedSum
from gdpfed.rounds.fleet import Fleet
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, as_grid, refusals
from testing.small_runs import grid_of_owners, ledger_of, nothing_drawn

NUM_CLIENTS = 8
EVERYBODY = (
    *("privacy.sampling_rate=1", "privacy.delta=1e-3", "privacy.accountant=rdp"),
    "secagg.dropout_tolerance=0.3",
)
INITIAL = ArrayRecord({"layer.weight": Array(np.ones((2, 3))), "layer.bias": Array(np.zeros(3, np.float32))})


def own_app(train):
    """Return a ClientApp with this train function, whose evaluation would reveal a secret."""
    app = ClientApp()
    app.train()(train)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"secret": 7})}), reply_to=message)

    return app


def moved_by(step):
    """Return a train function that adds a number to all parameters."""

    def train(message, context):
        new = {name: Array(each.numpy() + step) for name, each in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 7})
        return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

    return train


class ElsewhereApp(ClientApp):
    """An app that runs as if in another process, which does not have the run's initial arrays."""

    def __init__(self, app):
        super().__init__()
        self.app = app

    def __call__(self, message, context):
        with patch.dict("gdpfed.flower.arrays._STARTS", clear=True):
            return self.app(message, context)


def trained(directory, *settings, grid, train=None, app=None, budgets=(3.0,), method="dp_fedavg", **told):
    grid.app = ElsewhereApp(private_client(app or own_app(train or moved_by(0.025)), **told))
    strategy = GDPFed(
        *EVERYBODY,
        f"run.resume={directory}" if directory.exists() else f"run.directory={directory}",
        *settings,
        budgets=budgets,
        num_clients=NUM_CLIENTS,
        num_rounds=3,
        method=method,
        against="outsiders",
    )
    with nothing_drawn():
        return strategy.start(as_grid(grid), INITIAL, train_config=ConfigRecord({"lr": 0.025}))


def test_without_noise_the_arrays_are_those_of_the_function(tmp_path):
    """Without noise, a run returns what the train function computes, with the same names and shapes."""

    def train(message, context):
        count = context.state.get("n", ConfigRecord({"n": 0}))
        context.state["n"] = ConfigRecord({"n": count["n"] + 1})
        context.node_config["partition-id"] = 99
        assert list(message.content["arrays"]) == list(INITIAL)
        assert dict(message.content["config"]) == {"lr": 0.025, "server-round": count["n"] + 1}
        assert message.metadata.message_type == "train"
        return moved_by(0.025)(message, context)

    grid = LocalGrid(NUM_CLIENTS)
    result = trained(tmp_path / "run", grid=grid, train=train, method="fedavg")
    for (name, each), (wanted, first) in zip(result.arrays.items(), INITIAL.items(), strict=True):
        assert (name, each.dtype, each.shape) == (wanted, first.dtype, first.shape)
        np.testing.assert_allclose(each.numpy(), first.numpy() + 3 * 0.025, atol=1e-4)
    assert [each.survivors for each in read_rounds(tmp_path / "run")] == [[NUM_CLIENTS]] * 3


def test_an_update_is_clipped_and_noised_and_nothing_else_leaves(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    result = trained(tmp_path / "run", grid=grid, train=moved_by(1e6))
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    norm, sigma = plan["clipping_norm"], plan["groups"][0]["noise_multiplier"]
    moved = [a.numpy() - b.numpy() for a, b in zip(result.arrays.values(), INITIAL.values(), strict=True)]
    length = np.sqrt(sum((each**2).sum() for each in moved))
    assert length < 3 * (norm + 6 * norm * sigma / NUM_CLIENTS * 3)
    names = {name for reply in grid.replies for name in reply}
    assert names <= {"client", "advertise", "share", "mask", "unmask"}
    assert audit_run(tmp_path / "run").passed
    ledger = ledger_of(tmp_path / "ledgers", 2)
    assert ledger.runs[0].rounds == [0, 1, 2]
    assert audit_node_ledger(tmp_path / "ledgers" / "2.json").passed


def test_a_client_is_its_node_by_number_and_not_by_the_order_of_node_ids(tmp_path):
    epsilons = [1.0 if client < 4 else 5.0 for client in range(NUM_CLIENTS)]
    grid = grid_of_owners(tmp_path / "ledgers", epsilons)
    for node, context in grid.contexts.items():
        context.node_config["partition-id"] = NUM_CLIENTS - 1 - (node - FIRST_NODE_ID)
    trained(tmp_path / "run", grid=grid, budgets="clients", method="gdpfed")
    assignment = json.loads((tmp_path / "run" / "assignment.json").read_text())
    assert assignment["clients"] == [[[4, 8]], [[0, 4]]]
    assert refusals(grid) == []


def test_a_server_that_lowers_the_noise_is_refused_by_everybody(tmp_path, monkeypatch):
    honest = Fleet.parameters
    weaker = lambda *each: replace(p := honest(*each), noise_multiplier=p.noise_multiplier * 0.99)  # noqa: E731
    monkeypatch.setattr(Fleet, "parameters", weaker)
    monkeypatch.setattr(ChargedSum, "check", lambda *each: None)
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    with pytest.raises(RunError, match="rounds has a sum"):
        trained(tmp_path / "run", grid=grid)
    assert all("noise of standard deviation" in reason for reason in refusals(grid))
    assert ledger_of(tmp_path / "ledgers", 0).runs[0].rounds == []


def test_a_server_that_asks_twice_is_refused(tmp_path):
    def again(kind, client, content):
        if kind == "advertise" and client == 5 and content["advertise"]["round"] == 1:
            content["advertise"] = ConfigRecord({**content["advertise"], "round": 0})
        return content

    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, meddle=again)
    trained(tmp_path / "run", grid=grid)
    (reason,) = refusals(grid)
    assert "has had its update already" in reason
    assert ledger_of(tmp_path / "ledgers", 5).runs[0].rounds == [0, 2]


def test_a_server_that_asks_for_another_model_or_work_gets_nothing(tmp_path):
    lies = {3: {"work": "noised_update"}, 5: {}}

    def lie(kind, client, content):
        if kind == "mask" and client in lies:
            order = dict(content["order"])
            task = json.loads(order["task"]) | ({"form": None, "model": "mlp"} if client == 5 else {})
            content["order"] = ConfigRecord({**order, "task": json.dumps(task), **lies[client]})
        return content

    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, meddle=lie)
    trained(tmp_path / "run", "run.stop_after_round=1", grid=grid)
    told = sorted(refusals(grid))
    assert told[0].startswith("noised_update is asked of an edge or an app's own train function"), told
    assert told[1].startswith("the server's model is mlp, and this client trains its app's own"), told
    assert [ledger_of(tmp_path / "ledgers", client).runs[0].rounds for client in (3, 4, 5)] == [[], [0], []]
    assert read_rounds(tmp_path / "run")[0].survivors == [NUM_CLIENTS - 2]


def test_a_dropout_loses_its_own_update_alone(tmp_path):
    grid = LocalGrid(NUM_CLIENTS, vanishes=lambda kind, client: kind == "mask" and client == 3)
    trained(tmp_path / "run", grid=grid)
    assert [each.survivors for each in read_rounds(tmp_path / "run")] == [[NUM_CLIENTS - 1]] * 3


def test_a_run_that_was_killed_goes_on_and_ends_as_it_would_have(tmp_path):
    def killed(kind, client):
        seen.append(kind)
        if kind == "unmask" and seen.count("unmask") > NUM_CLIENTS:
            raise Crash
        return False

    seen: list[str] = []
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, vanishes=killed)
    with pytest.raises(Crash):
        trained(tmp_path / "run", grid=grid)
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    trained(tmp_path / "run", grid=grid)
    assert [sum(each.survivors) for each in read_rounds(tmp_path / "run")] == [8, 0, 8]
    assert audit_run(tmp_path / "run").passed
    assert ledger_of(tmp_path / "ledgers", 2).runs[0].rounds == [0, 1, 2]


def test_a_run_does_not_go_on_from_other_arrays(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [1.0] * 4 + [5.0] * 4)
    directory = tmp_path / "run"
    trained(directory, "run.stop_after_round=1", grid=grid, budgets="clients", method="gdpfed")
    strategy = GDPFed(f"run.resume={directory}", num_clients=NUM_CLIENTS, method="gdpfed", num_rounds=3)
    other = ArrayRecord({name: Array(each.numpy() + 1) for name, each in INITIAL.items()})
    told = ConfigRecord({"lr": 0.025})
    with pytest.raises(RunError, match=r"has dataset\.model_options="):
        strategy.start(as_grid(grid), other, train_config=told)
    with nothing_drawn():
        strategy.start(as_grid(grid), INITIAL, train_config=told)
    assert len(read_rounds(directory)) == 3
    assert ledger_of(tmp_path / "ledgers", 7).runs[0].rounds == [0, 1, 2]
    assert audit_run(directory).passed


def test_a_run_goes_on_with_its_directory_alone(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    directory = tmp_path / "run"
    trained(directory, "run.stop_after_round=1", grid=grid, method="gdpfed_star")
    with nothing_drawn():
        GDPFed(f"run.resume={directory}", "run.stop_after_round=2").start(as_grid(grid), INITIAL)
        again = GDPFed(f"run.resume={directory}", budgets=[3.0], num_clients=NUM_CLIENTS)
        result = again.start(as_grid(grid), INITIAL)
    assert len(read_rounds(directory)) == 3
    assert list(result.arrays) == list(INITIAL)
    assert audit_run(directory).passed


class SpeechlessError(Exception):
    def __str__(self):
        raise SpeechlessError


def told_by_one_that_fails(directory, caplog, **trains):
    """Train a round in which one client fails, check what the server gets, and return what the node says."""
    grid = LocalGrid(NUM_CLIENTS)
    result = trained(directory, "run.stop_after_round=1", grid=grid, method="fedavg", **trains)
    assert refusals(grid) == []
    assert read_rounds(directory)[0].survivors == [NUM_CLIENTS]
    moved = result.arrays["layer.weight"].numpy() - 1
    np.testing.assert_allclose(moved, 0.025 * (NUM_CLIENTS - 1) / NUM_CLIENTS, atol=1e-4)
    (told,) = [each for each in caplog.messages if "zeros are sent in place of this client's own" in each]
    return told


@pytest.mark.parametrize(
    "failure",
    ["raises", "exits", "says nothing", "other arrays", "no arrays", "nothing", "not finite", "an error"],
)
def test_a_function_that_fails_tells_the_server_nothing(tmp_path, failure, caplog):
    def train(message, context):
        if context.node_config["partition-id"] != 4:
            return moved_by(0.025)(message, context)
        if failure == "raises":
            raise ValueError("record 17 is a secret")
        # Neither the error's text nor a device that is left behind decides whether the client answers.
        torch.set_default_device("meta")
        if failure == "says nothing":
            raise SpeechlessError
        if failure == "exits":
            raise SystemExit(17)
        if failure == "nothing":
            return None
        if failure == "an error":
            return private_client(ClientApp())(message, context)
        arrays = {name: Array(np.full(each.shape, np.inf)) for name, each in INITIAL.items()}
        arrays = arrays if failure == "not finite" else {"other": Array(np.ones(2))}
        records = RecordDict({"arrays": ArrayRecord(arrays)})
        return Message(RecordDict() if failure == "no arrays" else records, reply_to=message)

    told = told_by_one_that_fails(tmp_path / "run", caplog, train=train)
    said = {
        "raises": f"failed in {__file__}, line {train.__code__.co_firstlineno + 4} (ValueError: record 17",
        "nothing": "failed (LearningError: it returned None: return a Message)",
        "not finite": "the update holds NaN or infinity: train with a smaller learning rate",
    }
    assert said.get(failure, "the app's train function failed") in told


def of_client_fn(fit, kind=NumPyClient):
    """Return an app that is made of a ``client_fn``, whose client has this fit; `context` goes to it, too."""

    def client_fn(context):
        own = type("Own", (kind,), {"fit": lambda client, *asked: fit(context, *asked)})
        return own().to_client()

    return ClientApp(client_fn)


def test_a_numpy_client_trains_by_its_fit_as_it_is(tmp_path):
    def fit(context, parameters, config):
        assert [each.shape for each in parameters] == [each.shape for each in INITIAL.values()]
        assert config["lr"] == 0.025
        assert config["server-round"] in (1, 2, 3)
        return [each + config["lr"] for each in parameters], 7, {"loss": 0.25}

    result = trained(tmp_path / "run", grid=LocalGrid(NUM_CLIENTS), app=of_client_fn(fit), method="fedavg")
    for (name, each), (wanted, first) in zip(result.arrays.items(), INITIAL.items(), strict=True):
        assert (name, each.dtype, each.shape) == (wanted, first.dtype, first.shape)
        np.testing.assert_allclose(each.numpy(), first.numpy() + 3 * 0.025, atol=1e-4)
    assert [each.survivors for each in read_rounds(tmp_path / "run")] == [[NUM_CLIENTS]] * 3


@pytest.mark.parametrize("failure", ["raises", "one array", "other shapes", "no fit"])
def test_a_client_of_a_client_fn_that_fails_tells_the_server_nothing(tmp_path, failure, caplog):
    def fit(context, *asked):
        if context.node_config["partition-id"] == 4:
            if failure == "raises":
                raise ValueError("record 17 is a secret")
            if failure == "no fit":
                return FitRes(Status(Code.FIT_NOT_IMPLEMENTED, ""), Parameters([], ""), 0, {})
            return ([np.ones(5)] if failure == "one array" else [np.ones(5)] * 2), 7, {}
        if failure == "no fit":
            arrays = [each + 0.025 for each in parameters_to_ndarrays(asked[0].parameters)]
            return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 7, {})
        return [each + 0.025 for each in asked[0]], 7, {}

    app = of_client_fn(fit, Client if failure == "no fit" else NumPyClient)
    told = told_by_one_that_fails(tmp_path / "run", caplog, app=app)
    said = {
        "raises": "(ValueError: record 17",
        "one array": "its fit returned 1 arrays of 2: return all of the model in their order",
        "no fit": "its client says FIT_NOT_IMPLEMENTED: give it a fit",
    }
    assert said.get(failure, "the app's train function failed") in told


def test_what_no_budget_pays_for_is_refused_unless_it_is_called_public():
    grid = LocalGrid(1)
    (context,) = grid.contexts.values()
    for kind in ("evaluate", "train", "query", "train.other"):
        asked = Message(RecordDict(), FIRST_NODE_ID, kind)
        with pytest.raises(
            StandInError, match=f"^{kind} is asked of a private client, and the answer would be"
        ) as caught:
            private_client(own_app(moved_by(1.0)))(asked, context)
        assert ("name it in public=" in str(caught.value)) == (kind != "train")
    asked = Message(RecordDict(), FIRST_NODE_ID, "evaluate")
    answer = private_client(own_app(moved_by(1.0)), public=["evaluate"])(asked, context)
    assert answer.content["metrics"]["secret"] == 7
    for kind in ("train", "train.default", "train.mask", "query.join"):
        with pytest.raises(LearningError, match=f"^public={kind}: this answer is charged to budgets"):
            private_client(own_app(moved_by(1.0)), public=[kind])


def wrong(value: object) -> Any:
    """Return the value unchanged, typed as `Any`, so that a test may pass a wrong type."""
    return value


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: GDPFed(budgets=wrong(1.0), num_clients=4),
            "budgets=1.0 is one number: give one for each",
        ),
        (lambda: GDPFed(budgets="1,3", num_clients=4), "budgets holds '1,3': give numbers above 0"),
        (lambda: GDPFed(budgets=[1.0, 3.0]), "num_clients is not given: say how many clients there are"),
        (lambda: GDPFed(wrong(3), num_clients=4), r"GDPFed\(3\): settings are texts"),
        (lambda: private_client(wrong(None)), "app is a NoneType: give the ClientApp"),
        (
            lambda: private_client(own_app(moved_by(1.0)), public="evaluate"),
            "public='evaluate' is a text: give a list",
        ),
        (
            lambda: private_client(own_app(moved_by(1.0)), public=["evalute"]),
            r"public=evalute is not known; did you mean evaluate\? Use evaluate or query$",
        ),
        (lambda: private_client(ClientApp()), "app has no train function: give it one by"),
        (
            lambda: private_client(private_client(own_app(moved_by(1.0)))),
            "app is what private_client has returned: wrap your ClientApp once",
        ),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_line(make, words):
    with pytest.raises(InputError, match=f"^{words}"):
        make()


def test_a_guard_is_not_passed_by():
    (context,) = LocalGrid(1).contexts.values()
    context.node_config = {"guard": "/run/guard.sock"}
    with pytest.raises(StandInError, match="^guard keeps a node's data from the code that a run sends"):
        private_client(own_app(moved_by(1.0)))(Message(RecordDict(), FIRST_NODE_ID, "query.join"), context)


def test_settings_of_the_apps_own_are_for_the_app_alone(tmp_path):
    def train(message, context):
        assert context.node_config["dataset-path"] == "/data"
        return moved_by(0.025)(message, context)

    grid = LocalGrid(NUM_CLIENTS, node_config={"dataset-path": "/data"})
    with pytest.raises(RunError, match="dataset-path is not a setting of a node"):
        trained(tmp_path / "run", grid=grid, train=train)
    result = trained(
        tmp_path / "other", grid=grid, train=train, method="fedavg", own_settings=["dataset-path"]
    )
    assert result.arrays["layer.weight"].numpy()[0, 0] == pytest.approx(1.075, abs=1e-4)


@pytest.mark.parametrize("name", ["max-epsilon-against-server", "minimum-cohort", "ledger", "partition-id"])
def test_a_setting_of_the_node_is_not_kept_from_it(name):
    with pytest.raises(LearningError, match=rf"^own_settings={name} is a setting of the node itself"):
        private_client(own_app(moved_by(1.0)), own_settings=["dataset-path", name])
    with pytest.raises(LearningError, match=r"own_settings='dataset-path' is a text: give a list"):
        private_client(own_app(moved_by(1.0)), own_settings="dataset-path")


REFUSED = [
    ({"settings": ["privacy=record_level"]}, PrivacyError, "privacy.unit=record"),
    (
        {"settings": ["privacy.sampling=fixed_size", "privacy.accountant=rdp", "privacy.against=outsiders"]},
        PrivacyError,
        "privacy.sampling=fixed_size is not proved for clients that keep something",
    ),
    (
        {
            "settings": [
                *("privacy.sampling=allocation", "privacy.against=outsiders", "secagg.same_size=false"),
            ],
            "method": "gdpfed",
        },
        PrivacyError,
        "privacy.sampling=allocation is not proved for clients that keep something",
    ),
    ({"settings": ["run.evaluation=nodes"]}, ConfigError, "run.evaluation=nodes only works with"),
    ({"settings": ["training.vote={learning_rate:[0.1,1]}"]}, ConfigError, "training.vote="),
    ({"method": "sampled_fedavg"}, ConfigError, "method=sampled_fedavg needs more of a client"),
    ({"num_rounds": None}, ConfigError, "num_rounds is given neither"),
    ({"num_rounds": 4}, ConfigError, "num_rounds=3 is given to start, and 4 to the strategy"),
    (
        {"settings": ["run.num_rounds=5"]},
        ConfigError,
        "num_rounds=3 and the setting run.num_rounds=5 are given: give one",
    ),
    ({"evaluate_config": ConfigRecord({"a": 1})}, ConfigError, "evaluate_config is given"),
    ({"train_config": ConfigRecord({"a": b"x"})}, ConfigError, "train_config cannot be written as JSON"),
    ({"arrays": [np.ones(2, np.int64)]}, LearningError, "array '0' holds int64"),
    ({"arrays": [np.array([np.nan])]}, LearningError, "array '0' holds values that are not finite"),
    ({"arrays": []}, LearningError, "initial_arrays has no arrays with numbers"),
    ({"initial": None}, LearningError, "initial_arrays is a NoneType: give an ArrayRecord"),
    ({"initial": [np.zeros(3)]}, LearningError, "initial_arrays is a list: give an ArrayRecord"),
    (
        {"initial": ArrayRecord({"bn.running_mean": Array(np.zeros(3, np.float32))})},
        LearningError,
        "array 'bn.running_mean' .*: replace BatchNorm by GroupNorm, or leave running_mean and",
    ),
    ({"found": (0.5, {"a": 1})}, ConfigError, "evaluate_fn returned a tuple: return a MetricRecord"),
    ({"found": {"accuracy": 85.0}}, ConfigError, "accuracy=85.0: return a share from 0 to 1, as in 0.85"),
    ({"found": {"accuracy": "high"}}, ConfigError, "accuracy='high': return a number"),
    ({"found": {"accuracy": np.float32("nan")}}, ConfigError, "accuracy=nan: return a share"),
    ({"found": {"loss": math.inf}}, ConfigError, "loss=inf of the initial arrays: begin with others"),
]


@pytest.mark.parametrize(("given", "error", "words"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_asked(tmp_path, given, error, words):
    grid = LocalGrid(NUM_CLIENTS)
    rounds = given.get("num_rounds", 3)
    settings = (f"run.directory={tmp_path / 'run'}", *given.get("settings", ()))
    strategy = GDPFed(
        *settings,
        budgets=[3.0],
        num_clients=NUM_CLIENTS,
        num_rounds=rounds,
        method=given.get("method", "dp_fedavg"),
    )
    with pytest.raises(error, match=words) as caught:
        strategy.start(
            as_grid(grid),
            ArrayRecord(given["arrays"]) if "arrays" in given else given.get("initial", INITIAL),
            None if rounds is None else 3,
            train_config=given.get("train_config"),
            evaluate_config=given.get("evaluate_config"),
            evaluate_fn=None if "found" not in given else lambda number, arrays: given["found"],
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert grid.sent == []


def test_arrays_that_begin_alike_are_named_since_they_may_be_tied(tmp_path, caplog):
    same = Array(np.arange(6.0))
    alike = ArrayRecord({"a": same, "b": same, "zero": Array(np.zeros(6)), "none": Array(np.zeros(6))})
    strategy = GDPFed(f"run.directory={tmp_path}/run", budgets=[3.0], num_clients=2, num_rounds=3)
    with pytest.raises(ConfigError, match="evaluate_config"):
        strategy.start(as_grid(LocalGrid(1)), alike, evaluate_config=ConfigRecord({"a": 1}))
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [line.partition(": ")[0] for line in lines] == ["arrays 'a' and 'b' begin with the same values"]


def test_an_app_that_nobody_wrapped_is_named_as_the_cause(tmp_path):
    grid = LocalGrid(NUM_CLIENTS)
    grid.app = own_app(moved_by(1.0))
    strategy = GDPFed(f"run.directory={tmp_path}/run", budgets=[3.0], num_clients=NUM_CLIENTS, num_rounds=3)
    words = r"its app is not wrapped, write app = private_client\(app\) \(.*name 'join'\)$"
    with pytest.raises(RunError, match=words) as caught:
        strategy.start(as_grid(grid), INITIAL)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "settings", "asked"),
    [
        ({}, (), ("method=gdpfed_plus", "privacy.budgets=clients")),
        ({"method": "gdpfed", "budgets": [1, 3.5]}, (), ("method=gdpfed", "privacy.budgets=[1.0,3.5]")),
        ({}, ("method=gdpfed_star", "privacy.budgets=[2]"), ("method=gdpfed_star", "privacy.budgets=[2]")),
    ],
)
def test_method_and_budgets_are_given_once_as_arguments_or_as_settings(arguments, settings, asked, caplog):
    with caplog.at_level("INFO", "flwr"):
        GDPFed(*settings, num_clients=4, **arguments).summary()
    (words,) = (each.getMessage().split() for each in caplog.records)
    assert sorted(words) == sorted(("dataset=flower_app", "dataset.num_clients=4", *asked))


def test_a_strategy_that_wraps_this_one_is_refused():
    strategy = GDPFed(budgets=[3.0], num_clients=NUM_CLIENTS, num_rounds=3)
    for step in (
        lambda: strategy.configure_train(1, INITIAL, ConfigRecord(), as_grid(LocalGrid(1))),
        lambda: strategy.aggregate_train(1, []),
        lambda: strategy.configure_evaluate(1, INITIAL, ConfigRecord(), as_grid(LocalGrid(1))),
        lambda: strategy.aggregate_evaluate(1, []),
    ):
        with pytest.raises(RunError, match="has no single steps"):
            step()


def test_a_server_app_of_the_older_kind_is_named_as_the_cause():
    """A ServerApp of a ``server_fn`` first asks its strategy for initial parameters."""
    strategy: Any = GDPFed(budgets=[3.0], num_clients=NUM_CLIENTS, num_rounds=3)
    with pytest.raises(RunError, match=r"^GDPFed does not go with ServerApp\(server_fn\): make a ServerApp"):
        Server(client_manager=SimpleClientManager(), strategy=strategy).fit(1, None)


def test_own_single_steps_are_refused_since_no_run_calls_them():
    class Mine(GDPFed):
        def aggregate_train(self, server_round, replies):
            return None, None

    grid = LocalGrid(NUM_CLIENTS)
    with pytest.raises(RunError, match="^Mine has its own aggregate_train, which would never be called"):
        Mine(budgets=[3.0], num_clients=NUM_CLIENTS, num_rounds=3).start(as_grid(grid), INITIAL)
    assert grid.sent == []


def test_metrics_that_no_round_shows_are_named(tmp_path, caplog):
    def warned(found):
        caplog.clear()
        grid = LocalGrid(NUM_CLIENTS)
        grid.app = own_app(moved_by(1.0))
        settings = (*EVERYBODY, f"run.directory={tmp_path}/run")
        strategy = GDPFed(*settings, budgets=[3.0], num_clients=NUM_CLIENTS, num_rounds=3, method="gdpfed")
        with pytest.raises(RunError, match="its app is not wrapped"):
            strategy.start(as_grid(grid), INITIAL, evaluate_fn=lambda number, arrays: found)
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    assert warned(MetricRecord({"acc": 0.5, "f1": 0.4}))[0].startswith("evaluate_fn returned acc, f1: of its")
    assert warned(MetricRecord({"loss": 0.5, "f1": 0.4})) == warned(None) == []


def test_nobody_else_trains_in_an_apps_place(tmp_path, monkeypatch):
    """A process that lacks an app's initial arrays can neither begin a run of the app nor build the model."""
    with pytest.raises(LearningError, match="a run of it is begun and resumed by the app's own strategy"):
        simulate(load(["dataset=flower_app", f"run.directory={tmp_path / 'new'}"]))
    trained(tmp_path / "run", "run.stop_after_round=1", grid=LocalGrid(NUM_CLIENTS))
    finished = tmp_path / "finished"
    trained(finished, grid=LocalGrid(NUM_CLIENTS))
    monkeypatch.setattr("gdpfed.flower.arrays._STARTS", {})
    config = load_run([f"run.resume={tmp_path / 'run'}"])
    assert task_of(config).described().dimension == 9
    with pytest.raises(LearningError, match="is trained by the functions of a Flower app alone"):
        task_of(config).build_model()
    with pytest.raises(LearningError, match=r"model cannot be used here: .* and use its arrays there$"):
        load_model(finished)
    assert not (tmp_path / "new").exists()
