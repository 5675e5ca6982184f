"""Tests of private runs on tables with a column of budgets, class weights or numeric labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.clients.configured import record_counts, task_of
from gdpfed.clients.record_forms import gradients_of
from gdpfed.report.parts import Parts
from gdpfed.runs.round_log import read_rounds

SITES, CONSENTS = ("east", "north", "west"), ("strict", "open")
PRIVATE = ("privacy=record_level", "privacy.budgets_of=records", "privacy.budgets=[1,8]")
WORDS = (
    *PRIVATE,
    "privacy.accountant=rdp",
    "secagg=off",
    "simulation.workers=1",
    "dataset=csv",
    "dataset.num_clients=3",
)


def write_table(folder, inputs, label, declared):
    """Write a table of records, a third of which allow a larger budget, and return the dataset's setting."""
    names = [f"x{column}" for column in range(inputs.shape[1])]
    lines = [",".join([*names, "label", "site", "consent"])]
    for row, values in enumerate(inputs):
        said = [*map(repr, values.tolist()), label[row], SITES[row % 3], CONSENTS[row // 3 % 3 == 0]]
        lines.append(",".join(map(str, said)))
    folder.mkdir()
    (folder / "table.csv").write_text("\n".join([*lines, ""]))
    ranges = ", ".join(f"{name}: [-3, 3]" for name in names)
    (folder / "columns.yaml").write_text(
        f"label: {{column: label, {declared}}}\nnumeric: {{{ranges}}}\n"
        "party: {column: site, values: [east, north, west]}\n"
        "record_group: {column: consent, values: [strict, open]}\n"
    )
    return f"dataset.path={folder / 'table.csv'}"


def results_of(directory: Path) -> Any:
    """Return the record of the last round, and the model's results by party and by budget."""
    return read_rounds(directory)[-1], Parts.read(directory)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Write the breast cancer table, scaled by its means and deviations, and return its setting."""
    x, y = load_breast_cancer(return_X_y=True)
    scaled = ((x - x.mean(axis=0)) / x.std(axis=0))[:, :10]
    folder = tmp_path_factory.mktemp("cells") / "table"
    return write_table(
        folder, scaled, np.where(y == 1, "benign", "malignant"), "classes: [malignant, benign]"
    )


@pytest.mark.parametrize(
    ("method", "steps"),
    [("dp_sum", ("run.num_rounds=40",)), ("dp_sgd", ("run.num_rounds=10", "training.local_steps=5"))],
)
def test_budgets_by_a_column_and_weights_by_class(tmp_path, cells, method, steps):
    directory = tmp_path / "run"
    words = [*WORDS, cells, f"method={method}", *steps, "training.learning_rate=1", "privacy.batch_rate=0.2"]
    words += ["dataset.class_weights=[2,1]", "dataset.metrics=[accuracy,auc]"]
    assert main(["simulate", *words, f"run.directory={directory}"]) == 0
    last, parts = results_of(directory)
    # Benign is what 63 % of the samples are; two in three of the records have epsilon 1.
    assert last.metrics["accuracy"] > 0.75
    strict, loose = parts.budgets
    assert (strict.name, loose.name) == ("budget 1 (records of group 0)", "budget 8 (records of group 1)")
    examples = strict.examples + loose.examples
    assert examples == sum(part.examples for part in parts.parties)
    right = sum(part.examples * part.metrics["accuracy"] for part in parts.budgets)
    assert right / examples == pytest.approx(last.metrics["accuracy"])
    assert set(strict.metrics) == {"accuracy", "auc"}
    card = (directory / "model_card.md").read_text()
    assert f"| {loose.name} | {loose.examples} | {100 * loose.metrics['accuracy']:.1f} % (" in card
    audit = audit_run(directory)
    assert audit.passed
    assert [group.budget for group in audit.groups] == [1, 8]
    assert 0.9 < audit.groups[1].planned / 8 <= 1


def test_a_weight_multiplies_the_gradient_of_its_class_before_it_is_clipped(cells):
    words = [*WORDS, cells, "method=dp_sum"]
    tasks = [task_of(load([*words, *more])) for more in ((), ("dataset.class_weights=[2,0.5]",))]
    split = tasks[0].client_data(0).take(np.arange(20))
    x, y = (torch.from_numpy(each)[None] for each in (split.x, split.y))
    assert set(y[0].tolist()) == {0, 1}
    device = torch.device("cpu")
    forms = [gradients_of(task, device) for task in tasks]
    theta = torch.randn(1, sum(forms[0].sizes), generator=torch.Generator().manual_seed(3))
    plain, weighed = (form.rows(theta, x, y)[0] for form in forms)
    torch.testing.assert_close(weighed, plain * torch.tensor([2.0, 0.5])[y[0]][:, None], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_numbers_are_learnt_within_the_budgets_of_their_records(tmp_path, loss):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-3, 3, (600, 2))
    days = 10 + 2 * inputs[:, 0] - inputs[:, 1]
    path = write_table(tmp_path / "days", inputs, days, "range: [0, 20]")
    directory = tmp_path / "run"
    words = [
        *WORDS,
        path,
        "method=dp_sum",
        f"dataset.loss={loss}",
        "dataset.metrics=[mean_absolute_error,r2]",
    ]
    words += ["run.num_rounds=40", "privacy.batch_rate=0.2", "training.learning_rate=0.5"]
    assert main(["simulate", *words, f"run.directory={directory}"]) == 0
    last, parts = results_of(directory)
    # Who always says the middle of the range is off by three days.
    assert last.metrics["mean_absolute_error"] < 0.6 * np.abs(days - 10).mean()
    errors = [part.examples * part.metrics["mean_absolute_error"] for part in parts.budgets]
    total = sum(part.examples for part in parts.budgets)
    assert sum(errors) / total == pytest.approx(last.metrics["mean_absolute_error"], rel=1e-5)
    assert [part.name.split()[1] for part in parts.budgets] == ["1", "8"]
    assert audit_run(directory).passed
    assert record_counts(load(words)).sum() + total == 600
