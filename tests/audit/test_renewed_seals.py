"""Tests of forged runs whose hashes match their files: the audit finds changes by recomputing values."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import yaml

from gdpfed.audit.card_forms import Fields, Form, compare, read_forms
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.report.chance import AtChance
from gdpfed.report.markdown import text
from gdpfed.report.run_observers import default_observers
from gdpfed.runs.file_formats import AT_CHANCE_FILE, FORMAT_VERSION, PLAN_FILE, save_result
from gdpfed.simulation import simulate
from testing.forged import edit_json, renew, reseal
from testing.small_runs import nothing_drawn, small_config

FEW = ("dataset.num_clients=6", "privacy.accountant=pld", "privacy.delta=1e-5", "simulation.workers=1")
# All of them pay for Gaussians alone, whose figures take no time.
RUNS = {
    "turns": [
        *("method=gdpfed_star", "privacy.against=everyone", "privacy.budgets=[1,3]", "run.num_rounds=4"),
        *("privacy.sampling_rate=0.5", "method.average=polynomial"),
    ],
    "sampled": [
        *("method=dp_fedavg", "privacy.budgets=[2]", "privacy.sampling_rate=1", "run.num_rounds=2"),
        "privacy.norm_histogram_share=0.1",
    ],
    "records": [
        *("dataset=breast_cancer", "method=dp_sum", "privacy=record_level", "privacy.budgets=[6]"),
        *("run.num_rounds=2", "privacy.batch_rate=1", "run.evaluation=nodes", "privacy.sampling_rate=1"),
        *("training.vote={learning_rate:[0.1,1]}", "privacy.adjacency=zero_out"),
    ],
    # Two groups, each with a sum, a rate and a share that top-k keeps of its own.
    "grouped": [
        *("method=gdpfed_plus", "privacy.against=everyone", "privacy.budgets=[1,3]", "run.num_rounds=4"),
        *("privacy.sampling_rate=0.8", "privacy.noise_taps=0", "secagg.minimum_cohort=2"),
    ],
    # Clients are drawn, and a record's allowance ends before the last round.
    "drawn": [
        *("dataset=breast_cancer", "method=dp_sum", "privacy=record_level", "privacy.budgets=[3]"),
        *("run.num_rounds=8", "privacy.sampling_rate=0.5", "secagg.minimum_cohort=2"),
    ],
    "chosen": [
        *("method=fedpcs", "privacy=record_level", "run.num_rounds=2", "method.budget_scale=0.001"),
        "privacy.sampling_rate=1",
    ],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("renewed")
    for name, overrides in RUNS.items():
        with nothing_drawn():
            simulate(small_config(folder / name, [*overrides, *FEW]), make_observers=default_observers)
        assert audit_run(folder / name).findings == ()
    return folder


@pytest.fixture
def copy(runs, tmp_path):
    return lambda name: shutil.copytree(runs / name, tmp_path / name)


def at(*path, factor=None, to=None):
    """Return a function that scales an entry of a file's data by a factor, or sets the entry to a value."""

    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to if factor is None else data[path[-1]] * factor

    return change


def at_a_tenth_of_the_norm_later(plan):
    """Forge a plan: charge the second round at a tenth of the planned clipping norm, which lowers epsilon."""
    (charge,) = plan["groups"][0]["charges"]
    event = {**charge["event"], "clipping_norm": charge["event"]["clipping_norm"] / 10}
    plan["groups"][0]["charges"] = [{**charge, "count": 1}, {**charge, "count": 1, "event": event}]


def in_two_sums(rounds):
    """Change a log of rounds: replace the first round's sum by two sums of half of its clients each."""
    first = rounds[0]
    for key in ("noise_stddevs", "groups_in_sums", "noise_shares", "upload_bytes"):
        first[key] = first[key] * 2
    first["survivors"] = [first["survivors"][0] // 2] * 2


def under_another_name(ledger):
    """Name a client by its number in another spelling, so that one who adds up names would not find it."""
    (counts, *_) = ledger["participations"]
    counts["+0"] = counts.pop("0")


def at_a_third_of_the_norms(plan):
    """Divide all clipping norms in a plan by three, which makes every epsilon small."""
    for group in plan["groups"]:
        group["clipping_norm"] /= 3
        group["noise_multiplier"] *= 3
        for charge in group["charges"]:
            charge["event"]["clipping_norm"] /= 3


def charged(kinds, **entries):
    """Return a function that sets `entries` in each charge and, if `kinds` is true, its kind to DP-SGD."""

    def change(data):
        groups = [group["charges"] for group in data["groups"]] if "groups" in data else data["charges"]
        for charge in (each for charges in groups for each in charges):
            event = charge["event"]
            event.update(entries)
            if kinds:
                charge["event"] = {
                    **{"kind": "dp_sgd_steps", "batch_rate": 1e-6, "num_steps": 1},
                    "noise_multiplier": event["noise_stddev"] / event["clipping_norm"],
                }

    return change


def at_half_of_the_rate(plan):
    for group in plan["groups"]:
        group["sampling_rate"] /= 2
        for charge in group["charges"]:
            charge["event"]["sampling_rate"] /= 2


def at_a_tenth_of_the_batches(plan):
    for group in plan["groups"]:
        for own in (group, *group["records"]["groups"]):
            for charge in own["charges"]:
                charge["event"]["batch_rate"] /= 10
        for own in group["records"]["groups"]:
            own["batch_rate"] /= 10


def weighted(**entries):
    """Return a function that sets entries of a plan's weighting, and computes its figures from them again."""

    def change(plan):
        said, groups = plan["weighting"], plan["groups"]
        said.update(entries)
        sizes, norms = (
            np.array([each.get(key, plan.get(key)) for each in groups])
            for key in ("expected_cohort_size", "clipping_norm")
        )
        noise, weights = (
            norms * [each["noise_multiplier"] for each in groups],
            np.array(said["group_weights"]),
        )
        shares = sizes**2 / (sizes**2).sum() if said["reweighting"] != "uniform" else np.ones(len(groups))
        said["effective_step"] = float(weights @ sizes)
        said["noise_magnitude"] = float(np.mean(said["keep_fractions"] * shares * noise**2))
        said["noise_per_step"] = float(np.hypot(*(weights * noise)) / (weights @ (sizes * norms)))

    return change


def in_other_groups(clients):
    """Return the two changes, of ledger and assignment, that give groups these clients."""

    def of_assignment(assignment):
        assignment["clients"] = [[[each, each + 1] for each in group] for group in clients]

    def of_ledger(ledger):
        taken = [turns for counts in ledger["participations"] for turns in counts.values()]
        ledger["participations"] = [{str(client): taken[0] for client in group} for group in clients]

    return of_assignment, of_ledger


IN_CARD = [
    ("turns", "* loss: cross_entropy", "* loss: half_loss", "loss half_loss, where cross_entropy follows"),
    ("turns", "metrics: the usual ones", "metrics: auc", "metrics auc, where the usual ones follows"),
    ("turns", "extensions: none", "extensions: wandb", "extensions wandb, where none follows"),
    ("turns", "| 1 | 1.00 |", "| 1 | 0.10 |", "spent 0.10, where 1.00 follows"),
    ("turns", "delta = 1e-05", "delta = 1e-09", "delta 1e-09, where 1e-05 follows"),
    ("turns", "client-level", "record-level", "a line that this audit does not know"),
    ("turns", "at most 2.72", "at most 1.05", "factors 1.05"),
    ("turns", "aggregation curious", "aggregation active", "mode active, where curious follows"),
    ("turns", "of 100 tries for", "of 1000 tries for", "does not follow"),
    ("turns", "* released: an average of the models of all rounds\n", "", "0 of 1 lines of this kind"),
    ("turns", "beyond `secagg.corrupt_tolerance`", "", "does not know: * members of a cohort who collude"),
    ("turns", "## What is not covered", "## Nothing is left open\n\nTrust us.", "does not know: Trust us."),
    ("turns", " % of it", " % of it\n* epsilon in all: 0.01", "does not know: * epsilon in all: 0.01"),
    ("turns", "* model: linear, 5 local", "* model: linear, 50 local", "steps 50 local steps, where 5 local"),
    ("sampled", "| 2 | 2.00 |", "| 2 | 0.20 |", "spent 0.20"),
    ("sampled", " of 100 tries. That", "0 of 100 tries. That", "which does not follow"),
    ("sampled", "true positives | accuracy", "true negatives | accuracy", "does not know"),
    ("sampled", "6 clients said", "5 clients said", "normed 5, where 6 follows"),
    (
        "sampled",
        "* within half of the clipping norm: ",
        "* within half of the clipping norm: 9",
        "norm_share 9",
    ),
    (
        "sampled",
        "No norm left",
        "The noise is sized for steps that few make.\n\nNo norm left",
        "does not know",
    ),
    ("records", "factor exp(epsilon) |", "factor |", "does not know"),
    ("records", "unknown to everybody else", "known to nobody", "does not know"),
    ("records", "votes\n* training", "votes\n\n* training.momentum=3: 9.9 votes\n* training", "vote"),
    ("records", "* accuracy: ", "* accuracy: 9", "counted_value 9"),
    ("records", "| party 1 |", "| party 7 |", "party party 7, where party 1 follows"),
    ("chosen", "| most | 0.0", "| most | 0.00", "total 0.00"),
]
IN_FILES = [
    ("turns", "plan.json", at("weighting", "noise_magnitude", factor=0.5), "noise_magnitude"),
    ("turns", "plan.json", at("weighting", "noise_per_step", factor=0.5), "noise_per_step"),
    ("turns", "plan.json", at("weighting", "effective_step", factor=0.5), "effective_step"),
    ("turns", "plan.json", at("weighting", "reweighting", to="fair"), "fair, which no method has"),
    ("turns", "plan.json", at("weighting", "keep_fractions", 0, to=1.5), "keeps a share of 1.5 of a sum"),
    ("turns", "plan.json", at("weighting", "keep_fractions", 0, to=0.0), "keeps a share of 0 of a sum"),
    ("grouped", "plan.json", weighted(reweighting="uniform"), "reweighting uniform, its method squared_part"),
    ("grouped", "plan.json", weighted(group_weights=[1.0, 0.0]), "group_weights [1.0, 0.0], where"),
    ("grouped", "plan.json", weighted(group_weights=[10.0, 30.0]), "group_weights [10.0, 30.0], where"),
    (
        "grouped",
        "plan.json",
        weighted(keep_fractions=[0.01, 0.01]),
        "keep_fractions [0.01, 0.01], where [0.7",
    ),
    ("records", "plan.json", at("held_out", "blocks", to=7), "held-out records of 7 parties"),
    ("turns", "rounds.jsonl", at(-1, "accuracy", to=0.987), "says result"),
    (
        "sampled",
        "rounds.jsonl",
        at(0, "accuracy", to=7.0),
        "round 1 has an accuracy of 7.0, which is no part",
    ),
    ("sampled", "rounds.jsonl", at(0, "clipping_norm", to=5.0), "round 1 has a clipping norm of its own"),
    ("sampled", "rounds.jsonl", at(0, "fraction_within", to=0.5), "round 1 has a clipping norm of its own"),
    ("sampled", "rounds.jsonl", at(0, "noise_shares", 0, 0, to=10**6), "1000000 members in sum 0, and there"),
    ("sampled", "rounds.jsonl", at(0, "verified", to=True), "round 1 has entries that no run has: verified"),
    ("sampled", "ledger.json", at("verified", to=True), "ledger.json has entries that no run has: verified"),
    ("sampled", "plan.json", at("verified", to=True), "plan.json has entries that no run has: verified"),
    (
        "sampled",
        "plan.json",
        at("groups", 0, "safe", to=1),
        "group 0 in plan.json has entries that no run ha",
    ),
    (
        "sampled",
        "plan.json",
        at("weighting", "safe", to=1),
        "the weighting in plan.json has entries that no ",
    ),
    ("turns", "rounds.jsonl", at(0, "failures", to={"all groups": "x"}), "names 1 failures beside 1 sums"),
    ("records", "held_out.json", at("metrics", "accuracy", "value", to=0.99), "accuracy 0.99 (value), where"),
    ("records", "held_out.json", at("metrics", "AUC", "low", to=0.01), "AUC 0.01 (low), where"),
    ("records", "held_out.json", at("noise_stddev", factor=1.2), "above the plan's"),
    ("records", "held_out.json", at("counts", 0, factor=3.0), "follows from its counts"),
    ("records", "held_out.json", at("clients", to=7), "of 7 clients, and there are 6"),
    ("records", "vote.json", at("noise_stddev", factor=1.2), "above the plan's"),
    ("records", "vote.json", at("settings", 1, 0, to=0.5), "the configuration settings"),
    ("records", "vote.json", at("votes", 0, factor=-9.0), "says"),
    ("sampled", "rounds.jsonl", lambda rounds: rounds.pop(), "1 rounds of 2, and the run has released its"),
    ("sampled", "rounds.jsonl", in_two_sums, "has group 0 in 2 sums, of 1 that its clients pay for"),
    ("sampled", "plan.json", at("groups", 0, "clipping_norm", to=0.7), "0.7, and its method one of"),
    ("sampled", "plan.json", at_a_tenth_of_the_norm_later, "is charged at clipping norms"),
    ("sampled", "plan.json", at_half_of_the_rate, "asks for 6 clients a round, and the rates of its groups"),
    ("sampled", "ledger.json", under_another_name, "names client 0 '+0', and its only name is its number"),
    ("sampled", "ledger.json", lambda ledger: ledger["charges"].append([]), "has charges of 2 groups of 1"),
    ("sampled", "rounds.jsonl", lambda rounds: rounds[0]["spent_epsilon"].append(9.0), "spent_epsilon of 2"),
    ("sampled", "plan.json", lambda plan: plan["settings"].pop("run"), "does not say with which run.seed"),
    ("turns", "plan.json", at("groups", 0, "epsilon", to=3.0), "budgets of [3.0, 3.0], the configuration [1"),
    ("turns", "plan.json", at_a_third_of_the_norms, "norms of groups with a mean of"),
    ("records", "plan.json", at_a_tenth_of_the_batches, "a mean batch rate of 0.1, the configuration at 1"),
    ("records", "plan.json", at("record_is", to="person"), "no column of the run tells persons apart"),
    ("sampled", "plan.json", at("works", to=["client_statistics"]), "method dp_fedavg compute update"),
    ("chosen", "plan.json", at("works", to=["noised_update"]), "['noised_update'], the configuration ['dp_"),
    ("records", "plan.json", at("works", to=["dp_sgd"]), "['dp_sgd'], the configuration ['gradient_sum']"),
    ("records", "plan.json", at("works", to=["dp_sgd"]), "round 1 added noise to the sum of group 0"),
    ("records", "plan.json", at("sums_per_round", to=2), "sums_per_round 2, the configuration 1"),
    ("sampled", "norm_histogram.json", at("noise_stddev", factor=0.5), "below the plan's"),
    ("sampled", "plan.json", at("norm_histogram", "bins", to=4), "norms in 4 bins, and a histogram has 5"),
    ("sampled", "norm_histogram.json", at("within", 2, 1, to=0.9), "follow from its counts"),
    *(
        ("chosen", "plan.json", at("groups", 0, key, factor=0.5), f"{key} ")
        for key in ("epsilon_accounted", "epsilon_against_server", "epsilon_against_members", "sampling_rate")
    ),
    ("chosen", "plan.json", at("groups", 0, "participations_p99", to=1), "participations_p99 1, where 2"),
    ("chosen", "plan.json", at("groups", 0, "spending", "counts_rho", to=-1e-9), "counts at -1e-09 zCDP"),
    (
        "chosen",
        "plan.json",
        at("sampling", to="fixed_size"),
        "sampling fixed_size, the configuration poisson",
    ),
    ("chosen", "rewards.json", at("clients", "0", factor=2), "of client 0, which has earned"),
    ("chosen", "plan.json", at("totals", "most_epsilon", 0, factor=2), "totals most_epsilon"),
    ("chosen", "plan.json", at("totals", "expected_zcdp", 0, factor=2), "totals expected_zcdp"),
    ("chosen", "plan.json", at("totals", "expected_payments", 0, factor=2), "expected payments"),
    ("chosen", "plan.json", at("game", "paths", 0, 0, factor=2), "not the paths of its game"),
]
IN_MODEL = [
    ("sampled", at("model", to="mlp"), "model.json has the model mlp, the configuration linear"),
    (
        "sampled",
        at("options", to=[["width", 3]]),
        "model.json has the model options [['width', 3]], the conf",
    ),
    ("sampled", at("version", to=3), "model.json has format version 3, where 2 follows"),
    ("sampled", at("form", "num_classes", to=9), "model.json has 9 classes, and the weights 10 outputs"),
    ("sampled", at("classes", to=["0", "1"]), "model.json names 2 classes of 10"),
    ("sampled", at("form", "input_shape", to=[1, 8, 9]), "examples of 72 numbers, and the weights 64 inputs"),
    ("sampled", at("verified", to=True), "does not describe a model"),
]
IN_BOTH = [
    (
        "sampled",
        "adjacency",
        "replace_one",
        "is charged with adjacency zero_out, and plan.json has replace",
    ),
    ("sampled", "sampling", "fixed_size", "is charged with sampling poisson, and plan.json has fixed_size"),
    ("sampled", "noise", "discrete_gaussian", "is charged with noise gaussian, and plan.json has discrete"),
    (
        "turns",
        "adjacency",
        "replace_one",
        "is charged with adjacency zero_out, and plan.json has replace",
    ),
    (
        "records",
        "adjacency",
        "replace_one",
        "is charged with adjacency zero_out, and plan.json has replace",
    ),
]
IN_CONFIG = [
    ("turns", ("secagg", "mode"), "active", "mode curious, where active follows"),
    ("turns", ("training", "local_steps"), 10, "where 10 local steps follows"),
    ("turns", ("method", "average"), "none", "does not know: * released"),
    ("turns", ("dataset", "name"), "svhn", "where svhn follows"),
    ("turns", ("dataset", "model"), "mlp", "where mlp follows"),
    ("turns", ("secagg", "dropout_tolerance"), 0.0, "made with secagg.dropout_tolerance=0.1, and"),
    ("turns", ("secagg", "corrupt_tolerance"), 0.1, "made with secagg.corrupt_tolerance=0.0, and"),
    ("turns", ("training", "learning_rate"), 9.0, "training.learning_rate="),
    ("turns", ("run", "seed"), 99, "made with run.seed="),
    ("sampled", ("privacy", "norm_histogram_share"), None, "with privacy.norm_histogram_share=None"),
    ("records", ("privacy", "batch_rate"), 0.5, "made with privacy.batch_rate="),
    ("records", ("run", "evaluation"), "server", "counts on held-out records"),
    ("records", ("training", "vote", "learning_rate"), [0.1, 2], "the configuration settings"),
]


def assert_found(directory, said):
    findings = audit_run(directory).findings
    assert any(said in each for each in findings), findings


@pytest.mark.parametrize(("name", "before", "after", "said"), IN_CARD)
def test_every_line_of_the_card_is_computed_again(copy, name, before, after, said):
    directory = copy(name)
    card = (directory / "model_card.md").read_text()
    assert before in card
    (directory / "model_card.md").write_text(card.replace(before, after, 1))
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize(("name", "file", "change", "said"), IN_FILES)
def test_what_a_file_says_follows_from_others(copy, name, file, change, said):
    directory = copy(name)
    edit_json(directory / file, change)
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize(("name", "change", "said"), IN_MODEL)
def test_the_description_of_a_model_follows_from_settings_and_weights(copy, name, change, said):
    directory = copy(name)
    edit_json(directory / "model/model.json", change)
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize("classes", [["malignant", "benign"], ["benign", "malignant"]])
def test_declared_classes_are_named_in_their_order(copy, classes):
    directory = copy("records")
    declared = json.loads((directory / "model/model.json").read_text())["classes"]
    edit_json(directory / "model/model.json", lambda model: model.update(classes=classes))
    renew(directory)
    found = [each for each in audit_run(directory).findings if "the declared columns" in each]
    assert bool(found) == (classes != declared)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([[1, 2, 3, 4, 5, 99]], "has client 99, and clients are numbered from 0 to 5"),
        ([[-1, 1, 2, 3, 4, 5]], "has client -1, and clients are numbered from 0 to 5"),
    ],
)
def test_clients_have_their_numbers(copy, clients, said):
    directory = copy("sampled")
    for file, change in zip(("assignment.json", "ledger.json"), in_other_groups(clients), strict=True):
        edit_json(directory / file, change)
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([[3, 1, 2], [0, 4, 5]], "group 0 has not the clients 0 to 2, which come next"),
        ([[0, 1, 2, 3], [4, 5]], "groups of [4, 2] clients, where [3, 3] follow from the shares"),
    ],
)
def test_groups_of_configured_budgets_have_the_clients_in_order(copy, clients, said):
    directory = copy("grouped")
    of_assignment, _ = in_other_groups(clients)
    edit_json(directory / "assignment.json", of_assignment)
    renew(directory)
    assert_found(directory, said)


def test_a_node_finds_its_client_under_another_name_and_no_fault_of_its_own_in_a_run(copy, tmp_path):
    directory, own = copy("sampled"), tmp_path / "own.json"
    with locked_ledger(own) as file:
        file.save()
    edit_json(directory / "ledger.json", under_another_name)
    (finding,) = audit_node_ledger(own, 0, [directory]).findings
    assert f"in {directory} has drawn client 0 for 2 rounds, and this ledger lacks it" in finding

    def under_no_number(ledger):
        counts = ledger["participations"][0]
        counts["x"] = counts.pop("+0")

    edit_json(directory / "ledger.json", under_no_number)
    with pytest.raises(AuditError, match=f"^{directory} has no number of a client: .*'x'; restore it from"):
        audit_node_ledger(own, 0, [directory])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (charged(False, parties=0), "wrong entries: parties"),
        (charged(False, block_rounds=2), "wrong entries: block_rounds"),
        (charged(True), "of kind dp_sgd_steps, and may have sampled_gaussian"),
    ],
)
def test_no_event_has_entries_or_a_kind_that_make_it_cheaper(copy, change, said):
    directory = copy("sampled")
    for file in (PLAN_FILE, "ledger.json"):
        edit_json(directory / file, change)
    renew(directory)
    with pytest.raises(AuditError, match=said):
        audit_run(directory)


def test_an_accuracy_is_compared_with_the_one_among_a_rounds_metrics(copy):
    directory = copy("drawn")
    rounds = directory / "rounds.jsonl"
    *others, last = rounds.read_text().splitlines()
    entry = json.loads(last)
    assert entry["metrics"]["accuracy"] == entry["accuracy"]
    rounds.write_text("\n".join([*others, json.dumps(entry | {"accuracy": 0.99}), ""]))
    renew(directory)
    assert_found(directory, f"round {entry['round']} has accuracy 0.99, and 0.")


def test_a_sealed_log_that_ends_within_a_line_is_refused(copy):
    directory = copy("sampled")
    with (directory / "rounds.jsonl").open("a") as log:
        log.write('{"verified":1}')
    reseal(directory)
    with pytest.raises(AuditError, match=r"rounds.jsonl ends within a line, and the run has ended or paused"):
        audit_run(directory)


def test_sums_whose_noise_is_in_the_steps_of_clients_have_none_of_their_own(tmp_path):
    words = ["dataset=breast_cancer", "privacy=record_level", "method=dp_sgd", "run.num_rounds=1"]
    words += ["privacy.sampling_rate=1"]
    with nothing_drawn():
        simulate(small_config(tmp_path / "run", [*words, *FEW]), make_observers=default_observers)
    assert audit_run(tmp_path / "run").findings == ()
    for key in ("noise_magnitude", "noise_per_step"):
        edit_json(tmp_path / "run" / PLAN_FILE, at("weighting", key, to=0.001))
        renew(tmp_path / "run")
        assert_found(tmp_path / "run", f"{key} 0.001, where 0 follows from its weights and noise")


@pytest.mark.parametrize(("name", "path", "value", "said"), IN_CONFIG)
def test_settings_are_compared_with_what_was_made_of_them(copy, name, path, value, said):
    directory = copy(name)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    at(*path, to=value)(config)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize(("name", "key", "value", "said"), IN_BOTH)
def test_charges_are_compared_with_a_plan_and_settings_that_agree(copy, name, key, value, said):
    directory = copy(name)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    at("privacy", key, to=value)(config)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    edit_json(directory / PLAN_FILE, at(key, to=value))
    edit_json(directory / PLAN_FILE, at("settings", "privacy", key, to=value))
    renew(directory)
    assert_found(directory, said)


@pytest.mark.parametrize("tested", ["about 90 records, by noised counts", "0 records", ""])
def test_a_result_at_chance_that_nobody_tested_is_a_finding(copy, tested):
    """An audit reports a chance-level result whose file states no exact, positive number of test records."""
    directory = copy("records")
    config = yaml.safe_load((directory / "config.yaml").read_text())
    at("run", "evaluation", to="server")(config)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    chance = AtChance(0.5, 0.4, 0.6, "B", 0.6, tested, causes=[])
    save_result(directory / AT_CHANCE_FILE, asdict(chance))
    renew(directory)
    assert_found(directory, "0 of 1 lines of this kind")


def test_a_result_at_chance_has_the_accuracy_that_was_measured(copy):
    directory = copy("sampled")
    (directory / AT_CHANCE_FILE).unlink(missing_ok=True)
    measured = json.loads((directory / "rounds.jsonl").read_text().splitlines()[-1])["accuracy"]
    for stated in (measured, 0.99):
        chance = AtChance(stated, 0.0, 1.0, "B", 0.6, "360 test examples", causes=[])
        save_result(directory / AT_CHANCE_FILE, asdict(chance))
        renew(directory)
        said = f"at_chance.json has an accuracy of {stated:.6g}, where {measured:.6g} was measured"
        assert (said in audit_run(directory).findings) == (stated != measured)


@pytest.mark.parametrize("version", [3, 5])
def test_what_was_cut_is_of_the_format_that_is_read(copy, version):
    directory = copy("sampled")
    edit_json(directory / "data_cut.json", at("version", to=version))
    with pytest.raises(AuditError, match=f"data_cut.json has format version {version}, and this audit reads"):
        audit_run(directory)


@pytest.mark.parametrize("file", ["model_card.md", "model/weights.safetensors", "ledger.json", "config.yaml"])
def test_a_line_taken_out_of_the_seal_is_found(copy, file):
    directory = copy("turns")
    edit_json(directory / "seal.json", lambda seal: seal["sha256"].pop(file))
    assert_found(directory, f"seal.json names no {file}, which an ended run has")
    (directory / file).unlink()
    if file == "model_card.md":
        assert_found(directory, f"seal.json names no {file}, which an ended run has")


def test_columns_that_a_run_has_not_declared_are_no_columns_of_it(copy):
    """An audit reports a file of column names in a run's folder if the run's data has no named columns."""
    directory = copy("chosen")
    (directory / "model/columns.yaml").write_text("person: patient\n")
    edit_json(directory / "seal.json", lambda seal: seal["sha256"].update({"model/columns.yaml": ""}))
    renew(directory)
    assert RunFiles.read(directory).declared_parties == 0
    assert_found(directory, "assignment.json names no columns that the run had")


@pytest.mark.parametrize("name", ["turns", "chosen"])
def test_a_run_that_names_no_delta_has_the_default_one(copy, name):
    """If a run's settings name no delta, an audit expects the default delta in the plan."""
    directory = copy(name)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    config["privacy"]["delta"] = None
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    edit_json(directory / PLAN_FILE, at("settings", "privacy", "delta", to=None))
    renew(directory)
    assert audit_run(directory).passed
    edit_json(directory / PLAN_FILE, at("delta", to=0.2))
    renew(directory)
    assert_found(directory, "plan.json has delta 0.2, the configuration 1e-05")


def test_a_card_says_that_delta_is_large(tmp_path):
    """If delta is above the default, the model card must say so and name the default."""
    directory = tmp_path / "run"
    overrides = [*RUNS["sampled"], *FEW, "privacy.delta=1e-3"]
    with nothing_drawn():
        simulate(small_config(directory, overrides), make_observers=default_observers)
    assert audit_run(directory).passed
    card = (directory / "model_card.md").read_text()
    (line,) = [each for each in card.splitlines(keepends=True) if each.startswith("**Weak: delta")]
    for edited, said in (("", "0 of 1 lines of this kind"), (line.replace("1e-05", "0.1"), "default 0.1")):
        (directory / "model_card.md").write_text(card.replace(line, edited))
        renew(directory)
        assert_found(directory, said)


def test_a_card_of_an_earlier_version_names_no_loss_and_the_audit_says_so(copy):
    directory = copy("turns")
    card = (directory / "model_card.md").read_text()
    (line,) = [each for each in card.splitlines(keepends=True) if each.startswith("* loss: ")]
    assert audit_run(directory).not_computed == ()
    (directory / "model_card.md").write_text(card.replace(line, ""))
    renew(directory)
    audit = audit_run(directory)
    assert audit.passed
    (said,) = audit.not_computed
    assert said.startswith("which loss, metrics and extensions the run had: config.yaml alone names them")


@pytest.mark.parametrize("line", ["date", "versions"])
def test_date_and_versions_of_a_card_are_no_sentences(copy, line):
    directory = copy("turns")
    card = (directory / "model_card.md").read_text().splitlines(keepends=True)
    edited = [
        each.replace("\n", ", epsilon is 0.01\n") if each.startswith(f"* {line}") else each for each in card
    ]
    (directory / "model_card.md").write_text("".join(edited))
    renew(directory)
    assert_found(directory, f"says {line} ")


def test_names_of_outputs_are_compared_with_the_manifest(copy):
    directory = copy("turns")
    edit_json(directory / "model/model.json", lambda model: model["classes"].reverse())
    reseal(directory)
    assert_found(directory, "model.json is not the file that was saved with this model")


def test_what_is_there_and_in_no_seal_is_found(copy):
    directory = copy("turns")
    (directory / "held_out.json").write_text(json.dumps({"version": FORMAT_VERSION}))
    edit_json(directory / "seal.json", lambda seal: seal["sha256"].pop("budget.png"))
    edit_json(directory / "seal.json", lambda seal: seal["sha256"].update({"other.txt": "0"}))
    (directory / "other.txt").write_text("")
    (directory / "held_out.json").unlink()
    (directory / "parts.json").write_text(
        json.dumps({"version": FORMAT_VERSION, "parties": [], "budgets": []})
    )
    for said in ("budget.png is there, and", "parts.json is there, and", "other.txt, which is not a file of"):
        assert_found(directory, said)
    for each in (directory / "tensorboard").iterdir():
        each.write_bytes(b"")
    assert_found(directory, "is not the file that the run wrote")


def test_a_card_without_a_seal_is_compared(copy):
    """An audit checks the model card also of an unfinished run, which has no model and no hash file yet."""
    directory = copy("turns")
    for name in ("seal.json", "model/weights.safetensors"):
        (directory / name).unlink()
    (directory / "checkpoint.safetensors").write_bytes(b"")
    assert audit_run(directory).passed
    card = (directory / "model_card.md").read_text()
    (directory / "model_card.md").write_text(card.replace("delta = 1e-05", "delta = 1e-09"))
    assert_found(directory, "says delta 1e-09")
    (directory / "model_card.md").unlink()
    assert audit_run(directory).passed


def test_a_card_may_escape_what_others_wrote():
    form = Form("a", "* inputs: {inputs}", frozenset())
    assert list(compare("* inputs: age, \\<ward\\>", [form], (), {"inputs": "age, <ward>"}, {})) == []
    (found,) = compare("* inputs: age, \\<bed\\>", [form], (), {"inputs": "age, <ward>"}, {})
    assert "where age, <ward> follows" in found
    rows = [Form("b", "| {party} | {records} |", frozenset(), repeated=True)]
    names = ["-site #3", "a|b", "0.0 & *", "1. c\\d"]
    lines = "\n".join(f"| {text(name)} | 5 |" for name in names)
    expected: dict[str, list[Fields]] = {"b": [{"party": name, "records": "5"} for name in names]}
    assert list(compare(lines, rows, (), {}, expected)) == []


def test_a_field_without_a_figure_is_refused(tmp_path):
    """AuditError is raised for a card's field without an expected value, and for a template with no name."""
    with pytest.raises(AuditError, match="this audit has no expected value: more"):
        list(compare("epsilon in all: 3", [Form("a", "epsilon in all: {more}", frozenset())], (), {}, {}))
    (tmp_path / "lines.txt").write_text("[]\nno name here\n")
    with pytest.raises(AuditError, match="a line without a name: no name here"):
        read_forms(tmp_path / "lines.txt")


def test_an_audit_cannot_know_what_no_other_file_says(copy):
    """An audit cannot detect a changed learning rate if both files that hold it and all hashes agree."""
    directory = copy("turns")
    before = audit_run(directory).seal
    config = yaml.safe_load((directory / "config.yaml").read_text())
    config["training"]["learning_rate"] *= 2
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    edit_json(directory / PLAN_FILE, at("settings", "training", "learning_rate", factor=2))
    reseal(directory)
    assert audit_run(directory).passed
    assert audit_run(directory).seal != before
