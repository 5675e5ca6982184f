"""Tests of runs with Python objects: data, models, losses, metrics, partitions, extensions, and errors."""

import json
import shlex
import sys
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import gdpfed
from conf import option_files
from conf.load import load
from gdpfed.cli import main
from gdpfed.errors import LearningError, TrainingOver
from gdpfed.extras.statistics.result import Statistics
from gdpfed.learning.data.dataset import Split
from gdpfed.learning.data.in_memory import dataset_of
from gdpfed.learning.data.named_partitions import PARTITIONS
from gdpfed.learning.data.source import DATASETS
from gdpfed.learning.labels import LOSSES, METRICS
from gdpfed.learning.models import MODELS
from gdpfed.python_objects import named
from gdpfed.registry import OF_PYTHON
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.extensions.table import EXTENSIONS
from testing.small_runs import final_model, nothing_drawn
from tests.extras.statistics.counted_tables import HEADER, drawn_rows, settings, write_table

REGISTRIES = (DATASETS, EXTENSIONS, LOSSES, METRICS, MODELS, PARTITIONS)
PLAIN = ("secagg=off", "simulation.workers=1", "dataset.batch_size=4", "privacy.delta=1e-3")
DRAWN = np.random.default_rng(0)
X, X_TEST = DRAWN.normal(size=(60, 2)).astype(np.float32), DRAWN.normal(size=(20, 2)).astype(np.float32)
Y, Y_TEST = (X[:, 0] > 0).astype(int), (X_TEST[:, 0] > 0).astype(int)
DATA = (X, Y, X_TEST, Y_TEST)
OWNERS = np.array([f"h{number:02}" for number in range(12)])[np.arange(60) % 12]
FRAME = pd.DataFrame({"age": X[:, 0] * 10, "sex": np.where(X[:, 1] > 0, "f", "m"), "ill": Y, "at": OWNERS})


class Failing(nn.Linear):
    """A model whose forward raises an error of its own."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, inputs):
        raise KeyError("a field")


class Complex(nn.Linear):
    """A model with a complex parameter."""

    def __init__(self):
        super().__init__(2, 2)
        self.turned = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, inputs):
        return (super().forward(inputs) * self.turned).real


class Doubled(nn.Linear):
    """A model that computes in float64."""

    def __init__(self):
        super().__init__(2, 2, dtype=torch.float64)

    def forward(self, inputs):
        return super().forward(inputs.double())


def infinite():
    """Return a model with a parameter that is not finite."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias.fill_(torch.inf)
    return model


class Detached(nn.Linear):
    """A model whose outputs have no gradient."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, inputs):
        return super().forward(inputs).detach()


def fails(*arguments, **options):
    raise AssertionError


COLUMNS = {
    "label": {"column": "ill", "classes": [0, 1]},
    "numeric": {"age": [-40, 40]},
    "categorical": {"sex": ["f", "m"]},
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Forget all models and data sets that were passed as Python objects; enter an empty directory."""
    for registry in REGISTRIES:
        monkeypatch.setattr(
            registry,
            "_items",
            {name: item for name, item in registry._items.items() if not name.startswith(OF_PYTHON)},
        )
    monkeypatch.setattr(named, "_GIVEN", {})
    monkeypatch.setattr(named, "USED", [])
    monkeypatch.setattr(option_files, "_made", [])
    monkeypatch.chdir(tmp_path)
    with nothing_drawn():
        yield


def simulate(*settings, **objects):
    usual: dict[str, Any] = {"method": "gdpfed_star", "rounds": 2}
    return gdpfed.simulate(*PLAIN, *settings, **usual | objects)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


class Stops(Extension):
    """Extension that counts evaluations and ends the run after the first round."""

    key = "stops"

    def __init__(self):
        self.seen = 0

    def evaluated(self, ended):
        self.seen += 1

    def start(self, order, theta):
        if self.seen:
            raise TrainingOver("one round is enough")
        return theta


def test_arrays_with_owners_and_a_module_are_trained_on_shown_audited_and_used(capsys):
    run = simulate(data=DATA, owners=OWNERS, model=net(), budgets=dict.fromkeys(OWNERS, 2.0) | {"h03": 8.0})
    assert run.settings["dataset"]["name"] == "python"
    assert run.settings["dataset"]["model"] == "python.Sequential"
    assert run.settings["privacy"]["client_budgets"] == [2.0] * 3 + [8.0] + [2.0] * 8
    assert gdpfed.load_model(run.path).predict(X_TEST).labels.shape == (20,)
    assert repr(run).startswith("gdpfed_star on python, 2 rounds: accuracy ")
    shown = run._repr_html_()
    assert "<caption>" in shown
    assert "python" in shown
    audit = gdpfed.audit_run(run.path)
    assert audit.passed, audit.findings
    (line,) = audit.not_computed
    assert "the data set python, the model python.Sequential came from a program" in line
    assert main(["audit", str(run.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not computed: whether the run computed with what it names: the data set python" in said
    assert "Every budget held, and the files agree." in said
    card = (run.path / "model_card.md").read_text(encoding="utf-8")
    assert "no file of this run holds the data set python, the model python.Sequential, which a prog" in card


def test_a_card_without_the_line_about_objects_is_found():
    run = simulate(data=DATA, owners=OWNERS)
    card = run.path / "model_card.md"
    card.chmod(0o600)
    lines = card.read_text("utf-8").splitlines(keepends=True)
    card.write_text("".join(line for line in lines if "which a program gave" not in line), "utf-8")
    findings = gdpfed.audit_run(run.path).findings
    assert any("which a program gave" in each for each in findings), findings


def test_a_run_of_objects_goes_on_with_the_same_objects_alone(monkeypatch, capsys):
    module = net()
    given: dict[str, Any] = {"data": DATA, "owners": OWNERS}
    whole = simulate("run.directory=a", method="fedavg", model=module, **given)
    with pytest.raises(gdpfed.GDPFedError, match="not finished"):
        simulate("run.directory=b", "run.stop_after_round=1", method="fedavg", model=module, **given)
    assert main(["simulate", "run.resume=b"]) == 2
    assert (
        "dataset=python is data of a Python program, which this process was not given"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(named, "_GIVEN", {})
    for registry in REGISTRIES:
        for name in [each for each in registry._items if each.startswith("python.")]:
            del registry._items[name]
    with pytest.raises(
        gdpfed.InputError, match=r"model 'python.Sequential' is an object of a Python program"
    ):
        gdpfed.simulate("run.resume=b", **given)
    with pytest.raises(gdpfed.FailedError, match="model_options"):
        gdpfed.simulate("run.resume=b", model=nn.Sequential(nn.Linear(2, 2)), **given)
    monkeypatch.setattr(named, "_GIVEN", {})
    MODELS._items.pop("python.Sequential")
    with pytest.raises(gdpfed.FailedError, match="is not what the run began with"):
        gdpfed.simulate("run.resume=b", model=net(), data=(X + 1, *DATA[1:]), owners=OWNERS)
    monkeypatch.setattr(named, "_GIVEN", {})
    MODELS._items.pop("python.Sequential", None)
    rest = gdpfed.simulate("run.resume=b", "simulation.workers=1", model=net(), **given)
    np.testing.assert_array_equal(final_model(whole.path), final_model(rest.path))


def test_a_loss_a_metric_a_partition_and_an_extension_are_objects():
    def far_off(outputs, targets):
        return 1e30 * outputs.sum(dim=-1) + 0 * targets

    def share_of_ones(outputs, targets):
        return np.mean(targets == 1)

    def halves(data, num_clients, seed):
        return np.array_split(np.arange(len(data.train)), num_clients)

    stops = Stops()
    run = simulate(
        data=DATA,
        clients=12,
        model="softmax",
        loss=far_off,
        metrics=[share_of_ones, "accuracy"],
        partition=halves,
        extensions=[stops],
        rounds=1,
    )
    assert stops.seen == 1
    assert run.metric == "python.share_of_ones"
    assert run.final_result == pytest.approx(np.mean(Y_TEST))
    assert run.settings["dataset"]["partition"] == "python.halves"
    # An update without a bound would be 1e29 long.
    assert np.abs(final_model(run.path)).max() < 1e3
    lines = gdpfed.audit_run(run.path).not_computed
    assert "the metric python.share_of_ones, the extension python.Stops" in lines[0]
    assert "code of the server's" in lines[1]
    with pytest.raises(gdpfed.InputError, match="this Stops has been in a run, which it remembers"):
        simulate(data=DATA, clients=12, extensions=[stops])


def test_another_function_of_one_name_is_another_object():
    def made(factor):
        def loss(outputs, targets):
            return factor * outputs.sum(dim=-1) + 0 * targets

        return loss

    first, second = made(1), made(2)
    words = [gdpfed.command(data=DATA, clients=12, loss=each) for each in (first, second, first)]
    assert [each.count("python.loss_2") for each in words] == [0, 1, 0]


def test_a_data_frame_is_read_by_its_declaration_wherever_it_comes_from():
    settings = ("privacy=record_level", "method=dp_sum")
    run = gdpfed.simulate(
        *PLAIN, *settings, data=FRAME, columns=COLUMNS, owners="at", budgets=[3.0], rounds=1
    )
    assert run.settings["dataset"]["partition"] == "natural"
    assert run.settings["dataset"]["num_clients"] == 12
    assert gdpfed.load_model(run.path).predict(FRAME[["age", "sex"]]).labels.shape == (60,)
    table = pa.Table.from_pandas(FRAME)
    one, other = (dataset_of(each, columns=COLUMNS, owners="at") for each in (FRAME, table))
    assert one.fingerprints == other.fingerprints
    assert one.owner_names == tuple(np.unique(OWNERS))


def test_a_data_frame_has_owners_whether_columns_is_a_mapping_or_a_path(tmp_path):
    path = tmp_path / "columns.yaml"
    path.write_text(json.dumps(COLUMNS))
    expected = dataset_of(FRAME, columns=COLUMNS, owners="at")
    for given in (path, str(path)):
        found = dataset_of(FRAME, columns=given, owners="at")
        assert (found.fingerprints, found.owner_names) == (expected.fingerprints, expected.owner_names)
    run = gdpfed.simulate(*PLAIN, "method=fedavg", data=FRAME, columns=str(path), owners="at", rounds=1)
    assert run.settings["dataset"]["num_clients"] == 12
    path.write_text(json.dumps(COLUMNS | {"party": {"column": "at", "values": ["h00"]}}))
    with pytest.raises(LearningError, match=r"owners=at, and .*columns.yaml declares party, which .* leave"):
        dataset_of(FRAME, columns=path, owners="at")
    path.write_text("[label]")
    with pytest.raises(LearningError, match=r"columns.yaml: the file is \['label'\]; it must be keys"):
        dataset_of(FRAME, columns=path, owners="at")


def test_persons_of_a_data_frame_are_protected_as_persons():
    frame = FRAME.assign(patient=np.arange(60) // 2)
    settings = ("privacy=record_level", "method=dp_sum", "dataset.num_clients=4")
    (note,) = dataset_of(frame, columns=COLUMNS).notes
    assert note.startswith("the column 'patient' repeats and is not declared")
    plan = gdpfed.plan(*settings, data=frame, columns=COLUMNS | {"person": "patient"}, budgets=[3.0])
    assert plan.protected == "person"
    assert gdpfed.plan(*settings, data=frame, columns=COLUMNS, budgets=[3.0]).protected == "record"


def test_the_same_run_from_the_shell(tmp_path):
    given: dict[str, Any] = {
        "data": DATA,
        "owners": OWNERS,
        "model": "softmax",
        "rounds": 2,
        "method": "fedavg",
    }
    here = gdpfed.simulate(*PLAIN, "run.directory=here", **given)
    text = gdpfed.command(*PLAIN, "run.directory=there", files=tmp_path / "files", **given)
    assert text.startswith("gdpfed simulate \\\n    dataset=npz")
    assert main(shlex.split(text.replace("\\\n", ""))[1:]) == 0
    np.testing.assert_array_equal(final_model(here.path), final_model(tmp_path / "there"))
    noted = gdpfed.command(data=DATA, clients=12, model=net())
    assert noted.splitlines()[0].startswith("# with files=FOLDER this call writes")
    assert noted.splitlines()[1].startswith("# dataset.model=python.Sequential is an object of this program")
    with pytest.raises(gdpfed.InputError, match="verb=audit is not known: use plan, simulate or run"):
        gdpfed.command(verb="audit")


def test_the_same_table_from_the_shell(tmp_path):
    given: dict[str, Any] = {
        "data": FRAME,
        "columns": COLUMNS,
        "owners": "at",
        "rounds": 1,
        "method": "fedavg",
    }
    here = gdpfed.simulate(*PLAIN, "run.directory=here", **given)
    text = gdpfed.command(*PLAIN, "run.directory=there", files=tmp_path / "files", **given)
    assert main(shlex.split(text.replace("\\\n", ""))[1:]) == 0
    np.testing.assert_array_equal(final_model(here.path), final_model(tmp_path / "there"))


def test_a_table_that_has_changed_since_an_earlier_run_of_the_program_is_read_anew(tmp_path):
    table = write_table(tmp_path)
    counted = [*settings(table, "privacy.budgets=[600]", "method.minimum_count=0"), "secagg=off"]
    trained = ["dataset=csv", f"dataset.path={table}", "dataset.num_clients=4", "method=fedavg", *PLAIN]
    models: list[Any] = []
    rows: list[float] = []
    for number in range(2):
        models.append(final_model(gdpfed.simulate(*trained, f"run.directory=m{number}", rounds=1).path))
        found = Statistics.read(gdpfed.simulate(*counted, f"run.directory=s{number}").path)
        assert found is not None
        rows.append(sum(count or 0.0 for count in found.columns[0].counts or ()))
        table.write_text("\n".join([HEADER, *drawn_rows(800), ""]))
    assert rows == pytest.approx([360, 720], abs=9)
    assert not np.array_equal(models[0], models[1])


def test_a_plan_without_an_option_file_is_shown_as_tables():
    plan = gdpfed.plan(budgets=[1, 3], clients=100, rounds=20, method="gdpfed_star")
    assert ([group.epsilon for group in plan.groups], plan.num_rounds) == ([1.0, 3.0], 20)
    assert plan.sampling_rate == pytest.approx(0.3, rel=0.1)
    assert "gdpfed_star: client-level DP against everyone, 20 rounds" in repr(plan)
    shown = plan._repr_html_()
    assert shown.startswith("<table><tbody><tr><td>who</td>")
    assert "<table><caption>gdpfed_star: client-level DP" in shown
    assert "<td>between two data sets</td>" in shown
    assert "object at" not in shown
    assert gdpfed.plan(budgets=2.0, clients=12, method="gdpfed_star").groups[0].epsilon == 2.0
    assert "sampling_rate" not in gdpfed.command("dataset=fmnist", clients=600, verb="plan")


def test_a_data_set_that_is_registered_is_an_option():
    def rings(source):
        source.allow("path")
        return dataset_of(DATA)

    gdpfed.register("dataset", "rings", rings, num_clients=12, sampling_rate=1.0)
    config = load(["dataset=rings"])
    assert (config.dataset.name, config.dataset.num_clients) == ("rings", 12)
    assert config.dataset.model == load(["dataset=npz"]).dataset.model
    run = simulate("dataset=rings")
    assert run.settings["dataset"]["name"] == "rings"
    with pytest.raises(gdpfed.InputError, match="there is a data set 'rings' already"):
        gdpfed.register("dataset", "rings", dataset_of)
    for name, more, words in (
        ("a b", {}, "cannot be called 'a b': use letters"),
        ("cifar10-hog", {}, "there is an option dataset=cifar10-hog already"),
        ("other", {"clients": 3}, "setting 'dataset.clients' is not known: use "),
    ):
        with pytest.raises(gdpfed.InputError, match=words):
            gdpfed.register("dataset", name, rings, **more)
        assert name not in DATASETS.names()
    with pytest.raises(gdpfed.InputError, match="epochs: only a data set has recommended settings"):
        gdpfed.register("loss", "mine", rings, epochs=3)


WRONG = {
    "data holds nothing": ({"data": 3}, "data is a int: give the four arrays"),
    "two arrays": ({"data": DATA[:2]}, r"data has 2 parts: give the four arrays \(x_train, y_train, x_test"),
    "lengths": (
        {"data": (X, Y[:-1], X_TEST, Y_TEST)},
        r"data: x_train has shape \(60, 2\) and y_train \(59,",
    ),
    "shapes": ({"data": (X, Y, X_TEST[:, :1], Y_TEST)}, r"examples of shape \(2,\) in x_train but \(1,\)"),
    "ragged": ({"data": ([[1], [1, 2]], [0, 1], X_TEST, Y_TEST)}, "x_train is not an array of numbers"),
    "text": ({"data": (X.astype(str), Y, X_TEST, Y_TEST)}, "x_train holds values of type <U"),
    "masked": (
        {"data": (np.ma.masked_greater(X, 1), Y, X_TEST, Y_TEST)},
        "x_train has masked values, which a training would see: fill them",
    ),
    "nan": ({"data": (np.where(X > 1, np.nan, X), Y, X_TEST, Y_TEST)}, "x_train holds values that are not f"),
    "gaps": ({"data": (X, Y * 3, X_TEST, Y_TEST)}, "3 classes, numbered from 0 to 3; number them from 0 to"),
    "labels": ({"data": (X, Y - 1, X_TEST, Y_TEST)}, "y_train must hold class numbers 0, 1, 2"),
    "data set": (
        {"data": gdpfed.Dataset(Split(X, Y), Split(X, Y * 5), 2)},
        "data: label . of test is 5, and the labels are 2 classes",
    ),
    "nobody's": (
        {"owners": None},
        "does not say which client has which example: give owners=, .* or clients=",
    ),
    "owners": ({"owners": OWNERS[:-1]}, "owners has 59 entries for 60 training examples"),
    "owner": ({"owners": [None, *OWNERS[1:]]}, "owners: entry 0 is None: give a name, or a whole number"),
    "no owners": ({"owners": "at"}, "owners is 'at': give a name or a number for each training example"),
    "frame": ({"data": FRAME, "owners": "at"}, "data is a data frame without columns="),
    "column": ({"data": FRAME, "columns": COLUMNS, "owners": "by"}, "owners=by is not a column of the data"),
    "array": (
        {"data": FRAME, "columns": COLUMNS, "owners": OWNERS},
        "owners is a .*, and data is a data frame: give the name of the column .*; it has age, sex, ill, at",
    ),
    "owned twice": (
        {"data": FRAME, "columns": COLUMNS | {"party": {"column": "at"}}, "owners": "at"},
        "owners=at, and columns declares party, which says whose each row is, too: leave out one of them",
    ),
    "no columns": (
        {"data": FRAME, "columns": [COLUMNS], "owners": "at"},
        "columns is a list: give the declaration as a mapping, or the path of its file",
    ),
    "declared": ({"data": FRAME, "columns": {"label": "ill"}, "owners": "at"}, "columns: label is 'ill'"),
    "value": (
        {"data": FRAME, "columns": COLUMNS | {"categorical": {"sex": ["f"]}}, "owners": "at"},
        "data: column 'sex' holds 'm' in row",
    ),
    "columns": (
        {"columns": COLUMNS},
        "columns cannot be used with this data=, only with a data frame: leave",
    ),
    "classes": (
        {"model": nn.Linear(2, 5)},
        r"gives outputs of shape \(5,\) for a record, and these .* \(2,\)",
    ),
    "inputs": ({"model": nn.Linear(3, 2)}, r"dataset.model=python.Linear cannot take examples of shape \(2,"),
    "own error": ({"model": Failing()}, r"and type float32.*: KeyError: 'a field'$"),
    "complex": ({"model": Complex()}, "Complex has complex parameters, turned, and updates are real"),
    "no gradient": (
        {"model": Detached()},
        r"Detached cannot be trained with .*: its gradient raised Runtime",
    ),
    "float64": ({"model": Doubled()}, r"raised RuntimeError: .*: convert it by its method float\(\)$"),
    "not finite": ({"model": infinite()}, "python.Linear begins with parameters that are not finite"),
    "lazy": ({"model": nn.LazyLinear(2)}, "model=LazyLinear has lazy layers without sizes: call it on"),
    "lazy factory": ({"model": lambda shape, classes: nn.LazyLinear(2)}, "cannot be built for examples of"),
    "own factory": ({"model": fails}, "and type float32.*: AssertionError$"),
    "own partition": (
        {"partition": fails, "owners": None, "clients": 6},
        r"cannot share out \d+ examples \(AssertionError\): change its",
    ),
    "class": ({"model": nn.Linear}, r"model=Linear is a class: give a module, as in model=Linear\(...\)"),
    "no model": ({"model": 3}, "model=3: give a torch module, a function"),
    "model's name": ({"model": "tree"}, "model 'tree' is not known; did you mean trees. Use cnn2,"),
    "batch norm": (
        {"model": nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))},
        "buffers .* change in train",
    ),
    "loss": (
        {"loss": lambda outputs, targets: outputs.mean()},
        "dataset.loss=python.lambda gives one number for 3 records",
    ),
    "no loss": (
        {"loss": 3},
        r"loss=3: give a function of the form \(outputs, targets\) -> losses, or a name",
    ),
    "metric": ({"metrics": [lambda outputs, targets: outputs["a"]]}, "python.lambda fails on outputs of"),
    "no metric": ({"metrics": [3]}, r"metrics holds 3: give functions \(outputs, targets\) -> figure"),
    "parts": (
        {"partition": lambda data, n, seed: [[0]] * n, "clients": 12},
        "gives an example to two clients",
    ),
    "extension": ({"extensions": [Stops]}, "extensions holds <class .*: give instances of"),
    "budget": ({"budgets": [1, 0]}, "budgets holds 0: an epsilon is above 0 and finite"),
    "negative": ({"budgets": {"h00": -1.0}}, "budgets of h00 holds -1: an epsilon is above 0"),
    "no budget": ({"budgets": np.array([1.0, np.nan])}, "budgets holds nan: an epsilon is above 0"),
    "a date": ({"budgets": [date.min]}, "budgets holds datetime.date.*: give numbers above 0"),
    "a name": ({"budgets": {"h0": 1.0}}, "names 'h0', and the parties are h00, .*; did you mean 'h"),
    "twice": (
        {"clients": 12, "settings": ["dataset.num_clients=12"]},
        "clients= and 'dataset.num_clients=12'",
    ),
    "path": ({"settings": ["dataset.path=a"]}, "dataset.path=a has no meaning for data set 'python'"),
    "fraction": (
        {"settings": ["dataset.test_fraction=0.5"]},
        "dataset.test_fraction cannot be used with this data=",
    ),
    "no name": ({"settings": [DATA]}, "a tuple is given without a name: settings are texts"),
    "few": (
        {"data": DATA, "owners": np.arange(60) % 4, "budgets": [1, 2], "method": "gdpfed_plus"},
        "minimum_cohort=3: raise dataset.num_clients, or have one sum of all groups, as method=gdpfed_star",
    ),
    "unknown": ({"epochs": 3}, "argument 'epochs' is not known"),
    "ray": (
        {"model": net(), "settings": ["simulation.backend=ray"]},
        "have no objects of this program, and da",
    ),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_object_is_one_line_before_anything_is_computed(wrong, words, tmp_path):
    given = {"data": DATA, "owners": OWNERS} | wrong
    settings = given.pop("settings", ())
    if "partition" in given:
        given["owners"] = None
    with pytest.raises(gdpfed.InputError, match=words) as raised:
        simulate(*settings, **given)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.glob("runs/*/*")) == []


def test_data_are_those_of_one_run_at_a_time(tmp_path):
    """A run that begins within another one, such as in a thread, would be given the other one's data."""

    def begins_another(record):
        with pytest.raises(gdpfed.InputError, match="^data: another run of this process has data"):
            simulate(data=DATA, owners=OWNERS)
        seen.append(record)

    seen = list[Any]()
    simulate(data=DATA, owners=OWNERS, observe=begins_another)
    assert len(seen) == 2
    simulate(data=DATA, owners=OWNERS)


def test_a_data_frame_without_the_package_that_reads_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(gdpfed.InputError, match="this needs the package pyarrow, which is not installed"):
        dataset_of(FRAME, columns=COLUMNS)


def test_weights_of_a_module_can_be_loaded_by_its_own_program():
    module = net()
    run = simulate(data=DATA, owners=OWNERS, model=module)
    before = np.asarray(gdpfed.load_model(run.path).predict(X_TEST).probabilities)
    weights = {
        name: torch.from_numpy(each)
        for name, each in load_file(run.path / "model/weights.safetensors").items()
    }
    module.load_state_dict(weights)
    np.testing.assert_allclose(module(torch.from_numpy(X_TEST)).softmax(1).detach(), before, rtol=1e-5)
