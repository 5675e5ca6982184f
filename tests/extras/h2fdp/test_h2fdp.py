"""Tests of H2FDP's subnets: their clients, trust, requests, sums and charges, and refused settings."""

from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import OrderError
from gdpfed.clients.record_work import check_convex
from gdpfed.errors import ConfigError, InputError, PrivacyError, RunError
from gdpfed.extras.h2fdp.subnet_mechanisms import reserved_delta
from gdpfed.extras.h2fdp.subnet_tables import observers
from gdpfed.learning.labels import LABEL_KINDS
from gdpfed.learning.labels.classes import Classes
from gdpfed.learning.models import flatten
from gdpfed.learning.models.networks import convex_bounds
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.optimizers import SCHEDULES
from gdpfed.methods import make_method
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.release import NoiseAt
from gdpfed.record_steps import record_move
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.plan_lines import plan_warnings
from gdpfed.rounds.state import new_ledger
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.in_process_fleet import InProcessFleet
from secagg import keystream

RECORDS = (
    "dataset=digits",
    "dataset.num_clients=12",
    "dataset.model=softmax",
    "privacy=record_level",
    "privacy.budgets=[4]",
    "privacy.batch_rate=0.2",
    "training.local_steps=4",
    "method.num_subnets=3",
    "run.num_rounds=2",
    "secagg=off",
)
CONVEX = ("method=h2fdp", "method.mechanism=convex", "method.local_aggregations=2")


@cache
def configured(*overrides):
    return load([*RECORDS, *overrides])


def made(*overrides):
    return make_method(configured(*overrides))


def test_clients_are_cut_into_subnets_of_one_budget():
    plan = made("method=h2fdp", "dataset.num_clients=13", "method.num_subnets=3").plan
    assert [group.clients for group in plan.groups] == [range(5), range(5, 9), range(9, 13)]
    assert {group.epsilon for group in plan.groups} == {4.0}
    assert set(plan.mechanism.trusts) == {"secagg"}


@pytest.mark.parametrize(
    ("overrides", "trust"),
    [
        ((), ["secagg"] * 3),
        (("method.trusted_share=0.34",), ["trusted", "secagg", "secagg"]),
        (("method.trusted_share=0.34", "method.trust=untrusted"), ["trusted", "untrusted", "untrusted"]),
        (("method.trust=[untrusted,trusted,secagg]",), ["untrusted", "trusted", "secagg"]),
    ],
)
def test_trust_is_a_word_for_each_subnet_or_a_share(overrides, trust):
    assert [*made(*CONVEX, *overrides).plan.mechanism.trusts] == trust


@pytest.mark.parametrize(
    ("mechanism", "windows", "steps", "work"),
    [
        ("convex", 2, 2, "convex_steps"),
        ("window", 2, 2, "window_steps"),
        ("step_sum", 4, 1, "gradient_sum"),
        ("step_local", 2, 2, "dp_sgd"),
    ],
)
def test_what_a_round_is_charged_for(mechanism, windows, steps, work):
    """H2FDP charges two rounds of four local steps each, under each of four mechanisms for records."""
    aggregations = 4 if mechanism == "step_sum" else 2
    method = made(
        "method=h2fdp", f"method.mechanism={mechanism}", f"method.local_aggregations={aggregations}"
    )
    plan = method.plan
    assert (plan.works, plan.sums_per_round, method.window_steps) == ((work,), windows, steps)
    (charge,) = plan.charges(0)
    assert (charge.count, charge.event.num_steps, charge.unit) == (2, 4, "record")
    assert plan.groups[0].epsilon_accounted <= 4.0


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("method.num_subnets=5",), "method.num_subnets=5 of dataset.num_clients=12 leaves subnets of 2"),
        (("dataset.model=linear",), "dataset.model=linear has none: use dataset.model=softmax"),
        (("training.momentum=0.9",), "training.momentum=0.9 does not go with method.mechanism=convex"),
        (
            ("method.mechanism=window", "training.momentum=0.9"),
            "training.momentum=0.9 does not go with method.mechanism=window",
        ),
        (
            ("method.local_aggregations=3",),
            "training.local_steps=4 are not method.local_aggregations=3 windows",
        ),
        (("method.participants=0",), "method.participants=0 must be at least 1"),
        (("method.participants=5",), "method.participants=5 of subnets with 4 devices"),
        (("method.participants=2",), "subnets of 2 devices a sum, below secagg.minimum_cohort=3"),
        (("method.trust=often",), "method.trust=often is not known: use trusted, secagg or untrusted"),
        (("method.trust=[secagg]",), "must be one word, or one for each"),
        (("method.trusted_share=1.5",), "method.trusted_share=1.5 must be from 0 to 1"),
        (("method.mechanism=update",), "method.mechanism=update protects a client, not privacy.unit=record"),
        (("privacy.accountant=rdp",), "set privacy.accountant=pld, or method.mechanism=step_sum"),
        (("method.mechanism=fast",), "method.mechanism=fast is not known: use auto, update"),
        (("dataset.class_weights=[1,1,1,1,1,1,1,1,1,2]",), "without weights"),
        (
            ("method.mechanism=step_local", "method.trusted_share=1"),
            "step_local adds noise on every device, whoever is trusted",
        ),
        (("method.mechanism=step_sum",), "sums after every step: method.local_aggregations=2"),
    ],
)
def test_bad_input_is_one_line(overrides, line):
    with pytest.raises(InputError) as refused:
        make_method(load([*RECORDS, *CONVEX, *overrides]))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_step_that_could_expand_distances_is_refused_with_one_that_cannot():
    with pytest.raises(PrivacyError, match=r"training.learning_rate=3 is too large .* Any rate up to 0.792"):
        made(*CONVEX, "training.learning_rate=3")


def test_a_step_of_any_round_must_expand_no_distances(monkeypatch):
    monkeypatch.setitem(SCHEDULES._items, "late", lambda index, rounds: 10.0 if index == rounds - 1 else 1.0)
    assert reserved_delta(configured(*CONVEX, "training.learning_rate=0.3")) == 0.0
    with pytest.raises(PrivacyError, match=r"training.learning_rate=0.3 is too large .* as it reaches 3:"):
        made(
            *CONVEX, "training.learning_rate=0.3", "training.learning_rate_decay=1", "training.schedule=late"
        )


TIMES = """\
label: {time: days, event: {column: status, censored: alive, happened: dead}, intervals: 2, horizon: 60}
numeric: {age: [0, 100]}
party: {column: ward, values: [a, b, c]}
"""


def test_steps_are_convex_for_labels_that_are_one_class_alone(tmp_path, monkeypatch):
    rows = [f"{k},{k + 1},{('dead', 'alive')[k % 2]},{'abc'[k % 3]}" for k in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(["age,days,status,ward", *rows, ""]))
    (tmp_path / "columns.yaml").write_text(TIMES)
    table = (f"dataset.path={tmp_path / 'data.csv'}", "dataset.num_clients=3", "method.num_subnets=1")
    words = [
        "dataset=csv",
        *RECORDS[2:],
        *CONVEX,
        "dataset.loss=cross_entropy",
        "training.momentum=0",
        *table,
    ]
    with pytest.raises(ConfigError, match=r"proved for labels that are one class, and those of dataset=csv"):
        make_method(load(words))
    monkeypatch.setitem(LABEL_KINDS._items, "shares", type("Shares", (Classes,), {"dtype": "float32"}))
    method, task = made(*CONVEX), task_of(configured(*CONVEX)).described()
    records = method.requests(np.zeros(650, np.float32), 0, cohorts_of(method.plan))[0].records[0]
    order = replace(order_of(configured(*CONVEX), task), work="convex_steps", records=records)
    bounds = convex_bounds(task.build_model())
    assert check_convex(order, bounds) == bounds
    for kind in ("times_to_event", "shares"):
        other = replace(task, form=replace(task.known_form, label_kind=kind))
        with pytest.raises(OrderError, match="bound holds for labels that are one class"):
            check_convex(replace(order, task=other), bounds)


def test_clients_are_protected_by_sums_of_updates():
    """With two sums in each of two rounds, a client's noise is planned for four Gaussian releases."""
    method = made("method=h2fdp", "privacy=client_level", "method.local_aggregations=2", "privacy.delta=1e-5")
    plan = method.plan
    assert (plan.works, plan.unit, plan.sums_per_round) == (("update",), "client", 2)
    assert plan.groups[0].sampling_rate == 1.0
    # Four releases: sigma of one, times two.
    from dp_accounting import get_sigma_gaussian

    assert plan.groups[0].noise_multiplier == pytest.approx(2 * get_sigma_gaussian(4.0, 1e-5), rel=2e-3)


def test_observers_of_a_trusted_edge_and_of_others():
    method = made(*CONVEX, "method.trust=[trusted,secagg,untrusted]", "secagg=pairwise")
    seen = [observers(method, index) for index in range(3)]
    assert [np.isinf(each.edge) for each in seen] == [True, False, False]
    for each in seen:
        assert each.members == each.cloud == method.plan.groups[0].epsilon_accounted
    noise = [method.mean_noise(index) for index in range(3)]
    # Of four devices that share the noise, one knows its own share.
    assert noise[1] == pytest.approx(np.sqrt(4 / 3) * noise[0], rel=0.02)
    assert noise[2] == pytest.approx(2 * noise[1], rel=0.02)


class Answers:
    """A stand-in for a fleet: it answers requests for sums by a given function and records them."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def __call__(self, requests):
        self.asked.append(list(requests))
        return [self.answer(request) for request in requests]


def cohorts_of(plan):
    return tuple(np.asarray(group.clients, dtype=np.int64) for group in plan.groups)


def test_windows_go_on_from_the_subnets_own_models_and_the_round_averages_them():
    """A subnet's second sum in a round starts from its own model, and the round averages all subnets."""
    method = made("method=hier_fedavg", "method.local_aggregations=2")

    def answer(request):
        subnet = int(request.clients[0]) // 4
        return ClientSum(request.name, np.full(5, 4.0 * (subnet + 1)), 4, members=tuple(request.clients))

    fleet = Answers(answer)
    theta, sums = method.round(np.zeros(5, np.float32), 0, cohorts_of(method.plan), fleet)
    assert theta.tolist() == [4.0] * 5
    first, second = fleet.asked
    assert [request.start[0] for request in first] == [0.0] * 3
    assert [request.start[0] for request in second] == [1.0, 2.0, 3.0]
    assert [request.window for request in second] == [1] * 3
    assert [each.name for each in sums][::3] == ["subnet 0, window 1", "subnet 0, window 2"]
    assert {request.training.local_steps for request in first} == {2}


def test_a_subnet_without_a_sum_leaves_the_mean_to_the_others():
    method = made("method=hier_fedavg", "method.local_aggregations=2")

    def answer(request):
        subnet = int(request.clients[0]) // 4
        lost = subnet == 0 or (subnet == 1 and request.window == 0)
        total = None if lost else np.full(5, 4.0)
        return ClientSum(request.name, total, 4 * (not lost), members=tuple(request.clients))

    theta, _ = method.round(np.zeros(5, np.float32), 0, cohorts_of(method.plan), Answers(answer))
    # Subnet 1 has one window, subnet 2 both.
    assert theta.tolist() == [1.5] * 5
    nothing = Answers(lambda request: ClientSum(request.name, None, 0))
    unmoved, _ = method.round(theta, 1, cohorts_of(method.plan), nothing)
    assert unmoved.tolist() == theta.tolist()


def seeded_bits(client_id):
    return keystream(bytes([client_id]) * 32)


def one_wave(method, config, requests, secagg):
    """Charge requests for sums to a new ledger, and return the sums; batches are sampled by fixed keys."""
    task = task_of(config)
    engine = BatchedEngine(task, choose_device("cpu"), bits=seeded_bits)
    ledger = new_ledger(method)
    ledger.open_round(0, cohorts_of(method.plan))
    charged = ledger.charge(0, requests)
    return InProcessFleet(secagg, "test", engine).sum_updates(order_of(config, task), charged)


def test_a_sum_under_secure_aggregation_is_that_of_a_trusted_edge_up_to_noise():
    config = configured(*CONVEX, "method.trust=[trusted,secagg,secagg]", "secagg=pairwise")
    method = make_method(config)
    theta = flatten(task_of(config).build_model())
    trusted, masked, _ = method.requests(theta, 0, cohorts_of(method.plan))
    assert (trusted.noise_at, masked.noise_at) == (NoiseAt.EDGE, NoiseAt.CLIENT)
    here = one_wave(method, config, [trusted], config.secagg)[0]
    # The same subnet under secure aggregation: more than is planned for it, so the ledger lets it pass.
    there = one_wave(method, config, [replace(trusted, noise_at=NoiseAt.CLIENT)], config.secagg)[0]
    stddev = method.plan.groups[0].noise_stddev
    # The edge adds the plan's noise; of four members three shares are the plan's, for each knows its own.
    apart = (here.total - there.total) / (stddev * (1 + 4 / 3) ** 0.5)
    assert here.members == there.members == (0, 1, 2, 3)
    assert abs(apart.std() - 1) < 0.15
    assert abs(apart.mean()) < 5 / len(apart) ** 0.5
    # Of signal and noise together much is the same: the sums are of the same gradients.
    assert np.linalg.norm(here.total) < 20 * stddev * len(apart) ** 0.5


@pytest.mark.parametrize("word", ["secagg", "untrusted"])
def test_no_edge_adds_the_noise_where_none_is_trusted(word):
    method = made(*CONVEX, f"method.trust={word}")
    ledger = new_ledger(method)
    ledger.open_round(0, cohorts_of(method.plan))
    first = method.requests(np.zeros(650, np.float32), 0, cohorts_of(method.plan))[0]
    with pytest.raises(PrivacyError, match="noise is added edge, and the plan's is added by every client"):
        ledger.charge(0, [replace(first, noise_at=NoiseAt.EDGE)])


def test_the_ledger_lets_pass_what_is_planned_and_nothing_cheaper():
    method = made(*CONVEX, "method.trust=untrusted")
    ledger = new_ledger(method)
    ledger.open_round(0, cohorts_of(method.plan))
    first = method.requests(np.zeros(650, np.float32), 0, cohorts_of(method.plan))[0]
    shared = replace(first, noise_multiplier=first.noise_multiplier / 2**0.5)
    with pytest.raises(PrivacyError, match="noise multiplier .* is below the plan's"):
        ledger.charge(0, [shared])
    shorter = [replace(each, num_steps=1) for each in first.records]
    with pytest.raises(PrivacyError, match="asked for a window of 1 steps, and the plan charges those of 2"):
        ledger.charge(0, [replace(first, records=shorter)])
    again = [replace(first, name=f"window {number}") for number in range(3)]
    ledger.charge(0, again[:2])
    with pytest.raises(PrivacyError, match="in 2 sums of this round already"):
        ledger.charge(0, again[2:])


def test_the_ledger_lets_no_work_pass_whose_windows_the_plan_charges_by_another_bound():
    """The ledger refuses steps accounted by the bound for convex losses if the plan charges another bound."""
    method = made(*CONVEX)
    cohorts = cohorts_of(method.plan)
    requests = method.requests(np.zeros(650, np.float32), 0, cohorts)
    cheaper = tuple(replace(cast("Any", each), bound="window") for each in records_of(method.plan))
    method.plan = replace(method.plan, mechanism=replace(method.plan.mechanism, records=cheaper))
    ledger = new_ledger(method)
    ledger.open_round(0, cohorts)
    with pytest.raises(
        PrivacyError, match="by the bound convex, and the plan charges windows .* bound window"
    ):
        ledger.charge(0, requests)


def test_a_fleet_without_edges_says_so_before_anything_is_charged():
    config = configured(*CONVEX, "method.trusted_share=1")
    method, task = make_method(config), task_of(config)
    requests = method.requests(flatten(task.build_model()), 0, cohorts_of(method.plan))

    class Flat(InProcessFleet):
        has_edges = False

    with pytest.raises(RunError, match="a flat federation has no edge to trust: use method.trust=secagg"):
        Flat(config.secagg, "test", cast("Any", None)).check(order_of(config, task), requests)


def test_the_unit_of_noise_is_what_a_record_moves():
    plan = made("method=h2fdp", "method.mechanism=window", "method.local_aggregations=2").plan
    records = records_of(plan)[0]
    assert records.clipping_norm == 2 * 2 * 1.0
    assert plan.groups[0].noise_stddev == pytest.approx(records.noise_multiplier * 4.0)
    method = made(*CONVEX)
    request = method.requests(np.zeros(650, np.float32), 0, cohorts_of(method.plan))[0]
    assert record_move("convex_steps", request.records[0]) == pytest.approx((2 * 1.01) ** 0.5)


@pytest.mark.parametrize(
    ("name", "subnets", "windows"), [("hier_fedavg", 3, 1), ("hfl_dp", 3, 1), ("pedpfl", 1, 1)]
)
def test_baselines(name, subnets, windows):
    own = [each for each in RECORDS if name != "pedpfl" or "num_subnets" not in each]
    plan = make_method(load([*own, f"method={name}"])).plan
    assert (len(plan.groups), plan.sums_per_round) == (subnets, windows)
    trusts = {getattr(plan.mechanism, "trusts", None)}
    assert trusts == ({None} if name == "hier_fedavg" else {("untrusted",) * subnets})
    assert plan.private == (name != "hier_fedavg")


def test_baselines_that_trust_nobody_refuse_trust():
    with pytest.raises(ConfigError, match="trusts nobody; use method=h2fdp"):
        make_method(load([*RECORDS, "method=hfl_dp", "method.trusted_share=0.5"]))


@pytest.mark.parametrize(
    ("overrides", "against"),
    [
        (("secagg=pairwise",), "everyone"),
        (("method.mechanism=step_local",), "everyone"),
        ((), "all but the server"),
        (("secagg=pairwise", "method.trusted_share=0.34"), "all but the trusted edges"),
        (("method.trusted_share=0.34",), "all but the server and the trusted edges"),
    ],
)
def test_the_promise_names_against_whom_it_is_not(overrides, against):
    method = made("method=h2fdp", *overrides)
    said = report_of(method.plan).promise_in_short(method.plan)
    assert said == f"record-level DP (delta {method.plan.delta:.3g}) against {against}"


def test_several_budgets_of_which_the_strictest_holds_for_all_are_warned_of():
    for budgets, number in (("[2,4]", 1), ("[2]", 0)):
        config = load([*RECORDS[:4], "method=h2fdp", "method.num_subnets=3", f"privacy.budgets={budgets}"])
        said = list(plan_warnings(make_method(config).plan, config))
        found = [each for each in said if "method=h2fdp holds everybody to the strictest, 2:" in each]
        assert len(found) == number
