"""Tests of method=fedpcs with sampling by Fed-CBS or DELTA: probabilities, charges, and edited files."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.clients.noise import noised_counts
from gdpfed.errors import ConfigError, InputError, PrivacyError, RunError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, epsilon_of_total
from gdpfed.extras.fedpcs.client_choice import noised_distances, released_delta_chances
from gdpfed.extras.fedpcs.released_draws import ClassDraws
from gdpfed.methods import ClientSum
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.release import CountsRequest
from gdpfed.report.plan_table import plan_lines
from gdpfed.rounds.extensions.class_counts import NO_COUNTS
from gdpfed.rounds.fleet import NO_SINGLE_UPDATES
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.resume import load_run
from gdpfed.simulation import simulate
from testing.small_runs import run
from tests.extras.fedpcs.planned_game import fedpcs_of

TWELVE = (
    "dataset=digits",
    "dataset.num_clients=12",
    "privacy=record_level",
    "privacy.sampling_rate=0.5",
    "privacy.delta=1e-5",
    "privacy.accountant=pld",
    "method=fedpcs",
    "method.budget_scale=0.1",
    "simulation.workers=1",
    "run.num_rounds=4",
)
FED_CBS = ("method.client_sampling=fed_cbs", "method.counts_rho=0.05", "method.weights=records")
DELTA = ("method.client_sampling=delta", "method.weights=horvitz_thompson", "secagg=off")
RULES = {"fed_cbs": FED_CBS, "delta": DELTA}


def method_of(*overrides):
    return fedpcs_of([*TWELVE, *overrides])


def test_fed_cbs_draws_by_noised_counts_that_are_clipped_at_0():
    """Fed-CBS sets negative noised class counts to 0, and samples clients inversely to class imbalance."""
    spending = ClientBudgets(
        budgets=np.ones((1, 3)),
        draw_probabilities=np.full((1, 3), 1 / 3),
        cohort_sizes=np.array([1]),
        draws="without_replacement",
        most_rounds=1,
        rule="fed_cbs",
        counts_rho=0.1,
    )
    found = np.zeros(3)
    for seed in range(2000):
        draws = ClassDraws(spending, seed)
        draws.take_counts(np.array([[3.0, -1.0], [3.0, 1.0], [-2.0, -0.5]]))
        found[draws.sample(0)] += 1
    # Shares (1, 0), (3/4, 1/4), and none at all: QCID 1/2, 1/8 and 1/2.
    expected = np.array([2, 8, 2]) / 12
    assert np.all(np.abs(found / 2000 - expected) < 4 * np.sqrt(expected / 2000))


def test_distances_are_without_what_noise_adds_to_them():
    gradients, sigmas = np.random.default_rng(0).normal(size=(4, 6)), np.array([0.1, 0.4, 0.2, 0.9])
    found = noised_distances(gradients, sigmas)
    for i in range(4):
        # g_i - mean g is a sum of all gradients, each with its factor, and so is its noise.
        factors = np.eye(4)[i] - 1 / 4
        square = ((factors @ gradients) ** 2).sum() - 6 * (factors**2 @ sigmas**2)
        assert found[i] == pytest.approx(np.sqrt(max(square, 0)))
    assert noised_distances(np.ones((4, 6)), sigmas).tolist() == [0.0] * 4


def test_delta_draws_by_the_distances_of_the_last_participation():
    shares = np.array([0.4, 0.2, 0.2, 0.2])
    unseen = np.full(4, np.nan)
    assert released_delta_chances(unseen, shares, 1) == pytest.approx(shares)
    assert released_delta_chances(np.zeros(4), shares, 1) == pytest.approx(shares)
    # The mean is 2. Who is at 0 counts as at 0.2, and who was never asked as at 2: 1.6, 0.04, 0.8, 0.4.
    found = released_delta_chances(np.array([4.0, 0.0, np.nan, 2.0]), shares, 1)
    assert found == pytest.approx(np.array([1.6, 0.04, 0.4, 0.4]) / 2.44)


def test_a_step_of_delta_weighs_each_gradient_that_was_read_alone():
    """DELTA weighs each client's gradient inversely to the probability that the client was drawn."""
    method, clients = method_of(*DELTA), np.array([1, 4, 7])
    values = np.random.default_rng(0).normal(size=(12, 650)) * np.arange(12)[:, None]

    def sum_updates(requests):
        asked = [(each.alone, each.clients.tolist(), each.client_weights) for each in requests]
        assert asked == [(True, [client], None) for client in clients]
        return [ClientSum(each.name, values[each.clients[0]], 1, members=each.clients) for each in requests]

    shares, counts = method.declared.shares, method.declared.record_counts
    for index in range(2):
        chances = method.draws.chances(index)
        theta, _ = method.round(np.zeros(650, np.float32), index, [clients], sum_updates)
        assert theta == pytest.approx((shares / chances)[clients] @ values[clients], rel=1e-4, abs=1e-5)
        sigmas = np.sqrt(2 / method.spending.budgets[index]) / counts
        training = method.config.training
        gradients = values[clients] / (training.learning_rate * training.learning_rate_decay**index)
        assert list(method.noted(index).values()) == pytest.approx(
            noised_distances(gradients, sigmas[clients])
        )
    assert chances[7] > 1.5 * chances[1]
    assert method.noted(0) == {}


def test_draws_of_delta_go_on_where_they_stopped():
    method, again = method_of(*DELTA), method_of(*DELTA)
    method.draws.take_gradients(0, np.array([0, 3]), np.eye(2, 650), np.array([0.01, 0.02]))
    again.load_state_dict(method.state_dict())
    assert np.array_equal(again.draws.chances(1), method.draws.chances(1))
    with pytest.raises(ValueError, match="are not 12 numbers"):
        again.load_state_dict({"delta.distances": np.zeros(3)})
    with pytest.raises(ValueError, match=r"keep no state, but got delta\.distances"):
        method_of(*FED_CBS).load_state_dict(method.state_dict())


def test_the_noise_that_is_taken_out_is_that_of_real_gradients(tmp_path, monkeypatch):
    """With tiny budgets, noised gradients have the mean square that DELTA subtracts as noise, within 4 %."""
    squares = []

    def noted(gradients, sigmas):
        squares.extend((gradients**2).mean(axis=1) / sigmas**2)
        return noised_distances(gradients, sigmas)

    monkeypatch.setattr("gdpfed.extras.fedpcs.released_draws.noised_distances", noted)
    words = (*TWELVE, *DELTA, "method.budget_scale=1e-4", "training.learning_rate_decay=0.5")
    simulate(load([*words, f"run.directory={tmp_path / 'run'}"]))
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], 650 * len(squares))
    assert low < 650 * sum(squares) < 1.04 * high


def test_a_client_adds_noise_to_its_counts():
    counts, source = np.arange(10), np.random.default_rng(0)
    found = np.array([noised_counts(counts, 3.0, source.bytes) for _ in range(200)])
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], found.size)
    assert low < (((found - counts) / 3) ** 2).sum() < high
    assert np.all(found * 1024 == np.rint(found * 1024))
    assert found.min() < 0
    with pytest.raises(PrivacyError, match="noise of standard deviation 0"):
        noised_counts(counts, 0.0, source.bytes)


def test_every_client_pays_for_its_counts_whether_it_is_asked_or_not():
    method = method_of(*FED_CBS)
    spending, plan = method.spending, method.plan
    totals = spending.budgets.sum(axis=0) + 0.05
    assert spending.worst_totals(4) == pytest.approx(totals)
    assert plan.groups[0].epsilon == pytest.approx(epsilon_of_total(float(totals.max()), 1e-5))
    assert plan.epsilon_after(0, 0) == pytest.approx(epsilon_of_total(0.05, 1e-5))
    # 2 / (2 s^2) = rho.
    assert plan.mechanism.counts_noise == pytest.approx(np.sqrt(1 / 0.05))
    for rule in RULES.values():
        assert method_of(*rule).spending.expected_totals() == pytest.approx(
            method_of().spending.expected_totals()
        )
    words = " ".join(" ".join(plan_lines(method, SecAggConfig())).split())
    assert "at 0.05 zCDP: noise of standard deviation 4.472 in each" in words


def test_a_ledger_charges_counts_once_with_their_noise_and_before_any_round():
    plan = method_of(*FED_CBS).plan
    ledger, asked = Ledger(plan), CountsRequest(noise_stddev=plan.mechanism.counts_noise)
    with pytest.raises(
        PrivacyError, match="round 0: samples follow from class counts, which are not charged"
    ):
        ledger.open_round(0, [np.arange(6)])
    for too_little in (4.0, plan.mechanism.counts_noise * (1 - 1e-6)):
        with pytest.raises(PrivacyError, match="in class counts is below the plan's 4.47214"):
            ledger.charge_counts(CountsRequest(noise_stddev=too_little))
    assert ledger.to_dict()["counts_rho"] == 0
    charged = ledger.charge_counts(asked)
    assert ledger.against_server() == pytest.approx((epsilon_of_total(0.05, 1e-5),))
    assert charged.take() == asked
    with pytest.raises(PrivacyError, match="were charged once"):
        charged.take()
    with pytest.raises(PrivacyError, match="class counts are charged already"):
        ledger.charge_counts(asked)
    ledger.open_round(0, [np.arange(6)])
    saved = ledger.to_dict()
    assert Ledger.from_dict(plan, saved).counts_charged
    with pytest.raises(PrivacyError, match="class counts at 0.0 zCDP, and the plan charges 0.05"):
        Ledger.from_dict(plan, saved | {"counts_rho": 0.0})
    with pytest.raises(PrivacyError, match="the plan charges none"):
        Ledger(method_of().plan).charge_counts(asked)


def test_an_update_is_read_alone_only_under_its_own_noise_and_without_secure_sums():
    for words, refused in ((DELTA, False), (("secagg=pairwise",), True)):
        method = method_of(*words)
        ledger, cohort = new_ledger(method), np.arange(6)
        ledger.open_round(0, [cohort])
        honest = method_of(*DELTA).requests(np.zeros(650, np.float32), 0, [cohort])
        loud = [replace(each, noise_multiplier=0.9 * each.noise_multiplier) for each in honest[0].records]
        with pytest.raises(PrivacyError, match="is below the plan's" if not refused else "read in clear"):
            ledger.charge(0, [replace(honest[0], records=loud)])
        if not refused:
            assert len(ledger.charge(0, honest)) == 6
            with pytest.raises(PrivacyError, match="is in 1 sums of this round already"):
                ledger.charge(0, [replace(honest[0], name="once more")])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train, stop and resume one run for each sampling rule; return the runs' directories by rule."""
    directories = {rule: tmp_path_factory.mktemp(rule) / "run" for rule in RULES}
    for rule, directory in directories.items():
        words = [*TWELVE, *RULES[rule], "method.max_participations=2", f"run.directory={directory}"]
        simulate(load([*words, "run.stop_after_round=2"]))
        simulate(load_run([f"run.resume={directory}"]))
    return directories


@pytest.mark.parametrize("rule", list(RULES))
def test_a_run_is_charged_resumed_and_audited(finished, rule):
    directory = finished[rule]
    audit = audit_run(directory)
    assert audit.findings == ()
    assert audit.passed
    ledger, plan = (json.loads((directory / name).read_text()) for name in ("ledger.json", "plan.json"))
    budgets = np.asarray(plan["groups"][0]["spending"]["budgets"])
    before = 0.05 if rule == "fed_cbs" else 0.0
    totals = [before + budgets[rounds, int(client)].sum() for client, rounds in ledger["taken"].items()]
    assert audit.groups[0].against_server == pytest.approx(epsilon_of_total(max(totals), 1e-5))
    assert max(map(len, ledger["taken"].values())) <= 2
    card = " ".join((directory / "model_card.md").read_text().split())
    assert "who is asked follows from what clients released" in card
    assert ("under noise of standard deviation 4.472 in every count" in card) == (rule == "fed_cbs")


def test_released_counts_are_never_the_true_ones(finished):
    assert not (finished["delta"] / "class_counts.json").exists()
    released = np.array(json.loads((finished["fed_cbs"] / "class_counts.json").read_text())["counts"])
    true = task_of(load([*TWELVE])).class_counts()
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], true.size)
    assert low < ((released - true) ** 2).sum() * 0.05 < high
    # On the grid of a masked sum noise is 0 once in some ten thousand counts.
    assert np.sum(released == true) <= 3


def true_counts(data):
    data["counts"] = task_of(load([*TWELVE])).class_counts().tolist()


def asked_another(data):
    """Edit a ledger: replace a client of the first round by a client that was not asked."""
    taken, (counts,) = data["taken"], data["participations"]
    client = next(each for each in taken if 0 not in taken[each])
    drawn = next(each for each in taken if 0 in taken[each])
    taken[drawn].remove(0)
    taken[client].insert(0, 0)
    counts[drawn], counts[client] = len(taken[drawn]), len(taken[client])


def other_distances(lines):
    lines[0]["noted"] = {client: 100.0 * (i == 0) for i, client in enumerate(lines[0]["noted"])}


@pytest.mark.parametrize(
    ("rule", "file", "change", "finding"),
    [
        ("fed_cbs", "class_counts.json", true_counts, "carries less noise than 0.05 zCDP call for"),
        (
            "fed_cbs",
            "class_counts.json",
            lambda data: data["counts"].reverse(),
            "in the sample that fed_cbs draws",
        ),
        (
            "fed_cbs",
            "class_counts.json",
            lambda data: data["counts"].pop(),
            "has shape (11, 10), for 12 clients",
        ),
        (
            "fed_cbs",
            "class_counts.json",
            lambda data: data["counts"][0].__setitem__(0, 1e4),
            "is further from the numbers of records",
        ),
        (
            "fed_cbs",
            "ledger.json",
            lambda data: data.update(counts_rho=0.0),
            "charges class counts at 0.0 zCDP",
        ),
        ("fed_cbs", "ledger.json", asked_another, "in the sample that fed_cbs draws"),
        ("delta", "ledger.json", asked_another, "in the sample that delta draws"),
        ("delta", "rounds.jsonl", other_distances, "in the sample that delta draws"),
        (
            "delta",
            "plan.json",
            lambda data: data["groups"][0]["spending"].pop("rule"),
            "draws samples by None, the configuration by delta",
        ),
    ],
)
def test_files_that_were_changed_are_found(finished, tmp_path, rule, file, change, finding):
    for path in finished[rule].iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / file).read_text()
    if file.endswith("jsonl"):
        lines = [json.loads(line) for line in text.splitlines()]
        change(lines)
        (tmp_path / file).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        data = json.loads(text)
        change(data)
        (tmp_path / file).write_text(json.dumps(data))
    assert any(finding in line for line in audit_run(tmp_path).findings)


def test_counts_that_are_gone_are_not_released_again(tmp_path):
    path = tmp_path / "run"
    simulate(load([*TWELVE, *FED_CBS, f"run.directory={path}", "run.stop_after_round=1"]))
    (path / "class_counts.json").unlink()
    with pytest.raises(RunError, match="each client releases its class counts once: restore it") as error:
        simulate(load_run([f"run.resume={path}"]))
    assert "\n" not in str(error.value)
    assert any("class_counts.json is not there" in line for line in audit_run(path).findings)


@pytest.mark.parametrize(("rule", "reason"), [("fed_cbs", NO_COUNTS), ("delta", NO_SINGLE_UPDATES)])
def test_nodes_are_not_asked(tmp_path, rule, reason):
    with pytest.raises(RunError, match=re.escape(reason)):
        run(tmp_path / "run", [*TWELVE, *RULES[rule]])
    assert not (tmp_path / "run").exists()


def test_texts_with_a_class_at_every_position_are_refused_before_a_count_is_charged(tmp_path):
    """A run that counts classes refuses texts, since a text of 16 tokens would change 16 counts, not one."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "text.npz", x_train=rng.integers(0, 8, (60, 17)), x_test=rng.integers(0, 8, (60, 17)))
    text = (
        "dataset=npz",
        f"dataset.path={tmp_path / 'text.npz'}",
        "dataset.vocabulary=8",
        "dataset.loss=next_token",
        "dataset.model=transformer",
        "dataset.model_options={width: 8, heads: 1, layers: 1}",
        "dataset.partition=iid",
    )
    with pytest.raises(ConfigError, match="records of dataset=npz do not have one class each"):
        simulate(load([*TWELVE, *FED_CBS, *text, "secagg=off", f"run.directory={tmp_path / 'run'}"]))
    assert not (tmp_path / "run" / "ledger.json").exists()


def test_a_node_with_a_budget_of_its_own_gets_no_terms():
    with pytest.raises(PrivacyError, match="cannot check samples of fed_cbs, which follow from what"):
        terms_of(method_of(*FED_CBS).plan, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0, client=3)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.client_sampling=delta"], "which secure aggregation hides: set secagg=off"),
        ([*FED_CBS, "method.counts_rho=0"], "method.counts_rho=0.0 must be above 0"),
        ([*FED_CBS, "method.counts_rho=50"], "method.counts_rho=50 is no less than the"),
        (
            [*FED_CBS, "method.weights=horvitz_thompson"],
            "divides by chances that method.client_sampling=fed_cbs",
        ),
        ([*DELTA, "method.weights=paper"], "set method.weights=budget or records or horvitz_thompson"),
        ([*DELTA, "method.draws=without_replacement"], "which draws by itself: leave it out"),
        ([*DELTA, "method.counts_rho=0.1"], "which method.client_sampling=delta does not read"),
        ([*DELTA, "method.local=dp_sgd"], "method.local=dp_sgd protects otherwise"),
        ([*FED_CBS, "method.local=update", "privacy=client_level"], "method.local=update protects otherwise"),
    ],
)
def test_what_cannot_be_had_is_one_line(overrides, words):
    with pytest.raises(InputError, match=re.escape(words)) as error:
        method_of(*overrides)
    assert "\n" not in str(error.value)
