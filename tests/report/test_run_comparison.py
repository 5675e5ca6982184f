"""A run beside what its parties could have without it: fits near a model, figures, and the command."""

import json
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
from gdpfed.learning.adapted_model import fit_near
from gdpfed.learning.data import Split
from gdpfed.learning.models import build_model, flatten
from gdpfed.methods import ClientSum, make_method
from gdpfed.report.class_figures import Figure, figures_of
from gdpfed.report.rivals import EVERYWHERE, Parties, Worth
from gdpfed.report.worth_of_lines import mean_worth, side_by_side
from gdpfed.simulation import simulate
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
    """A run of mr_mtl whose bias stays with the parties."""
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
    """By the source's two lines, written again: w_k' = w_k + Delta_k, then towards the mean of all w_k'."""
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
    with pytest.raises(ReportError, match="does not say whose its test rows are"):
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
    """Averaged is what differs in the seed alone: an epsilon of 1 and one of 8 are never one row."""
    one = mean_worth([worth(0.6), worth(0.8)])
    assert one.title.endswith("mean of 2 runs")
    found = side_by_side({"budgets (1)": one, "budgets (8)": worth(0.9, "epsilon 8, by record")})
    assert [*found.figures] == ["most frequent class", "DP-Sum (budgets (1))", "DP-Sum (budgets (8))"]
    assert found.privacy["DP-Sum (budgets (8))"] == "epsilon 8, by record"
    assert found.figures["DP-Sum (budgets (1))"][EVERYWHERE]["accuracy"].value == pytest.approx(0.7)
    assert found.figures["DP-Sum (budgets (8))"][EVERYWHERE]["accuracy"].value == 0.9
    with pytest.raises(ReportError, match="not the same parties and test rows"):
        side_by_side({"a": one, "b": worth(0.9, rows=21)})
    with pytest.raises(ReportError, match="not the same models"):
        mean_worth([worth(0.9), worth(0.9, model="other")])


def test_a_sweep_is_compared_line_by_line(path, tmp_path, monkeypatch, capsys):
    """Two budgets, one of them with two seeds, by the command; each run is looked at once."""
    asked = []

    def looked_at(run, overrides, pull):
        asked.append(run.name)
        config = json.loads((run / "told.json").read_text())
        return worth(config["value"], f"epsilon {config['budget']}, by record")

    monkeypatch.setattr("gdpfed.report.worth_of_lines.worth_of", looked_at)
    for name, budget, seed, value in (("a", 1, 0, 0.6), ("b", 1, 1, 0.8), ("c", 8, 0, 0.9)):
        write_run(tmp_path / name, ["method=dp_fedavg", f"privacy.budgets=[{budget}]", f"run.seed={seed}"])
        (tmp_path / name / "told.json").write_text(json.dumps({"budget": budget, "value": value}))
    assert main(["compare", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert asked == ["a", "b", "c"]
    labels = ["budgets (1)", "budgets (8)"]
    assert [*found["privacy"]] == ["most frequent class", *(f"DP-Sum ({label})" for label in labels)]
    assert found["figures"][f"DP-Sum ({labels[0]})"]["all"]["accuracy"][0] == pytest.approx(0.7)
