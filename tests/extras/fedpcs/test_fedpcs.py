"""Tests of method=fedpcs: plans, requests, noise, charges and payments, and refused settings."""

import json
import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import record_counts, task_of
from gdpfed.errors import InputError, PrivacyError
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.learning.models import flatten
from gdpfed.methods import ClientSum
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.report.ending import show_ending
from gdpfed.report.plan_lines import plan_warnings
from gdpfed.report.plan_table import plan_lines
from gdpfed.rounds.enough import without_small_sums
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.resume import load_run
from gdpfed.simulation import simulate
from testing.small_runs import run
from tests.extras.fedpcs.planned_game import asked, fedpcs_of

TWELVE = (
    "dataset=digits",
    "dataset.num_clients=12",
    "privacy=record_level",
    "privacy.sampling_rate=0.5",
    "method=fedpcs",
    "simulation.workers=1",
    "run.num_rounds=4",
)


def method_of(*overrides):
    return fedpcs_of([*TWELVE, *overrides])


def test_each_client_is_asked_with_the_noise_of_its_own_budget():
    method = method_of()
    _, (request,) = asked(method, 2)
    for client, steps in zip(request.clients, request.records, strict=True):
        rho = method.spending.budgets[2, client]
        # Delta = 2 C / D and sigma = z C / D: rho = Delta^2 / (2 sigma^2).
        assert 2**2 / (2 * steps.noise_multiplier**2) == pytest.approx(rho)
        assert (steps.num_steps, steps.batch_rates, steps.clipping_norm) == (1, (1.0,), 1.0)
    assert method.plan.groups[0].epsilon == pytest.approx(
        max(epsilon_of_total(float(total), 1e-5) for total in method.spending.budgets.sum(axis=0))
    )


@pytest.mark.parametrize("by", ["budget", "horvitz_thompson", "paper"])
def test_weights_are_public_and_unbiased_where_they_say_so(by):
    method = method_of(f"method.weights={by}")
    counts = record_counts(method.config)
    weights, x = method.client_weights(1), method.spending.draw_probabilities[1]
    if by == "budget":
        assert weights == pytest.approx(method.spending.budgets[1] * counts**2)
    elif by == "paper":
        assert weights == pytest.approx(counts / counts.sum() / (6 * x))
    else:
        assert (method.inclusions[1] * weights).sum() == pytest.approx(1)


def test_a_step_is_the_weighed_sum_that_was_released():
    for by in ("budget", "horvitz_thompson"):
        method = method_of(f"method.weights={by}", "method.server_learning_rate=0.5")
        _, (request,) = asked(method)
        values = np.random.default_rng(0).normal(size=(len(request.clients), 650))
        total = (request.client_weights[:, None] * values).sum(axis=0)
        own = method.client_weights(0)[request.clients]
        expected = 0.5 * (own[:, None] * values).sum(axis=0) / (own.sum() if by == "budget" else 1)
        _, (released,) = method.round(np.zeros(650, np.float32), 0, [request.clients], summed(total))
        assert method.change(released, 0) == pytest.approx(expected)


def summed(total):
    def sum_updates(requests):
        (request,) = requests
        return [ClientSum(request.name, total, len(request.clients), members=request.clients.tolist())]

    return sum_updates


@pytest.mark.parametrize("secagg", ["pairwise", "off"])
def test_the_noise_of_a_real_sum_is_that_of_every_clients_own_budget(tmp_path, secagg):
    """With tiny budgets, the model changes in a round by noise of the variance that the budgets require."""
    budgets = [0.01 * (1 + client) for client in range(12)]
    config = load(
        [
            *TWELVE,
            f"method.first_budgets={budgets}",
            "method.budget_scale=1e-4",
            "method.client_sampling=random",
            "method.spending=first",
            "method.weights=horvitz_thompson",
            "privacy.sampling_rate=1",
            "training.learning_rate=1.0",
            "run.stop_after_round=1",
            f"secagg={secagg}",
            f"run.directory={tmp_path / 'run'}",
        ]
    )
    simulate(config)
    start, counts = flatten(task_of(config).build_model()), record_counts(config)
    moved = Checkpoint.load(tmp_path / "run").theta.astype(np.float64) - start
    shares, sigmas = counts / counts.sum(), np.sqrt(2 / (1e-4 * np.asarray(budgets))) / counts
    variance = ((shares * sigmas) ** 2).sum()
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(start))
    assert low < (moved**2).sum() / variance < high


def test_equal_spending_gives_every_client_the_total_that_it_has_in_the_game():
    own = method_of().spending.expected_totals()
    for sampling in ("random", "first_budgets", "unbiased"):
        other = method_of(f"method.client_sampling={sampling}").spending
        assert other.expected_totals() == pytest.approx(own)
    paper = method_of("method.client_sampling=random", "method.spending=paper").spending
    assert np.all(paper.budgets == 0.01)
    assert paper.expected_totals().max() < own.min()


def test_unbiased_sampling_adds_least_noise_of_all_unbiased_ways():
    def noise(method):
        sigma = 2 / (2 * method.spending.budgets[1]) / record_counts(method.config) ** 2
        variance = method.inclusions[1] * (method.client_weights(1) ** 2) * sigma
        return variance.sum()

    common = ("method.weights=horvitz_thompson", "method.spending=first")
    best = noise(method_of(*common, "method.client_sampling=unbiased"))
    levels = method_of(*common).spending.budgets
    assert np.all(method_of(*common, "method.client_sampling=unbiased").spending.budgets == levels)
    assert best < noise(method_of(*common))


def test_caps_say_how_many_are_sampled():
    sizes = method_of("method.caps=[60,20]", "run.num_rounds=5").spending.cohort_sizes
    assert sizes[1] > sizes[2] > sizes[4]


def test_the_best_reward_for_the_server_is_none():
    assert method_of("method.reward=best", "run.num_rounds=3").equilibrium.rewards.tolist() == [0.0] * 3


def test_the_plan_in_json_has_paths_chances_and_totals():
    described = json.loads(json.dumps(method_of().describe()))
    totals, game = described["totals"], described["game"]
    assert np.shape(game["paths"]) == np.shape(totals["inclusion_probabilities"]) == (4, 12)
    assert np.sum(totals["inclusion_probabilities"], axis=1) == pytest.approx([6.0] * 4)
    figures = zip(totals["epsilon_secret_samples"], totals["most_epsilon"], strict=True)
    assert all(0 < secret <= most * (1 + 1e-3) for secret, most in figures)
    assert totals["most_epsilon"] == pytest.approx([epsilon_of_total(r, 1e-5) for r in totals["most_zcdp"]])


def test_who_is_drawn_for_no_sum_is_neither_asked_nor_charged(tmp_path):
    """A client that would be alone in a sum is neither asked nor charged."""
    words = [*TWELVE, "dataset.num_clients=6", "privacy.sampling_rate=0.83", "privacy.accountant=pld"]
    words += ["method.draws=without_replacement", "method.max_participations=1", "method.budget_scale=0.01"]
    # In so many rounds the one that is left is drawn, but for a rare chance.
    records = run(tmp_path / "run", [*words, "run.num_rounds=8"])
    assert [each.cohort_sizes for each in records] == [[5], *[[0]] * 7]
    taken = json.loads((tmp_path / "run" / "ledger.json").read_text())["taken"]
    assert sorted(taken.values()) == [[0]] * 5
    assert audit_run(tmp_path / "run").passed


def test_draws_that_no_sum_is_made_of_are_refused_before_anything():
    plan = method_of("method.draws=without_replacement", "privacy.sampling_rate=0.17").plan
    cohorts = draw_cohorts(plan, 0, bytes(32))
    assert [len(each) for each in cohorts] == [2]
    assert [len(each) for each in without_small_sums(plan, SecAggConfig(), cohorts)] == [0]
    with pytest.raises(PrivacyError, match="100 % of the rounds would go without any sum"):
        refuse_skipped(plan, 3)
    alone = method_of("method.client_sampling=delta", "secagg=off")
    assert (alone.reads_alone, alone.least_members(load([*TWELVE]))) == (True, 1)


def test_the_plan_is_shown_in_few_lines():
    lines = plan_lines(method_of(), SecAggConfig())
    assert len(lines) < 40
    assert "mean field converged in" in " ".join(" ".join(lines).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Start a run through Flower messages, resume it in this process, and return its directory."""
    directory = tmp_path_factory.mktemp("fedpcs") / "run"
    words = [*TWELVE, "method.budget_scale=0.01", "method.max_participations=3", "privacy.delta=1e-5"]
    run(directory, [*words, "privacy.accountant=pld", "run.stop_after_round=2"])
    simulate(load_run([f"run.resume={directory}"]))
    return directory


@pytest.mark.parametrize("sampling", ["random", "first_budgets", "unbiased"])
def test_a_run_whose_samples_do_not_follow_budgets_passes_its_audit(tmp_path, sampling):
    words = [f"method.client_sampling={sampling}", "privacy.accountant=pld", "run.num_rounds=2"]
    run(tmp_path / "run", [*TWELVE, *words])
    assert audit_run(tmp_path / "run").findings == ()


def test_a_run_is_charged_by_client_audited_and_paid(finished):
    audit = audit_run(finished)
    assert audit.findings == ()
    assert audit.passed
    taken = json.loads((finished / "ledger.json").read_text())["taken"]
    plan = json.loads((finished / "plan.json").read_text())
    budgets = np.asarray(plan["groups"][0]["spending"]["budgets"])
    totals = {client: budgets[rounds, int(client)].sum() for client, rounds in taken.items()}
    assert max(map(len, taken.values())) <= 3
    assert audit.groups[0].against_server == pytest.approx(epsilon_of_total(max(totals.values()), 1e-5))
    earned = json.loads((finished / "rewards.json").read_text())["clients"]
    assert earned == pytest.approx({client: 5 * total / 0.01 for client, total in totals.items()})
    card = (finished / "model_card.md").read_text()
    assert "record-level differential privacy (replace one)" in card


def twice(taken):
    """Edit a ledger: replace a client's second round by its first round."""
    rounds = next(each for each in taken.values() if len(each) > 1)
    rounds[1] = rounds[0]


@pytest.mark.parametrize(
    ("file", "change", "finding"),
    [
        ("ledger.json", lambda data: data["taken"].popitem(), "not as many as its counts"),
        ("ledger.json", lambda data: twice(data["taken"]), "which are not charged"),
        (
            "plan.json",
            lambda data: data["groups"][0]["spending"]["budgets"][0].__setitem__(0, 1e-9),
            "was opened for plan",
        ),
        (
            "plan.json",
            lambda data: data["groups"][0].__setitem__("epsilon", 1.0),
            "promises epsilon 1, its budgets cost",
        ),
    ],
)
def test_files_that_were_changed_are_found(finished, tmp_path, file, change, finding):
    for path in finished.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    data = json.loads((tmp_path / file).read_text())
    change(data)
    (tmp_path / file).write_text(json.dumps(data))
    assert any(finding in line for line in audit_run(tmp_path).findings)


def test_a_ledger_refuses_less_noise_and_more_rounds_than_planned():
    method = method_of("method.max_participations=1", "privacy.sampling_rate=1")
    ledger, (cohorts, (request,)) = new_ledger(method), asked(method)
    ledger.open_round(0, cohorts)
    loud = [replace(each, noise_multiplier=0.9 * each.noise_multiplier) for each in request.records]
    with pytest.raises(PrivacyError, match="noise multiplier .* of client 0 is below the plan's"):
        ledger.charge(0, [replace(request, records=loud)])
    twice = [replace(each, num_steps=2) for each in request.records]
    with pytest.raises(PrivacyError, match="is asked for 2 steps, and the plan charges 1"):
        ledger.charge(0, [replace(request, records=twice)])
    assert ledger.charge(0, [request])
    assert Ledger.from_dict(method.plan, ledger.to_dict()).against_server() == ledger.against_server()
    (left,) = ledger.with_steps_left(cohorts, 1)
    assert len(left) == 0
    with pytest.raises(PrivacyError, match="client 0 has no step left"):
        ledger.open_round(1, cohorts)
    saved = ledger.to_dict()
    saved["taken"]["0"] = [3]
    with pytest.raises(PrivacyError, match="has client 0 in round 3, of 1 that are charged"):
        Ledger.from_dict(method.plan, saved)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["privacy.unit=client"],
            "method.local=full_gradient protects a record, not privacy.unit=client: set privacy=record_level",
        ),
        (["method.aversions=[0.5]"], "method.aversions has 1 entries for dataset.num_clients=12"),
        (["method.aversions=" + str([0.5] * 11 + [1.0])], "client 11 has an aversion of 1"),
        (["method.first_budgets=" + str([1.0] * 11 + [12.5])], "client 11 has a first budget of 12.5"),
        (
            ["method.least_budget=13"],
            "method.least_budget=13.0 must be above 0 and below method.highest_budget=12",
        ),
        (["method.caps=[40,1]"], "no sample meets a round's cap of 1"),
        (["privacy.sampling_rate=0.01"], "K = 0 clients are to be sampled of 12"),
        (["method.types=clients"], "a simulation or a plan has no nodes"),
        (["method.types=clients", "method.aversions=[0.5]"], "method.aversions=[0.5] does not go with"),
        (["method.types=clients", "method.caps=[40,20]"], "method.caps=[40.0, 20.0] does not go with"),
        (["method.types=clients", "method.reward=best"], "needs every client's aversion"),
        (["method.types=clients", "method.client_sampling=random"], "client_sampling=random does not go"),
        (["method.types=clients", "method.paths=[[1]]"], "leave both out, or give both"),
        (
            ["method.types=clients", "method.paths=[[1]]", "method.announced=[[1]]"],
            "method.paths has shape (1, 1) and method.announced (1, 1), for 12 clients and 4 rounds",
        ),
        (["method.paths=[[1]]"], "method.paths=[[1]] does not go with method.types=configuration"),
        (["method.most_announcements=0"], "method.most_announcements=0 must be from 1 to 1000"),
        (["method.client_sampling=aocs"], "method.client_sampling=aocs cannot be charged: it reads the norm"),
        (["method.client_sampling=fed_cbs"], "it reads how many records of each class"),
        (["method.counts_rho=0.1"], "which method.client_sampling=budgets does not read"),
        (["method.draws=with_replacement", "method.weights=paper"], "a client answers once a round"),
        (["method.reward=[1,2]"], "method.reward has 2 entries for run.num_rounds=4"),
        (["method.reward=much"], "method.reward=much must be best, a number from 0"),
        (["method.max_participations=5"], "method.max_participations=5 is above run.num_rounds=4"),
        (["privacy.accountant=rdp"], "privacy.accountant=rdp does not go with method=fedpcs, whose"),
        (["privacy.budgets=clients", "privacy.client_budgets=[1]"], "do not go with method=fedpcs"),
        (["privacy.budgets=[1,3]"], "privacy.budgets=[1.0, 3.0] of clients do not go with method=fedpcs"),
    ],
)
def test_what_cannot_be_had_is_one_line(overrides, words):
    with pytest.raises(InputError, match=re.escape(words)) as error:
        method_of(*overrides)
    assert "\n" not in str(error.value)


def heading_of(method):
    return " ".join(" ".join(plan_lines(method, SecAggConfig())).split())


def test_the_first_lines_say_what_each_may_spend_against_whom_and_under_which_noise():
    method = method_of("method.budget_scale=0.01")
    most = method.spending.most_epsilons(method.plan.delta)
    said = heading_of(method)
    assert f"who 12 clients, budgets of epsilon {most.min():g} to {most.max():g}, for each record" in said
    assert "promise record-level DP (delta 1e-05) against everyone" in said
    assert f"cost noise of {method.noise_per_step:.3g} in a step of 1;" in said


@pytest.mark.parametrize("weights", ["budget", "horvitz_thompson"])
def test_the_noise_of_a_step_is_that_of_the_mean_of_what_clients_add(weights):
    method = method_of(f"method.weights={weights}", "privacy.sampling_rate=1")
    variances = []
    for t in range(4):
        # Everybody is asked in every round, so the weights are no chance.
        stddevs = method.spending.noise_multipliers(t, 2.0) / method.declared.record_counts
        shares = method.client_weights(t) / method.client_weights(t).sum()
        variances.append(shares**2 @ stddevs**2)
    assert method.noise_per_step == pytest.approx(np.sqrt(np.mean(variances)))


def test_steps_on_batches_have_the_noise_of_a_step_too():
    words = ["method.local=dp_sgd", "method.budget_scale=0.01", "training.local_steps=4"]
    method = method_of(*words, "privacy.batch_rate=0.5", "privacy.sampling_rate=1", "method.weights=records")
    counts = method.declared.record_counts
    # A client's four steps have the noise z C of each, over 4 C and the half of its records.
    stddevs = 2 * method.spending.noise / (4 * 0.5 * counts)
    assert method.noise_per_step == pytest.approx(np.sqrt((counts**2 @ stddevs**2) / counts.sum() ** 2))
    large = method_of("method.local=dp_sgd", "method.budget_scale=0.1", "privacy.batch_rate=0.5")
    assert "between two values no known bound of one record" in heading_of(large)


def test_budgets_that_protect_next_to_nothing_are_warned_of():
    method = method_of()
    (said,) = [each for each in plan_warnings(method.plan, method.config) if "next to nothing" in each]
    assert said.startswith(f"epsilon {method.plan.groups[0].epsilon:.4g} protects next to nothing")
    assert said.endswith("set a smaller method.budget_scale")
    small = method_of("method.budget_scale=0.01")
    assert not any("next to nothing" in each for each in plan_warnings(small.plan, small.config))


def test_the_end_of_a_run_says_what_the_client_that_spent_most_has_spent(tmp_path):
    words = [*TWELVE, "method.budget_scale=0.01", "secagg=off", "privacy.accountant=pld"]
    record = run(tmp_path / "run", words)[-1]
    (spent,), (most,) = record.epsilon_against_server, record.spent_epsilon
    assert f"has epsilon {spent:.4g}" in (tmp_path / "run" / "model_card.md").read_text()
    # By chance somebody may be asked in every round: then both are the same.
    log = tmp_path / "run" / "rounds.jsonl"
    log.write_text(
        log.read_text().replace(f'"epsilon_against_server": [{spent}]', '"epsilon_against_server": [1.5]')
    )
    shown = StringIO()
    show_ending(Console(file=shown, width=80), tmp_path / "run")
    assert f" 1.5 of {most:.4g}, the most of 12 clients\n" in shown.getvalue()
