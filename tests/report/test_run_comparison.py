"""Tests of `gdpfed compare` on one run: its model against the models that parties could train alone."""

import json
from errno import ENOSPC
from math import sqrt

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from conf.load import load
from fastgrad.modules import cross_entropy
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError, ReportError, RunError
from gdpfed.learning.adapted_model import _save_fitted, fit_near
from gdpfed.learning.data import Split
from gdpfed.learning.models import build_model, flatten
from gdpfed.methods import ClientSum, make_method
from gdpfed.report import rivals
from gdpfed.report.class_figures import AREA, Figure, area, figures_of, row_terms
from gdpfed.report.epsilon_picture import CostPoint
from gdpfed.report.metric_display import Spread
from gdpfed.report.rivals import Parties
from gdpfed.report.worth import EVERYWHERE, Judged, Worth
from gdpfed.report.worth_answer import difference
from gdpfed.report.worth_of_lines import mean_worth, side_by_side
from gdpfed.simulation import simulate
from testing.small_runs import nothing_drawn
from testing.stays import write_stays
from testing.written_runs import write_run

RUN = (
    "dataset=breast_cancer",
    "privacy=record_level",
    "privacy.budgets=[3]",
    "privacy.accountant=rdp",
    "run.num_rounds=2",
    "simulation.workers=1",
)
OWN_BIAS = "training.local_parameters=['*.bias']"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Simulate a run of mr_mtl in which parties keep their own bias parameters, and return its directory."""
    directory = tmp_path_factory.mktemp("worth") / "run"
    words = ("method=mr_mtl", "method.pull=0.5", "secagg=off", OWN_BIAS, f"run.directory={directory}")
    simulate(load([*RUN, *words]))
    return directory


def test_a_fit_near_a_model_is_where_its_gradient_is_nothing():
    rng = np.random.default_rng(0)
    data = Split(rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40))
    model = build_model("linear", (3,), 2, seed=0)
    parameters = dict(model.named_parameters())
    found, own_bias = parameters["linear.weight"], parameters["linear.bias"]
    weight, bias = found.detach().clone(), own_bias.detach().clone()
    fit_near(model, data, cross_entropy, names=["linear.weight"], pull=2.0)
    loss = cross_entropy(model(torch.from_numpy(data.x)), torch.from_numpy(data.y)).sum()
    (gradient,) = torch.autograd.grad(loss, [found])
    assert torch.allclose(gradient, -2.0 * (found - weight), atol=1e-3)
    assert not torch.allclose(found, weight, atol=1e-2)
    assert torch.equal(own_bias, bias)


def test_figures_and_their_intervals_are_those_of_the_sources():
    labels = np.array([1] * 10 + [0] * 10)
    scores = np.zeros((20, 2))
    scores[:, 1] = np.r_[np.ones(8), -np.ones(2), np.ones(1), -np.ones(9)]
    found = figures_of(scores, labels)
    assert (found["sensitivity"].value, found["specificity"].value) == (0.8, 0.9)
    # Wilson's interval for 17 of 20, as in tables.
    assert found["accuracy"].low == pytest.approx(0.6396, abs=1e-3)
    assert found["accuracy"].high == pytest.approx(0.9476, abs=1e-3)
    area = 0.8 * 0.9 + 0.5 * (0.8 * 0.1 + 0.2 * 0.9)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    error = sqrt((area * (1 - area) + 9 * (q1 - area**2) + 9 * (q2 - area**2)) / 100)
    assert found["AUC"].value == pytest.approx(area)
    # Further off below than the error of what was found says: that of a smaller area is larger.
    assert area - 1.5 * 1.96 * error < found["AUC"].low < area - 1.96 * error
    assert found["balanced accuracy"].value == pytest.approx(0.85)
    alone = figures_of(scores[:10], labels[:10])
    assert np.isnan([alone[name].value for name in ("AUC", "specificity", "balanced accuracy")]).all()


def test_an_area_of_several_classes_has_the_interval_that_its_spread_shows():
    """The interval of a mean AUC of three classes is as wide as the error that the rows' terms give it."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 200)
    scores = rng.normal(size=(200, 3))
    scores[np.arange(200), labels] += 1.0
    found, terms = figures_of(scores, labels)["AUC"], row_terms(scores, labels)[AREA]
    half = 1.959963984540054 * sqrt(terms @ terms)
    assert found.value - found.low == pytest.approx(half, rel=0.25)
    assert found.high - found.value == pytest.approx(half, rel=0.25)
    few = area(scores[:2], np.array([0, 2]))
    assert (few.low, few.high) == (0.0, 1.0)
    # One row of a class may be ranked high by chance, however many rows there are of the others.
    single = area(scores, np.array([*[0] * 198, 1, 2]))
    assert (single.low, single.high) == (0.0, 1.0)


def test_parameters_that_stay_at_a_party_are_not_in_theta(path):
    config = load([*RUN, "method=dp_sum", OWN_BIAS])
    task = task_of(config)
    assert task.dimension == len(flatten(task.build_model())) == 60
    trained = load_file(path / "model" / "weights.safetensors")
    begun = dict(task.build_model().named_parameters())["linear.bias"]
    assert np.array_equal(trained["linear.bias"], begun.detach().numpy())
    for patterns, said in (
        ("[head.*]", "no parameter of the model matches 'head"),
        ("['*']", "leaves nothing"),
    ):
        with pytest.raises(LearningError, match=said):
            task_of(load([*RUN, "method=dp_sum", f"training.local_parameters={patterns}"])).build_model()


@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_clients_own_models_are_pulled_to_their_mean(pull):
    """Each client's own model is changed by its update, then pulled towards the mean of all own models."""
    settings = ("method.chosen=[]", "training.learning_rate=0.1", "training.local_steps=4")
    method = make_method(load([*RUN, "method=mr_mtl", f"method.pull={pull}", *settings]))
    moves = np.random.default_rng(1).normal(size=(6, 62))
    start, counts = np.ones(62, np.float32), np.array([76, 76, 76, 76, 76, 75])

    def sums(requests):
        assert [each.alone for each in requests] == [True] * 6
        return [ClientSum(each.name, moves[each.clients[0]], 1) for each in requests]

    theta, _ = method.round(start, 0, [np.arange(6)], sums)
    moved = 1 + moves
    mean = counts @ moved / counts.sum()
    assert theta == pytest.approx(mean, abs=1e-6)
    personal = method.state_dict()["personal"]
    assert personal == pytest.approx(mean + (moved - mean) / (1 + 0.1 * pull) ** 4)
    again = make_method(load([*RUN, "method=mr_mtl", *settings]))
    again.load_state_dict(method.state_dict())
    second = again.requests(theta, 1, [np.arange(6)])
    assert second[3].start == pytest.approx(personal[3], abs=1e-6)


def test_the_clients_own_models_are_a_file_of_the_run(path):
    personal = load_file(path / "personal.safetensors")["personal"]
    released = load_file(path / "model" / "weights.safetensors")["linear.weight"].ravel()
    assert personal.shape == (6, 60)
    counts = np.array([76, 76, 76, 76, 76, 75])
    assert counts @ personal / counts.sum() == pytest.approx(released, abs=1e-5)


def test_models_of_single_clients_are_not_read_under_masks(tmp_path):
    config = load([*RUN, "method=mr_mtl", f"run.directory={tmp_path / 'run'}"])
    with pytest.raises(RunError, match="secagg=off"):
        simulate(config)


def test_the_command_compares_and_marks_what_no_budget_covers(path, capsys):
    assert main(["compare", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    last = json.loads((path / "rounds.jsonl").read_text().splitlines()[-1])
    assert found["figures"]["MR-MTL"]["all"]["accuracy"][0] == pytest.approx(last["accuracy"])
    assert found["privacy"]["MR-MTL, own models"] == "epsilon 3, by record"
    marked = [name for name, words in found["privacy"].items() if words == "not accounted"]
    own = ["MR-MTL, own linear.bias", "MR-MTL, own fit near it"]
    assert marked == ["most frequent class", "each party alone", *own]
    assert found["figures"]["each party alone"]["all"]["accuracy"][0] > 0.9
    base = found["figures"]["most frequent class"]["all"]["accuracy"][0]
    assert base == pytest.approx(max(found["prevalence"]["all"], 1 - found["prevalence"]["all"]))
    assert main(["compare", str(path), "--pull", "-1"]) == 2


def test_data_without_parties_of_their_own_are_not_compared():
    with pytest.raises(ReportError, match="does not name the party of each test row"):
        Parties.of(task_of(load(["dataset=digits"])))


def test_a_party_adapts_a_model_to_its_rows(path, tmp_path, capsys):
    config = load(RUN)
    columns = task_of(config).load().columns
    assert columns is not None
    head = [*columns.inputs, columns.label]
    middle = [f"{(each.low + each.high) / 2}" for each in columns.numeric]
    rows = [[*middle, columns.classes[label][0]] for label in (0, 0, 0, 1)]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(",".join(each) for each in [head, *rows]) + "\n")
    words = ["adapt", str(path), str(table), "--output", str(tmp_path / "own")]
    assert main([*words, "--parameters", "*.bias", "--pull", "0"]) == 0
    assert "fitted to 4 rows without noise" in capsys.readouterr().out
    before, after = (load_file(each / "weights.safetensors") for each in (path / "model", tmp_path / "own"))
    assert np.array_equal(before["linear.weight"], after["linear.weight"])
    # At the middle of all ranges the inputs are 0: the bias alone says three to one.
    assert after["linear.bias"][0] - after["linear.bias"][1] == pytest.approx(np.log(3), abs=1e-3)
    assert main(words) == 2
    capsys.readouterr()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, reason in (
        ("link", "exists: name"),
        ("own.csv/model", "cannot be made: Not a directory; name"),
    ):
        assert main([*words[:-1], str(tmp_path / name)]) == 2
        assert f"--output={tmp_path / name} {reason}" in capsys.readouterr().err
    assert main([*words[:-1], str(path / "model" / "own")]) == 2
    assert "lies in the shared model's folder, and what is fitted must not leave" in capsys.readouterr().err


def test_an_adapted_model_that_cannot_be_written_leaves_no_folder(path, tmp_path, monkeypatch):
    def full(*arguments, **given):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("gdpfed.files.create_file", full)
    with pytest.raises(LearningError, match=f"^--output={tmp_path}/own cannot be made: No space left"):
        _save_fitted(path / "model", tmp_path / "own", b"weights")
    assert not (tmp_path / "own").exists()


def test_of_several_classes_the_most_frequent_is_named(tmp_path, capsys):
    rows = [f"{'abc'[k % 3]},{k % 7},{('mild', 'strong', 'strong', 'none')[k % 4]}" for k in range(120)]
    (tmp_path / "data.csv").write_text("\n".join(["clinic,dose,course", *rows, ""]))
    (tmp_path / "columns.yaml").write_text(
        "label: {column: course, classes: [none, mild, strong]}\nnumeric: {dose: [0, 6]}\n"
        "party: {column: clinic, values: [a, b, c]}\n"
    )
    words = ["dataset=csv", f"dataset.path={tmp_path / 'data.csv'}", "dataset.num_clients=3", "method=fedavg"]
    words += ["dataset.metrics=[auc]", "secagg=off", *RUN[4:]]
    simulate(load([*words, f"run.directory={tmp_path / 'r'}"]))
    assert main(["compare", str(tmp_path / "r"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tested, rows_in_all = found["prevalence"]["all"], found["rows"]["all"]
    assert (found["positive"], found["leading"]) == ("strong", AREA)
    assert 0.3 < tested < 0.7
    assert found["answer"] == [
        f"Of {rows_in_all} test rows {100 * tested:.1f} % are of 'strong': to answer it always is right as "
        "often, without any model. So the AUC is shown, the mean over classes of the probability that a row "
        "of the class is ranked above one of the others."
    ]
    value, low, high = found["figures"]["each party alone"]["all"]["AUC"]
    assert low < value < high


def worth(value, privacy="epsilon 1, by record", model="DP-Sum", rows=20):
    figures = {EVERYWHERE: {"accuracy": Figure(value, value - 0.1, value + 0.1)}}
    base = {EVERYWHERE: {"accuracy": Figure(0.5, 0.4, 0.6)}}
    return Worth(
        "dp_sum on breast_cancer",
        "benign",
        {EVERYWHERE: rows},
        {EVERYWHERE: 0.5},
        {"most frequent class": base, model: figures},
        {"most frequent class": "not accounted", model: privacy},
    )


def test_runs_of_other_budgets_are_rows_of_their_own():
    """Only runs that differ in the seed alone are averaged; runs of different budgets are separate rows."""
    one = mean_worth([worth(0.6), worth(0.8)])
    assert one.title.endswith("mean of 2 runs")
    found = side_by_side({"budgets (1)": one, "budgets (8)": worth(0.9, "epsilon 8, by record")})
    assert [*found.figures] == ["most frequent class", "DP-Sum (budgets (1))", "DP-Sum (budgets (8))"]
    assert found.privacy["DP-Sum (budgets (8))"] == "epsilon 8, by record"
    assert found.figures["DP-Sum (budgets (1))"][EVERYWHERE]["accuracy"].value == pytest.approx(0.7)
    assert found.figures["DP-Sum (budgets (8))"][EVERYWHERE]["accuracy"].value == 0.9
    with pytest.raises(ReportError, match="do not have the same parties and test rows"):
        side_by_side({"a": one, "b": worth(0.9, rows=21)})
    with pytest.raises(ReportError, match="do not have the same models"):
        mean_worth([worth(0.9), worth(0.9, model="other")])


def test_a_sweep_is_compared_line_by_line(path, tmp_path, monkeypatch, capsys):
    """In a folder of runs, `gdpfed compare` averages over seeds, separates budgets, reads each run once."""
    asked = []

    def looked_at(run, overrides, pull):
        asked.append(run.name)
        config = json.loads((run / "told.json").read_text())
        return worth(config["value"], f"epsilon {config['budget']}, by record")

    monkeypatch.setattr("gdpfed.report.worth_of_lines.worth_of", looked_at)
    for name, budget, seed, value in (("a", 1, 0, 0.6), ("b", 1, 1, 0.8), ("more/c", 8, 0, 0.9)):
        write_run(tmp_path / name, ["method=dp_fedavg", f"privacy.budgets=[{budget}]", f"run.seed={seed}"])
        (tmp_path / name / "told.json").write_text(json.dumps({"budget": budget, "value": value}))
    assert main(["compare", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert asked == ["a", "b", "c"]
    labels = ["budgets (1)", "budgets (8)"]
    assert [*found["privacy"]] == ["most frequent class", *(f"DP-Sum ({label})" for label in labels)]
    assert found["figures"][f"DP-Sum ({labels[0]})"]["all"]["accuracy"][0] == pytest.approx(0.7)


def test_terms_of_rows_are_what_drawing_the_rows_again_shows():
    """The standard errors of an AUC, and of the difference of two AUCs, agree with the bootstrap's."""
    rng = np.random.default_rng(3)
    labels = (rng.random(400) < 0.1).astype(np.int64)
    ours = np.stack([np.zeros(400), labels + rng.normal(size=400)], axis=1)
    theirs = ours + np.stack([np.zeros(400), 0.3 * rng.normal(size=400)], axis=1)
    drawn = [rng.integers(400, size=400) for _ in range(400)]
    found = np.array([[area(each[rows], labels[rows]).value for each in (ours, theirs)] for rows in drawn])
    terms = [row_terms(each, labels)[AREA] for each in (ours, theirs)]
    assert terms[0].sum() == pytest.approx(0, abs=1e-9)
    assert sqrt(terms[0] @ terms[0]) == pytest.approx(found[:, 0].std(), rel=0.15)
    apart = terms[0] - terms[1]
    assert sqrt(apart @ apart) == pytest.approx((found[:, 0] - found[:, 1]).std(), rel=0.15)
    assert sqrt(apart @ apart) < 0.5 * sqrt(terms[0] @ terms[0])
    several = row_terms(rng.normal(size=(400, 3)), rng.integers(0, 3, 400))
    assert several[AREA].shape == several["accuracy"].shape == (400,)
    assert np.isnan(row_terms(ours, np.zeros(400, np.int64))[AREA]).all()


def judged_worth(values, terms, persons=None):
    others = {AREA: Judged(np.zeros(len(values)), np.zeros(len(terms)))}
    return Worth(
        *("a run", "class 1", {EVERYWHERE: len(terms)}, {EVERYWHERE: 0.1}, {}, {}),
        judged={"ours": {AREA: Judged(np.array(values), np.array(terms))}, "theirs": others},
        persons=None if persons is None else np.array(persons),
    )


def test_a_difference_has_the_chance_of_rows_of_persons_and_of_runs():
    z = 1.959963984540054
    alone = difference(judged_worth([0.1], [0.03, -0.03, 0.04, -0.04]), "ours", "theirs", AREA)
    assert (alone.mean, alone.order) == (0.1, 0)
    assert alone.high - alone.mean == pytest.approx(z * sqrt(2 * 0.03**2 + 2 * 0.04**2))
    # Two rows of one person whose terms add up are one row of twice the weight.
    terms = [0.02, 0.02, -0.02, -0.02]
    by_person = difference(judged_worth([0.1], terms, [5, 5, 7, 7]), "ours", "theirs", AREA)
    assert by_person.high - by_person.mean == pytest.approx(z * sqrt(2 * 0.04**2))
    runs = difference(judged_worth([0.08, 0.12], [0.0, 0.0]), "ours", "theirs", AREA)
    assert runs.high - runs.mean == pytest.approx(z * 0.04 / sqrt(2) / sqrt(2))
    assert (runs.order, runs.text()) == (1, "+10.0 [+6.1, +13.9]")


def test_bars_of_a_picture_are_intervals_where_there_are_some():
    point = CostPoint("dp_sum", (1.0, 1.0, 1.0), Spread(80.0, 2.0, 3), (70.0, 88.0))
    assert point.bar == (10.0, 8.0)
    assert CostPoint("dp_sum", (1.0, 1.0, 1.0), Spread(80.0, 2.0, 3)).bar == (2.0, 2.0)


def test_a_sweep_of_budgets_over_persons_is_answered_first_and_by_auc(tmp_path, monkeypatch, capsys):
    """If few persons are of one class, `gdpfed compare` over several budgets states the AUC first."""
    trained, average = list[int](), rivals._federated_average

    def counted(parties, averaging):
        trained.append(averaging.seed)
        return average(parties, averaging)

    monkeypatch.setattr(rivals, "_federated_average", counted)
    path = write_stays(tmp_path / "patient.csv", hospitals=60)
    data = ("dataset=eicu", f"dataset.path={path}", "dataset.num_rounds=2")
    asked = (*data, "privacy=record_level", "method=dp_sum", "secagg=off")
    with nothing_drawn():
        for budget, seed in ((1, 0), (1, 1), (8, 0)):
            words = (f"privacy.budgets=[{budget}]", f"run.seed={seed}", *RUN[3:])
            simulate(load([*asked, *words, f"run.directory={tmp_path / 'runs' / f'{budget}-{seed}'}"]))
    assert main(["compare", str(tmp_path / "runs"), "--html", "--output", str(tmp_path / "worth")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Beside each party alone, by AUC: ")
    for each in ("epsilon 1, by person", "epsilon 8, by person", "Beside fedavg without privacy, by AUC: "):
        assert each in said
    assert "are of one class: to answer it always is right as often, without any model" in said
    # What differs in its budget alone is compared with one training without privacy.
    assert sorted(trained) == [0, 1]
    found = json.loads((tmp_path / "worth" / "worth.json").read_text())
    assert found["leading"] == "AUC"
    assert found["answer"][0].startswith("Beside each party alone, by AUC: ")
    assert (tmp_path / "worth" / "worth.md").read_text().startswith("Beside each party alone, by AUC: ")
    page = (tmp_path / "worth" / "worth.html").read_text()
    assert (
        page.index("Was it worth it?") < page.index("AUC against epsilon") < page.index("accuracy by party")
    )
