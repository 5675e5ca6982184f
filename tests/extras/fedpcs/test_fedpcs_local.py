"""Tests of method=fedpcs with local training: noised client updates, and local steps of DP-SGD."""

import json
import re
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting import pld
from scipy import stats

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import record_counts, task_of
from gdpfed.clients.order import OrderError
from gdpfed.clients.works.noised_update import with_own_noise
from gdpfed.errors import InputError, PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, epsilon_of_total
from gdpfed.extras.fedpcs.spending_plan import StepBudgets
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.record_steps import RecordSteps
from gdpfed.report.plan_table import plan_lines
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.resume import load_run
from gdpfed.simulation import simulate
from testing.small_runs import run
from tests.extras.fedpcs.planned_game import asked, fedpcs_of

TEN = (
    "dataset=digits",
    "dataset.num_clients=10",
    "method=fedpcs",
    "privacy.sampling_rate=0.5",
    "privacy.delta=1e-5",
    "privacy.accountant=pld",
    "method.budget_scale=0.01",
    "simulation.workers=1",
    "run.num_rounds=4",
)
UPDATE = (*TEN, "method.local=update")
# Two kinds of clients, so that noise is found for two levels only.
STEPS = (
    *TEN,
    "privacy=record_level",
    "method.local=dp_sgd",
    "method.aversions=" + str([0.2] * 5 + [0.8] * 5),
    "method.first_budgets=" + str([8.0] * 5 + [2.0] * 5),
    "privacy.batch_rate=0.25",
    "training.local_steps=3",
)


def method_of(*overrides):
    return fedpcs_of(overrides)


def steps_of(method):
    spending = method.spending
    assert isinstance(spending, StepBudgets)
    return spending


@pytest.mark.parametrize(("adjacency", "distance"), [("zero_out", 1.0), ("replace_one", 2.0)])
def test_an_update_has_the_noise_of_its_clients_budget(adjacency, distance):
    method = method_of(*UPDATE, f"privacy.adjacency={adjacency}", "privacy.clipping_norm=0.5")
    _, (request,) = asked(method, 2)
    assert (request.unit, request.work) == ("client", "noised_update")
    for client, told in zip(request.clients, request.records, strict=True):
        # Delta = distance C and sigma = z C: rho = Delta^2 / (2 sigma^2).
        rho = distance**2 / (2 * told.noise_multiplier**2)
        assert rho == pytest.approx(method.spending.budgets[2, client])
        assert told.clipping_norm == 0.5
    totals = method.spending.budgets.sum(axis=0)
    assert method.plan.groups[0].epsilon == pytest.approx(epsilon_of_total(float(totals.max()), 1e-5))


def test_no_clients_number_of_records_enters_where_clients_are_protected():
    method = method_of(*UPDATE)
    assert method.client_weights(1) == pytest.approx(method.spending.budgets[1])
    equal = method_of(*UPDATE, "method.weights=horvitz_thompson")
    assert equal.client_weights(1) == pytest.approx(0.1 / equal.inclusions[1])


def order_of(*, norm, noise, steps=1):
    class Order:
        work = "noised_update"
        records = RecordSteps(num_steps=steps, batch_rates=(1.0,), clipping_norm=norm, noise_multiplier=noise)

    return Order()


def test_two_updates_under_the_same_noise_are_no_further_apart_than_the_bound():
    generator, bits = np.random.default_rng(3), bytes(range(256)) * 100

    def noised(update, **changes):
        order = order_of(norm=0.7, noise=2.0, **changes)
        return with_own_noise(order, torch.from_numpy(update), lambda count: bits[:count]).numpy()

    nothing = noised(np.zeros(400))
    for size in (1e-3, 1.0, 1e6):
        update = size * generator.normal(size=400)
        moved = noised(update) - nothing
        norm = float(np.linalg.norm(update))
        assert moved == pytest.approx(update * min(1.0, 0.7 / norm), abs=1e-8)
        assert np.linalg.norm(moved) <= 0.7
    assert np.array_equal(noised(np.full(400, np.nan)), nothing)
    with pytest.raises(OrderError, match="does not state one positive noise_multiplier"):
        noised(np.zeros(400), steps=2)


@pytest.mark.parametrize(("secagg", "engine"), [("pairwise", "batched"), ("off", "sequential")])
def test_the_noise_of_a_real_sum_of_updates_is_that_of_every_clients_budget(tmp_path, secagg, engine):
    """With tiny budgets, the model changes in a round by noise of the variance that the budgets require."""
    budgets = [0.01 * (1 + client) for client in range(10)]
    config = load(
        [
            *UPDATE,
            f"method.first_budgets={budgets}",
            "method.budget_scale=0.01",
            "method.client_sampling=random",
            "method.spending=first",
            "method.weights=horvitz_thompson",
            "privacy.sampling_rate=1",
            "privacy.clipping_norm=0.5",
            "run.stop_after_round=1",
            f"simulation.engine={engine}",
            f"secagg={secagg}",
            f"run.directory={tmp_path / 'run'}",
        ]
    )
    simulate(config)
    start = flatten(task_of(config).build_model())
    moved = Checkpoint.load(tmp_path / "run").theta.astype(np.float64) - start
    variance = (0.1**2 * 0.5**2 / (2 * 0.01 * np.asarray(budgets))).sum()
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(start))
    assert low < (moved**2).sum() / variance < high


def cost(noise, num_steps):
    """Return epsilon of DP-SGD steps at sampling rate 0.25, by dp-accounting's own PLD accountant."""
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-3)
    step = dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(noise))
    return accountant.compose(step, num_steps).get_epsilon(1e-5)


def test_all_steps_of_a_client_cost_what_its_budgets_would():
    method = method_of(*STEPS)
    spending = steps_of(method)
    totals = spending.budgets.sum(axis=0)
    for client in (0, 9):
        promised = epsilon_of_total(float(totals[client]), 1e-5)
        assert spending.epsilons[client] == pytest.approx(promised, rel=1e-6)
        assert cost(spending.noise[client], 4 * 3) == pytest.approx(promised, rel=0.01)
    assert method.plan.groups[0].epsilon == spending.epsilons.max()
    _, (request,) = asked(method)
    told = request.records[0]
    assert (told.num_steps, told.batch_rates, request.work) == (3, (0.25,), "dp_sgd")
    assert told.noise_multiplier == spending.noise[request.clients[0]]
    counts = record_counts(method.config)
    inverse = (counts / spending.noise) ** 2
    assert method.client_weights(0) / method.client_weights(3)[0] == pytest.approx(inverse / inverse[0])


def test_many_budgets_are_rounded_down_to_few_levels(monkeypatch):
    sought = []

    def noise(accountant, *, epsilon, **others):
        del accountant, others
        sought.append(epsilon)
        return 1 / epsilon

    monkeypatch.setattr("gdpfed.extras.fedpcs.spending_plan.step_noise", noise)
    budgets = np.tile(np.geomspace(1e-4, 1e-1, 40), (3, 1))
    plain = ClientBudgets(
        budgets=budgets,
        draw_probabilities=np.full_like(budgets, 1 / 40),
        cohort_sizes=np.full(3, 5),
        draws="poisson",
        most_rounds=2,
    )
    found = StepBudgets.of(plain, steps=5, rate=0.1, delta=1e-5)
    exact = plain.most_epsilons(1e-5)
    assert len(set(sought)) == len(sought) == 8
    assert np.all(found.epsilons <= exact)
    assert (found.epsilons[0], found.epsilons[-1]) == pytest.approx((exact[0], exact[-1]))
    assert np.all(exact / found.epsilons < (exact[-1] / exact[0]) ** (1 / 7) * (1 + 1e-9))
    assert found.noise == pytest.approx(1 / found.epsilons)


@pytest.mark.parametrize("words", [UPDATE, STEPS])
def test_a_node_is_not_offered_terms_that_it_cannot_check(words):
    method = method_of(*words)
    with pytest.raises(PrivacyError, match="can check budgets by round for full gradients alone"):
        terms_of(method.plan, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0, client=0)


def test_a_ledger_refuses_other_steps_than_planned():
    method = method_of(*STEPS, "method.max_participations=1", "privacy.sampling_rate=1")
    ledger, (cohorts, (request,)) = new_ledger(method), asked(method)
    ledger.open_round(0, cohorts)
    for change, words in (
        ({"num_steps": 4}, "is asked for 4 steps, and the plan charges 3"),
        ({"batch_rates": (0.3,)}, "is asked for batch rates \\(0.3,\\), and the plan's is 0.25"),
        ({"noise_multiplier": 0.1}, "noise multiplier 0.1 of client 0 is below the plan's"),
    ):
        records = [replace(each, **change) for each in request.records]
        with pytest.raises(PrivacyError, match=words):
            ledger.charge(0, [replace(request, records=records)])
    assert ledger.charge(0, [request])
    assert ledger.against_server()[0] == pytest.approx(cost(steps_of(method).noise.min(), 3), rel=0.01)
    with pytest.raises(PrivacyError, match="client 0 has no step left"):
        ledger.open_round(1, cohorts)


@pytest.fixture(scope="module", params=["update", "dp_sgd"])
def finished(request, tmp_path_factory):
    """Start a run through Flower messages, resume it in this process; return its kind and directory."""
    directory = tmp_path_factory.mktemp(request.param) / "run"
    words = UPDATE if request.param == "update" else STEPS
    run(directory, [*words, "method.max_participations=3", "run.stop_after_round=1"])
    simulate(load_run([f"run.resume={directory}"]))
    return request.param, directory


def test_a_run_is_charged_audited_and_paid(finished):
    local, directory = finished
    audit = audit_run(directory)
    assert audit.findings == ()
    assert audit.passed
    plan = json.loads((directory / "plan.json").read_text())
    taken = json.loads((directory / "ledger.json").read_text())["taken"]
    own = plan["groups"][0]["spending"]
    if local == "update":
        budgets = np.asarray(own["budgets"])
        totals = [budgets[rounds, int(client)].sum() for client, rounds in taken.items()]
        spent = epsilon_of_total(max(totals), 1e-5)
    else:
        noise = own["steps"]["noise_multipliers"]
        most = {noise[int(client)]: 0 for client in taken}
        for client, rounds in taken.items():
            most[noise[int(client)]] = max(most[noise[int(client)]], len(rounds))
        spent = max(cost(sigma, 3 * rounds) for sigma, rounds in most.items())
    assert audit.groups[0].against_server == pytest.approx(spent, rel=0.01)
    earned = json.loads((directory / "rewards.json").read_text())["clients"]
    paths = np.asarray(own["budgets"]) / 0.01
    assert earned == pytest.approx({c: 5 * paths[rounds, int(c)].sum() for c, rounds in taken.items()})
    card = (directory / "model_card.md").read_text()
    unit = "client" if local == "update" else "record"
    assert f"{unit}-level differential privacy (zero out)" in card
    assert ("how many records every client has" in card) == (unit == "record")


def changed(directory, copy, change):
    for path in directory.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    plan = json.loads((copy / "plan.json").read_text())
    change(plan, plan["groups"][0])
    (copy / "plan.json").write_text(json.dumps(plan))
    return " | ".join(audit_run(copy).findings)


def test_files_that_were_changed_are_found(finished, tmp_path):
    local, directory = finished
    if local == "update":
        found = changed(directory, tmp_path, lambda plan, group: plan.update(adjacency="replace_one"))
        assert "plan.json has adjacency replace_one, the configuration zero_out" in found
        return

    def less(plan, group):
        steps = group["spending"]["steps"]
        steps["noise_multipliers"] = [0.5 * each for each in steps["noise_multipliers"]]
        steps["num_steps"] = 2

    found = changed(directory, tmp_path, less)
    assert "plan.json has num_steps 2, the configuration 3" in found
    assert re.search(r"promises epsilon [0-9.]+ at noise [0-9.]+, which costs", found)


@pytest.mark.parametrize("words", [UPDATE, STEPS])
def test_the_plan_is_shown_and_in_json(words):
    method = method_of(*words)
    text = " ".join(" ".join(plan_lines(method, SecAggConfig())).split())
    unit = method.plan.unit
    assert f"{unit}-level DP" in text
    assert f"zero_out adjacency of one {unit}" in text
    described = json.loads(json.dumps(method.describe()))
    assert described["totals"]["most_epsilon"] == pytest.approx(method.spending.most_epsilons(1e-5))
    assert ("expected_steps" in described["totals"]) == (words is STEPS)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*UPDATE, "method.local=much"], "local=much is not known: use full_gradient, update or dp_sgd"),
        ([*UPDATE, "method.local=dp_sgd"], "protects a record, not privacy.unit=client: set"),
        ([*STEPS, "method.local=update"], "method.local=update protects a client, not privacy.unit=record"),
        ([*UPDATE, "privacy.noise=discrete_gaussian"], "is noise that clients share"),
        ([*UPDATE, "privacy.accountant=rdp"], "privacy.accountant=rdp does not go with method=fedpcs"),
        ([*UPDATE, "privacy.clipping=adaptive"], "privacy.clipping=adaptive does not go with method=fedpcs"),
        ([*UPDATE, "method.types=clients"], "method.types=clients has nodes check paths of full gradients"),
        ([*STEPS, "method.client_sampling=unbiased"], "method.client_sampling=unbiased needs the noise"),
        ([*STEPS, "method.budget_scale=10"], "protects nobody: set a smaller method.budget_scale"),
    ],
)
def test_what_has_no_accounting_is_one_line(overrides, words):
    with pytest.raises(InputError, match=re.escape(words)) as error:
        make_method(load([*overrides]))
    assert "\n" not in str(error.value)
