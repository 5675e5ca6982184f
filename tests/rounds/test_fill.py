"""Tests of cohorts that are filled up with clients that send zeros, so that sums hide who was drawn."""

from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.mechanisms.filled_cohorts import fewest_of_a_sum, most_that_fill, usual_size
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.update import update_of
from gdpfed.clients.works import Job
from gdpfed.federation.node.contribution import Contributor
from gdpfed.federation.node.on_device import DevicePart
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import clip
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods import make_method
from gdpfed.methods.sum_parameters import can_sum, size_to_lose_one
from gdpfed.privacy.accountants.composition import compose_against_server
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.report.messages import messages_a_round
from gdpfed.rounds.extensions.fill import Fill
from gdpfed.rounds.extensions.table import extensions_of
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import in_process_fleet, simulate
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.in_process_fleet import InProcessFleet
from secagg import ClientSession, Contributors, Encoding
from testing.small_runs import grid_of_owners, ledger_of, only_a_card, run, small_config

KEY = bytes(range(32))
SIX = (
    *("dataset.num_clients=6", "privacy.sampling_rate=0.2", "privacy.accountant=rdp"),
    *("privacy.against=outsiders", "privacy.delta=1e-3"),
)
THIRTY = ("dataset.num_clients=30", "privacy.sampling_rate=0.05")


def planned(*overrides, method):
    return make_method(
        load([*SIX[2:], *(overrides or SIX[:2]), f"method={method}", "dataset.num_rounds=400"])
    )


def filling(*overrides, key=KEY, present=None, method="dp_fedavg", same_size=False):
    """Return a plan, and a function that returns a round's cohorts without and with senders of zeros."""
    plan = planned(*overrides, method=method).plan
    fill = Fill(plan)
    opened: Any = SimpleNamespace(loop=SimpleNamespace(state=SimpleNamespace(sampling_key=key)))
    fill.opened_run(opened)
    fleet: Any = SimpleNamespace(secagg=SecAggConfig(same_size=same_size))

    def cohorts(index):
        drawn = draw_cohorts(plan, index, key)
        if present is not None:
            drawn = tuple(cohort[np.isin(cohort, list(present))] for cohort in drawn)
        return drawn, fill.drawn(fleet, index, drawn, present)

    return plan, cohorts


def test_whether_there_is_a_sum_tells_nothing_of_who_was_drawn():
    """If clients that send zeros fill up the cohorts, every round has a sum, whoever was drawn."""
    _, cohorts = filling()
    summed: dict[str, Counter[bool]] = {"as drawn": Counter(), "filled": Counter()}
    for index in range(400):
        (drawn,), (filled,) = cohorts(index)
        assert np.isin(drawn, filled).all()
        for name, cohort in (("as drawn", drawn), ("filled", filled)):
            summed[name][0 in drawn] += can_sum(SecAggConfig(), len(cohort))
        summed["rounds"] = summed.get("rounds", Counter()) + Counter([0 in drawn])
    rounds = summed["rounds"]
    seen = {own: summed["as drawn"][own] / rounds[own] for own in (True, False)}
    assert seen[True] > 3 * seen[False]
    assert summed["filled"] == rounds


@pytest.mark.parametrize(
    ("there", "size"), [(None, 10), (range(12), 10), (range(7), 7), (range(3), 3), (range(2), 0)]
)
def test_a_cohort_grows_until_it_may_lose_one_or_all_are_there(there, size):
    """Clients that send zeros fill up a cohort until a member may drop out or all present clients are in."""
    present = None if there is None else frozenset(there)
    _, cohorts = filling(*THIRTY, present=present)
    for index in range(40):
        (drawn,), (filled,) = cohorts(index)
        assert len(filled) == max(size, len(drawn))
        assert present is None or present.issuperset(filled.tolist())


def test_who_fills_follows_from_key_and_round_and_from_no_draw():
    def of(key):
        _, cohorts = filling(*THIRTY, key=key)
        return [[each.tolist() for each in cohorts(index)[1]] for index in (3, 4, 3)]

    ahead, later, again = of(KEY)
    assert ahead == again != later
    assert of(KEY) == [ahead, later, again]
    assert of(bytes(32))[0] != ahead


HUNDRED = ("dataset.num_clients=100", "privacy.sampling_rate=0.05")


@pytest.mark.parametrize("method", ["dp_fedavg", "gdpfed", "idp_fedavg_scale"])
@pytest.mark.parametrize("there", [range(100), range(0, 100, 2)])
def test_with_one_size_no_sum_tells_how_many_were_drawn(method, there):
    """With `same_size`, clients that send zeros fill up all cohorts to one size, whoever was drawn."""
    plan, cohorts = filling(*HUNDRED, method=method, present=frozenset(there), same_size=True)
    found = [cohorts(index) for index in range(40)]
    groups = [[*range(len(plan.groups))]] if plan.one_sum else [[m] for m in range(len(plan.groups))]
    for together in groups:
        drawn, filled = (
            [sum(len(each[m]) for m in together) for each in one] for one in zip(*found, strict=True)
        )
        assert len(set(drawn)) > 2
        (size,) = set(filled)
        reachable = sum(len(set(plan.groups[m].clients).intersection(there)) for m in together)
        expected = sum(
            plan.groups[m].at(0).sampling_rate * len(set(plan.groups[m].clients).intersection(there))
            for m in together
        )
        assert size == max(usual_size(plan.to_dict(), expected, reachable), min(10, reachable))
        assert stats.poisson.sf(size, expected) < 1e-8


@pytest.mark.parametrize("method", ["dp_fedavg", "gdpfed", "idp_fedavg_scale"])
@pytest.mark.parametrize("same_size", [True, False])
def test_the_plan_counts_the_messages_of_those_that_fill(method, same_size):
    _, cohorts = filling(*HUNDRED, method=method, same_size=same_size)
    rounds = [cohorts(index) for index in range(200)]
    drawn, sent = (np.mean([sum(map(len, each[i])) for each in rounds]) for i in (0, 1))
    secagg = SecAggConfig(same_size=same_size)
    assert messages_a_round(planned(*HUNDRED, method=method), secagg) == pytest.approx(sent, rel=0.01)
    assert sent > drawn + 1


def test_of_a_sum_that_cannot_be_nobody_is_asked_to_fill_it():
    _, cohorts = filling(*HUNDRED, present=frozenset(range(2)), same_size=True)
    assert all(np.array_equal(*pair) for index in range(40) for pair in zip(*cohorts(index), strict=True))


@pytest.mark.parametrize("method", ["dp_fedavg", "gdpfed", "idp_fedavg_scale"])
def test_sums_of_the_one_size_are_checked_before_a_run_begins(tmp_path, method):
    """With `same_size`, the sizes of cohorts with clients that send zeros are known before a run begins."""
    words = ["dataset.num_clients=120", "privacy.sampling_rate=0.1", "privacy.delta=1e-9", f"method={method}"]
    run = PreparedRun.of(small_config(tmp_path / "run", [*words, "secagg.same_size=true"]))
    plan, largest = run.method.plan, run.largest_cohorts(0)
    usual = [usual_size(plan.to_dict(), each.expected_cohort_size, len(each.clients)) for each in plan.groups]
    assert any(size > len(cohort) for size, cohort in zip(usual, largest, strict=True))
    sizes = [len(request.clients) for request in Fill(plan).largest(run)]
    assert sizes == ([sum(usual)] if plan.one_sum else usual)
    run.config.secagg.same_size = False
    assert Fill(plan).largest(run) == []


def test_a_plan_whose_sums_every_member_would_refuse_to_have_filled_is_refused_first():
    fill = Fill(make_method(load([*SIX, "method=dp_fedavg"])).plan)
    request: Any = SimpleNamespace(work="update")
    little: Any = SimpleNamespace(noise_multiplier=0.09)
    fleet: Any = SimpleNamespace(secagg=SecAggConfig())
    with pytest.raises(OrderError, match=r"noise is 0.09 of its clipping norm, below 1/10: .* Use smaller"):
        fill.sum_checked(fleet, request, 0, little)
    once: Any = SimpleNamespace(work="norm_histogram")
    assert fill.sum_checked(fleet, once, 0, little) is little
    fleet.secagg.mode = "off"
    assert fill.sum_checked(fleet, request, 0, little) is little


@pytest.mark.parametrize(("work", "said"), [("update", True), ("norm_histogram", False)])
def test_members_are_told_that_others_may_fill_whether_somebody_does_or_not(work, said):
    """In rounds of training, members are always told that clients may send zeros; in other rounds, never."""
    plan = make_method(load([*SIX, "method=dp_fedavg"])).plan
    task = Task(DataSource("digits"), "linear", "iid", 6, seed=0)
    order = TrainingOrder(task, LocalTraining(5, 4, 0.5, 0.0), 0, "cpu", work=work)
    nobody: Any = None
    plain = PreparedSum("one", nobody, [0, 1, 2], order, np.zeros(1, np.float32), {})
    prepared = Fill(plan).sum_prepared(nobody, nobody, plain, ahead=False)
    assert prepared.order == replace(order, may_fill=said)
    assert not prepared.fillers


def test_one_sum_of_all_groups_is_filled_from_all_groups():
    plan, cohorts = filling(*THIRTY, method="idp_fedavg_scale")
    filled = [cohorts(index)[1] for index in range(30)]
    assert {sum(map(len, each)) for each in filled} == {10}
    for cohort, group in ((each[m], group) for each in filled for m, group in enumerate(plan.groups)):
        assert set(cohort.tolist()) <= set(group.clients)


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=fedavg"],
        ["method=dp_fedavg", "privacy.sampling_rate=1"],
        ["method=dp_fedavg", "privacy.sampling=fixed_size", "privacy.sampling_rate=0.5"],
        ["method=dp_fedavg", "privacy.against=everyone", "privacy.accountant=pld"],
    ],
)
def test_where_nothing_rests_on_a_secret_draw_nothing_is_filled(tmp_path, overrides):
    prepared = PreparedRun.of(small_config(tmp_path / "run", ["privacy.sampling_rate=0.6", *overrides]))
    assert not any(isinstance(each, Fill) for each in extensions_of(prepared))


@pytest.mark.parametrize("mode", ["curious", "active", "off"])
@pytest.mark.parametrize("corrupt", [0.0, 0.2, 0.45])
@pytest.mark.parametrize("tolerance", [0.0, 0.1, 0.3])
def test_the_audit_knows_by_another_formula_how_far_a_cohort_is_filled(mode, corrupt, tolerance):
    own = {"mode": mode, "corrupt_tolerance": corrupt, "dropout_tolerance": tolerance}
    secagg = SecAggConfig(**own, threshold=0.75)
    fewest = fewest_of_a_sum(asdict(secagg), 45)
    possible = [can_sum(secagg, size) for size in range(45)]
    # More clients never make a sum impossible, so it follows from who is there alone.
    assert possible == sorted(possible)
    assert possible.index(True) == fewest
    for there in range(fewest, 45):
        assert size_to_lose_one(secagg, there) == most_that_fill(asdict(secagg), there)


def test_in_a_simulation_who_fills_sends_zeros_under_its_noise_and_trains_nothing(tmp_path, monkeypatch):
    trained, sent = list[int](), dict[int, tuple[bool, bool]]()
    mask, updates = ClientSession.mask, SequentialEngine.updates

    def noted(session, steps, context, noise=None):
        sent[session.client_id] = bool(np.any(steps)), noise is not None
        return mask(session, steps, context, noise=noise)

    def noting(engine, order, theta, cohort):
        trained.extend(cohort.clients)
        yield from updates(engine, order, theta, cohort)

    monkeypatch.setattr(ClientSession, "mask", noted)
    monkeypatch.setattr(SequentialEngine, "updates", noting)
    config = small_config(tmp_path / "run", [*SIX, "method=dp_fedavg"])
    prepared, fleet = PreparedRun.of(config), InProcessFleet(config.secagg, "sim", SequentialEngine())
    with prepared.open(fleet, only_a_card, lambda line: None) as opened:
        key, plan = opened.loop.state.sampling_key, prepared.method.plan
        for record in opened.rounds():
            (drawn,) = draw_cohorts(plan, record.round - 1, key)
            assert trained == drawn.tolist()
            assert sent == {client: (client in drawn, True) for client in range(6)}
            assert (record.cohort_sizes, record.survivors) == ([6], [6])
            assert sum(record.filled) == 6 - len(drawn)
            trained.clear()
            sent.clear()
        assert sum(opened.loop.state.ledger.total_participations()) == 18


def test_with_updates_in_clear_the_sum_is_that_of_those_who_were_drawn(tmp_path, monkeypatch):
    """If updates are sent in clear, without noise, clients that only send zeros do not change the sum."""
    monkeypatch.setattr(in_process_fleet, "sum_noise_steps", lambda order, parameters, stream: 0)
    config = small_config(tmp_path / "run", [*SIX, "method=dp_fedavg", "secagg=off"])
    prepared, engine = PreparedRun.of(config), SequentialEngine()
    fleet = InProcessFleet(config.secagg, "sim", engine)
    with prepared.open(fleet, only_a_card, lambda line: None) as opened:
        keys = [bytes([number]) * 32 for number in range(50)]
        cohorts = {key: draw_cohorts(prepared.method.plan, 0, key)[0] for key in keys}
        # Some are drawn and some fill.
        key, drawn = next((key, drawn) for key, drawn in cohorts.items() if 0 < len(drawn) < 6)
        opened.loop.state.sampling_key = key
        opened.loop.state.extensions.tell(Fill.opened_run, opened)
        start = opened.theta
        next(iter(opened.rounds()))
        moved = (opened.theta - start).astype(np.float64)
    assert np.any(moved)
    alone = [engine_update(prepared, start, client) for client in drawn.tolist()]
    scale = prepared.method.server_learning_rate * prepared.method.sum_weights[0]
    np.testing.assert_allclose(moved, scale * np.sum(alone, axis=0), atol=1e-4)


def engine_update(prepared, start, client):
    """Return one client's clipped update, shape (d,)."""
    order = prepared.order
    norm = prepared.method.plan.groups[0].clipping_norm
    encoding = Encoding.for_sum(
        Contributors(6), dimension=len(start), clipping_norm=norm, noise_multiplier=1.0
    )
    return clip(update_of(Job(order, start, encoding, client)), norm).numpy()


def test_over_messages_a_node_that_fills_reads_nothing_is_charged_and_is_not_asked_too_often(
    tmp_path, monkeypatch
):
    """Through Flower, a node that only sends zeros reads no data, is charged, and does not refuse."""
    read = list[tuple[int, int]]()
    examples = Job.examples

    def noting(job):
        read.append((job.order.round_index, job.client_id))
        return examples(job)

    monkeypatch.setattr(Job, "examples", noting)
    grid = grid_of_owners(tmp_path / "nodes", [50.0] * 6)
    words = [*SIX[2:], SIX[0], "privacy.sampling_rate=0.05", "method=dp_fedavg", "dataset.num_rounds=5"]
    records = run(tmp_path / "run", words, grid=grid)
    assert [record.survivors for record in records] == [[6]] * 5
    assert len(read) == 30 - sum(sum(record.filled) for record in records) < 15
    advertised = Counter(client for kind, client in grid.sent if kind == "advertise")
    assert advertised == dict.fromkeys(range(6), 5)
    for client in range(6):
        (own,) = ledger_of(tmp_path / "nodes", client).runs
        assert sorted(own.rounds) == list(range(5))
        assert own.drawn_in == [index for index, reader in read if reader == client]
        # Zeros cost nothing against the server.
        ledger, trained = ledger_of(tmp_path / "nodes", client), len(own.drawn_in)
        seen = own.terms.seen_charges(range(trained), 0)
        assert ledger.epsilon_against_server(1e-3) == pytest.approx(compose_against_server(seen, 1e-3))
        audited = audit_node_ledger(tmp_path / "nodes" / f"{client}.json")
        assert audited.findings == ()
        assert audited.runs[0].against_server == pytest.approx(ledger.epsilon_against_server(1e-3), rel=1e-3)
    assert audit_run(tmp_path / "run").findings == ()


def test_a_run_that_is_resumed_fills_its_cohorts_as_before(tmp_path):
    words = [*SIX, "method=dp_fedavg", "secagg=off", "run.evaluation=nodes"]
    simulate(small_config(tmp_path / "run", [*words, "run.stop_after_round=1"]), make_observers=only_a_card)
    again = small_config(tmp_path / "run", ["run.stop_after_round=null"], resume=True)
    simulate(again, make_observers=only_a_card)
    records = read_rounds(tmp_path / "run")
    assert [record.survivors for record in records] == [[6]] * 3
    assert [record.failures for record in records] == [{}] * 3
    assert audit_run(tmp_path / "run").findings == ()
    # How many clients are in the sum of a round is for nobody who reads the card.
    card = (tmp_path / "run" / "model_card.md").read_text()
    assert "\nOne sum over the clients of the last round, in which clients count alike" in card


class NeverAsked:
    """Stand-in for an edge server that fails if its devices are asked to train."""

    def check(self, order):
        """Accept the order."""

    def change(self, run, order, theta):
        """Fail: nobody is to train."""
        raise AssertionError("a node that fills has its devices train")

    def end(self, run):
        """Do nothing."""


@pytest.mark.parametrize("stand_in", [None, NeverAsked()])
def test_zeros_are_sent_in_every_coordinate_by_an_edge_too_and_where_a_device_masks(stand_in, monkeypatch):
    """A client that only fills up a cohort sends zero in all coordinates, and in the clipping indicator."""
    monkeypatch.setattr(Job, "examples", NeverAsked().change)
    task = Task(DataSource("digits"), "linear", "iid", 40, seed=0)
    order = TrainingOrder(task, LocalTraining(5, 4, 0.5, 0.0), 0, "cpu", indicator_share=0.1)
    order = replace(order, may_fill=True, fills=True)
    theta = flatten(task.build_model())
    encoding = Encoding.for_sum(
        Contributors(6), dimension=len(theta) + 1, clipping_norm=1.0, noise_multiplier=1.0
    )
    who = Contributor(0, "run", stand_in=stand_in)
    who.check(order, theta, encoding)
    session: Any = SimpleNamespace(encoding=lambda: encoding)
    there: Any = SimpleNamespace(device=torch.device("cpu"), contribution=NeverAsked().change)
    on_device = DevicePart(there, session).steps(order, theta, who).numpy()
    for steps in (who.steps(order, theta, encoding), on_device):
        assert steps.dtype == np.int64
        assert steps.shape == (len(theta) + 1,)
        assert not steps.any()
    assert replace(order, fills=False).context(theta) == order.context(theta)
    assert TrainingOrder.from_scalars(order.to_scalars()) == order
