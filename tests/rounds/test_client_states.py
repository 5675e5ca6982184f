"""Tests of states that clients keep between rounds: SCAFFOLD's Algorithm 1, files, resuming, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.kept_states import KeptStates, state_file
from gdpfed.clients.works.update import batch_generator
from gdpfed.errors import ConfigError, LearningError, PrivacyError, RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.training.client_states import CLIENT_STATES, KeptState
from gdpfed.learning.training.local_update import local_update
from gdpfed.methods import make_method
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.extensions.client_memory import TOLD, ClientMemory
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import CLIENT_STATES_FOLDER
from gdpfed.runs.round_log import read_rounds as records
from gdpfed.simulation import simulate
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.training_choice import choose_training
from testing.small_runs import final_model, run, small_config
from tests.simulation.small_cohorts import order_of, theta_of

SCAFFOLD = ("training.client_state=scaffold", "dataset=digits", "dataset.model=linear")
# Every batch is all of a client's records, so that the reference needs no draws.
WHOLE = ("training.batch_size=1000", "training.learning_rate=0.1", "training.learning_rate_decay=0.9")
FEW_LABELS = ("dataset.partition=shards", "dataset.shards=2")
NO_PRIVACY = ("method=fedavg", "secagg=off")
CLIENTS = 15
CPU = torch.device("cpu")


def config_of(directory, *overrides, resume=False):
    more = () if resume else (f"dataset.num_clients={CLIENTS}",)
    return small_config(directory, (*more, *overrides), resume=resume)


TOLD_KEY = f"{ClientMemory.key}.{TOLD}"


def told_in(directory):
    """Return SCAFFOLD's control variate c at the last checkpoint, shape (d,)."""
    return np.asarray(Checkpoint.load(directory).method_state[TOLD_KEY], np.float32)


def states_in(directory, clients=CLIENTS):
    """Return each client's control variate c_i, shape (n, size): zeros for clients not yet in a round."""
    kept = {int(path.name.split(".")[0]): path for path in (directory / CLIENT_STATES_FOLDER).iterdir()}
    size = len(np.load(next(iter(kept.values()))))
    return np.stack([np.load(kept[k]) if k in kept else np.zeros(size, np.float32) for k in range(clients)])


def gradient(theta, x, y):
    """Return the gradient of softmax regression's mean cross entropy, float64[650]: weights, then biases."""
    w, b = theta[:640].reshape(10, 64), theta[640:]
    logits = x @ w.T + b
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)]) / len(y)


def algorithm_1(theta, data, cohorts, expected, training):
    """Return the model x and the control variates c and c_i after SCAFFOLD's Algorithm 1 with option II."""
    n, x = len(data), theta.astype(np.float64)
    c, own = np.zeros_like(x), np.zeros((n, len(x)))
    for r, cohort in enumerate(cohorts):
        rate, steps = training.learning_rate * training.learning_rate_decay**r, training.local_steps
        dy, dc = np.zeros_like(x), np.zeros_like(x)
        for i in cohort:
            y = x.copy()
            for _ in range(steps):
                y -= rate * (gradient(y, *data[i]) - own[i] + c)
            dy += y - x
            dc += (x - y) / (steps * rate)
            own[i] += -c + (x - y) / (steps * rate)
        x, c = x + dy / expected, c + dc / n - expected / n * c
    return x, c, own


@pytest.mark.parametrize("sampling", ["fixed_size", "poisson"])
def test_it_is_algorithm_1_written_out(tmp_path, sampling):
    words = (*SCAFFOLD, *WHOLE, *FEW_LABELS, *NO_PRIVACY, f"privacy.sampling={sampling}", "run.num_rounds=8")
    config = config_of(tmp_path / "run", *words, "run.stop_after_round=7")
    simulate(config)
    prepared = PreparedRun.of(config_of(tmp_path / "none", *words))
    checkpoint = Checkpoint.load(tmp_path / "run")
    cohorts = [
        draw_cohorts(prepared.method.plan, index, checkpoint.sampling_key)[0].tolist() for index in range(7)
    ]
    assert {len(cohort) for cohort in cohorts} == ({9} if sampling == "fixed_size" else {8, 9, 10})
    parts = [prepared.task.client_data(client) for client in range(CLIENTS)]
    data = [(part.x.reshape(len(part), -1).astype(np.float64), part.y) for part in parts]
    start = flatten(prepared.task.build_model())
    x, c, own = algorithm_1(start, data, cohorts, 9.0, config.training)
    np.testing.assert_allclose(checkpoint.theta, x, atol=2e-5)
    np.testing.assert_allclose(told_in(tmp_path / "run"), c, atol=2e-5)
    np.testing.assert_allclose(states_in(tmp_path / "run"), own, atol=1e-4)
    assert np.abs(own).max() > 0.1


class Careless(KeptState):
    """A state that scales by the norm of all rows, changes what it is given, and keeps a maximum."""

    def __init__(self):
        self.largest = 0.0

    def added(self, kept, told, training):
        self.largest = max(self.largest, float(np.abs(kept).max()))
        told += kept.sum()
        return kept / np.linalg.norm(kept) + told + self.largest

    def kept(self, kept, told, sent, training):
        return self.added(np.asarray(sent, np.float32), told, training)


def test_no_state_of_a_package_carries_one_clients_vector_to_another(tmp_path, monkeypatch):
    monkeypatch.setitem(CLIENT_STATES._items, "careless", Careless())
    order, ends = order_of(), []
    for size in (1, 1000):
        folder = tmp_path / str(size)
        folder.mkdir()
        for client in range(2):
            np.save(state_file(folder, client, 0), np.full(3, size if client == 0 else 2, np.float32))
        states = KeptStates("careless", np.zeros(3, np.float32), folder, 1, {0: 0, 1: 0})
        added = states.added([0, 1], order.training)
        states.keep([0, 1], np.array([[size] * 3, [4] * 3]), 0.5, order)
        ends.append((added[1], np.load(state_file(folder, 1, 1))))
        assert not states.told.any()
    for found, value in zip(ends[1], (2, 2), strict=True):
        np.testing.assert_allclose(found, 3**-0.5 + 3 * value + value, rtol=1e-6)
    np.testing.assert_array_equal(ends[0], ends[1])


UNDER_PRIVACY = {
    "groups": ("method=gdpfed",),
    "norms of groups": ("method=gdpfed_star",),
    "turns": ("method=gdpfed", "privacy.against=everyone", "privacy.accountant=pld"),
    "adaptive clipping": (
        "method=dp_fedavg",
        "privacy.clipping=adaptive",
        "privacy.clipping_noise=0.3",
    ),
}


@pytest.mark.parametrize("kind", [None, *UNDER_PRIVACY])
def test_what_all_are_told_is_the_mean_of_what_they_keep(tmp_path, monkeypatch, kind):
    """If all clients take part without noise, the state that they are told is the mean of what they keep."""
    words: tuple[str, ...] = ("method=fedavg", "privacy.sampling_rate=1")
    if kind is not None:
        words = (*UNDER_PRIVACY[kind], "privacy.sampling_rate=1", "privacy.clipping_norm=0.05", "secagg=off")
        silent = lambda order, parameters, stream: np.zeros(parameters.dimension, np.int64)  # noqa: E731
        monkeypatch.setattr("gdpfed.simulation.in_process_fleet.sum_noise_steps", silent)
    config = config_of(tmp_path, *SCAFFOLD, *FEW_LABELS, *words, "run.num_rounds=4", "run.stop_after_round=3")
    simulate(config)
    told, kept = told_in(tmp_path), states_in(tmp_path)
    largest = np.abs(kept).max()
    assert largest > 0.01
    assert np.abs(told).max() > 0.01 * largest
    np.testing.assert_allclose(told, kept.mean(axis=0), atol=1e-3 * largest)


def test_nothing_depends_on_how_the_work_is_shared_or_on_when_a_run_pauses(tmp_path):
    words = (*SCAFFOLD, *FEW_LABELS, *NO_PRIVACY, "run.num_rounds=4", "run.stop_after_round=3")
    ways = {
        "one": ("simulation.workers=1",),
        "two": ("simulation.workers=2", "simulation.clients_at_once=2"),
        "paused": ("simulation.workers=1", "run.stop_after_round=2"),
    }
    for name, way in ways.items():
        simulate(config_of(tmp_path / name, *words, *way))
    # A round was on its way when the process ended: it left files, and no checkpoint counts it.
    stray = tmp_path / "paused" / CLIENT_STATES_FOLDER / "3.2.npy"
    np.save(stray, np.full(650, 7, np.float32))
    before = states_in(tmp_path / "paused")
    simulate(config_of(tmp_path / "paused", "run.stop_after_round=3", resume=True))
    one = Checkpoint.load(tmp_path / "one")
    for name in ("two", "paused"):
        other = Checkpoint.load(tmp_path / name)
        assert other.theta.tobytes() == one.theta.tobytes()
        assert other.method_state[TOLD_KEY].tobytes() == one.method_state[TOLD_KEY].tobytes()
        assert states_in(tmp_path / name).tobytes() == states_in(tmp_path / "one").tobytes()
    assert not np.array_equal(before, states_in(tmp_path / "one"))
    files = list((tmp_path / "paused" / CLIENT_STATES_FOLDER).iterdir())
    assert len(files) == len({path.name.split(".")[0] for path in files})
    simulate(config_of(tmp_path / "one", "run.stop_after_round=null", resume=True))
    assert len(final_model(tmp_path / "one")) == 650
    assert not (tmp_path / "one" / CLIENT_STATES_FOLDER).exists()


@pytest.mark.parametrize("client", [3, 7])
def test_all_engines_end_where_a_node_ends(client):
    """Every training engine computes the same update as a node, also for a client without records."""
    order = order_of("cnn3", num_clients=90, batch_size=5)
    theta = theta_of(order)
    added = np.random.default_rng(0).normal(scale=0.01, size=(1, len(theta))).astype(np.float32)
    examples, batches = DeviceExamples(order.task, CPU), Batches.draw(order, [client])
    data = order.task.client_data(client)
    if client == 7:
        data, batches = data.take(np.zeros(0, np.int64)), replace(batches, weights=0 * batches.weights)
    rng = batch_generator(order, client)
    model, own = order.task.build_model(), torch.from_numpy(added[0])
    alone = local_update(model, theta, data, order.training, rng=rng, device=CPU, added=own)
    if client == 7:
        steps = order.training.local_steps * order.training.learning_rate
        np.testing.assert_allclose(alone, -steps * added[0], atol=1e-6)
    programmed, _ = choose_training(order.task, CPU, "float32")
    assert isinstance(programmed, ProgrammedTraining)
    for each in (programmed, BatchedTraining(order.task.build_model(), CPU)):
        (found,) = each.updates(theta, order.training, examples, batches, torch.from_numpy(added))
        assert (found - alone).norm() <= 1e-4 * alone.norm()


def test_who_is_in_no_sum_keeps_what_it_had(tmp_path):
    """If a group's sum fails, its clients keep their states; other groups' sums change the common state."""
    config = config_of(
        tmp_path, *SCAFFOLD, "method=gdpfed", "training.local_steps=1", "training.learning_rate=1"
    )
    method, theta = make_method(config), np.zeros(3, np.float32)
    memory, order = ClientMemory(config, method.plan, tmp_path), order_of("linear")
    (tmp_path / CLIENT_STATES_FOLDER).mkdir()
    first, second, third = (np.asarray(group.clients[:2]) for group in method.plan.groups)
    for index in range(2):
        requests = method.requests(theta, index, [first, second, third])
        training = replace(order.training, local_steps=1, learning_rate=1.0)
        here = replace(order, training=training, round_index=index)
        memory.requested(here, requests)
        states = memory.kept
        assert states is not None
        everybody = [*first, *second, *third]
        states.keep(everybody, np.full((6, 3), index + 1), 0.5, here)
        sums = [
            ClientSum(name=f"group {m}", total=total, survivors=2, groups=(m,), members=tuple(clients))
            for m, (clients, total) in enumerate(
                zip((first, second, third), (np.full(3, 3.0), None, np.full(3, 6.0)), strict=True)
            )
        ]
        told, expected = states.told, 2 / 3 * 0.6
        memory.taken(here, sums)
        memory.saved()
        stepped = np.asarray(memory.state_dict()[TOLD], np.float32)
        np.testing.assert_allclose(stepped, told - expected * told - 9 / 15, rtol=1e-6)
        names = {path.name for path in (tmp_path / CLIENT_STATES_FOLDER).iterdir()}
        assert names == {f"{client}.{index}.npy" for client in (*first, *third)}


def test_a_lost_or_damaged_state_is_one_line(tmp_path):
    words = (*SCAFFOLD, *NO_PRIVACY, "privacy.sampling_rate=1", "run.stop_after_round=1")
    simulate(config_of(tmp_path, *words))
    folder = tmp_path / CLIENT_STATES_FOLDER
    whole = (folder / "4.0.npy").read_bytes()
    (folder / "4.0.npy").write_bytes(whole[:-10])
    with pytest.raises(
        RunError, match=r"4\.0\.npy cannot be read as a client's state .*restore it from a copy"
    ):
        simulate(config_of(tmp_path, "run.stop_after_round=2", "simulation.workers=1", resume=True))
    (folder / "4.0.npy").unlink()
    with pytest.raises(RunError, match="client_states has the states of 14 of 15 clients; restore"):
        simulate(config_of(tmp_path, "run.stop_after_round=2", resume=True))


@pytest.mark.parametrize(
    ("overrides", "error", "line"),
    [
        (
            ["method=pfa"],
            ConfigError,
            "does not go with method=pfa: .* dp_fedavg, .*or training.client_state=null",
        ),
        (["training.vote={learning_rate:[0.1,0.3]}"], ConfigError, "does not go with training.vote"),
        (
            ["privacy.sampling=fixed_size"],
            PrivacyError,
            "is not proved for privacy.sampling=fixed_size: .*Use .*poisson",
        ),
        (["training.momentum=0.5"], LearningError, "plain steps of SGD: set .*training.momentum=0"),
        (["training.optimizer=adam"], LearningError, "plain steps of SGD"),
        (["training.proximal=0.1"], LearningError, "plain steps of SGD"),
        (
            ["training.client_state=scafold"],
            LearningError,
            "client state 'scafold' is not known: use scaffold",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused_before_anything_is_written(tmp_path, overrides, error, line):
    method = () if overrides[0].startswith("method") else ("method=dp_fedavg",)
    with pytest.raises(error, match=line):
        PreparedRun.of(config_of(tmp_path / "run", *SCAFFOLD, *method, *overrides))
    assert not (tmp_path / "run").exists()


def test_fixed_cohorts_go_with_it_where_nothing_is_promised():
    assert (
        make_method(load([*SCAFFOLD, *NO_PRIVACY, "privacy.sampling=fixed_size"])).plan.law.name
        == "fixed_size"
    )


def test_nodes_keep_nothing_and_a_run_on_them_is_refused(tmp_path):
    with pytest.raises(RunError, match="nodes keep nothing between their rounds.*: use gdpfed simulate, or"):
        run(tmp_path / "run", [*SCAFFOLD, "method=fedavg"])
    assert not (tmp_path / "run").exists()


class Counter(KeptState):
    """State that a client keeps: the number of its rounds, a tenth of which is added to its gradients."""

    def size(self, dimension):
        return 1

    def added(self, kept, told, training):
        return np.broadcast_to(kept / 10, (len(kept), len(told)))

    def kept(self, kept, told, sent, training):
        return kept + 1


class OwnMomentum(KeptState):
    """State that a client keeps: its last round's mean gradient, of which half is added to new gradients."""

    def added(self, kept, told, training):
        return kept / 2

    def kept(self, kept, told, sent, training):
        return -sent / (training.local_steps * training.learning_rate)


@pytest.mark.parametrize("secagg", ["off", "on"])
def test_a_plug_in_keeps_what_it_likes_by_the_same_door(tmp_path, monkeypatch, secagg):
    monkeypatch.setattr(CLIENT_STATES, "_items", {**CLIENT_STATES._items})
    CLIENT_STATES.register("counter", Counter())
    CLIENT_STATES.register("own_momentum", OwnMomentum())
    words = ("method=fedavg", *(["secagg=off"] if secagg == "off" else []), "dataset.model=linear")
    for name in ("counter", "own_momentum", "null"):
        more = (f"training.client_state={name}", "run.num_rounds=5", "run.stop_after_round=4")
        simulate(config_of(tmp_path / name, *words, *more))
    counts = states_in(tmp_path / "counter")[:, 0]
    rounds = [path.name.split(".") for path in (tmp_path / "counter" / CLIENT_STATES_FOLDER).iterdir()]
    assert counts.sum() == sum(entry.cohort_sizes[0] for entry in records(tmp_path / "counter"))
    assert counts.max() <= 4
    assert {int(index) for _, index, _ in rounds} <= {0, 1, 2, 3}
    plain = Checkpoint.load(tmp_path / "null").theta
    for name in ("counter", "own_momentum"):
        assert np.abs(Checkpoint.load(tmp_path / name).theta - plain).max() > 1e-3
    assert not (tmp_path / "null" / CLIENT_STATES_FOLDER).exists()
