"""Tests of persons with several rows: each person is one record in sampling, clipping and counts."""

import re
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.cli import main
from gdpfed.clients.configured import order_of, record_counts, source_of, task_of
from gdpfed.clients.order import ClientPart, OrderError
from gdpfed.clients.record_forms import gradients_of
from gdpfed.clients.record_work import taken_from
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.errors import ConfigError, LearningError
from gdpfed.learning.data import DATASETS, DataSource, Split, load_dataset, register
from gdpfed.learning.data.cut import Cut
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.declaration import read_columns, to_yaml
from gdpfed.learning.data.own import OwnData, check_own, own_split
from gdpfed.learning.data.persons import beyond_person_words, grouped, persons_held_out, rows_to_take
from gdpfed.learning.data.table_check import check_table
from gdpfed.learning.data.tabular import own_columns
from gdpfed.learning.data_warnings import data_warnings
from gdpfed.learning.models import flatten
from gdpfed.learning.training.held_out_counts import held_out_counts
from gdpfed.learning.training.record_training import RecordHolder, exact_sums
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.methods import make_method
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.record_steps import RecordSteps
from gdpfed.report.run_observers import ModelCard
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort
from gdpfed.simulation.in_process_fleet import simulate
from secagg import SumParameters

DECLARATION = """\
label: {column: ill, classes: [no, yes]}
numeric: {age: [0, 100], pressure: [80, 200]}
party: {column: clinic, values: [east, west, south]}
person: patient
"""


def rows(clinic):
    """Return the rows of twelve patients of a clinic: every third has four rows, all others have one."""
    rng = np.random.default_rng(len(clinic))
    return [
        f"{clinic},{('no', 'yes')[patient % 2]},{age},{rng.integers(90, 190)},{clinic}-{patient}"
        for patient in range(12)
        for age in rng.integers(20, 90, size=4 if patient % 3 == 0 else 1)
    ]


@pytest.fixture
def settings(tmp_path):
    """Write a table of three clinics, and return the settings of a record-level run on that table."""
    lines = [line for clinic in ("east", "west", "south") for line in rows(clinic)]
    (tmp_path / "data.csv").write_text("\n".join(["clinic,ill,age,pressure,patient", *lines, ""]))
    (tmp_path / "columns.yaml").write_text(DECLARATION)
    return [
        *("dataset=csv", f"dataset.path={tmp_path / 'data.csv'}", "dataset.num_clients=3"),
        *("privacy=record_level", "privacy.budgets=[4]", "privacy.batch_rate=0.5"),
    ]


def test_rows_of_a_person_become_one_record():
    split = Split(
        np.arange(10, dtype=np.float32).reshape(5, 2),
        np.array([0, 1, 0, 1, 1]),
        np.array([1, 0, 2, 0, 1]),
        np.array([7, 3, 7, 7, 5]),
    )
    persons: Any = grouped(split).take(np.arange(3))
    # Three rows are kept in four.
    assert persons.y.tolist() == [[0, 0, 1, -1], [1, -1, -1, -1], [1, -1, -1, -1]]
    assert persons.x[0].tolist() == [[0, 1], [4, 5], [6, 7], [0, 0]]
    assert (persons.x[1:, 1:] == 0).all()
    # The strictest of the groups that a person's rows are in.
    assert persons.groups.tolist() == [0, 0, 1]
    assert len(grouped(split, owners=np.array([0, 0, 1, 0, 0]))) == 4


@pytest.mark.parametrize(
    ("counts", "width"), [((1, 3, 4), 4), ((1, 5, 2), 8), ((7, 40, 9), 20), ((1, 1, 1), 1)]
)
def test_how_many_rows_are_taken_follows_from_a_person_alone(counts, width):
    persons = np.repeat(np.arange(3), counts)
    rows = Split(
        np.arange(len(persons), dtype=np.float32)[:, None], np.zeros(len(persons), np.int64), None, persons
    )
    persons_apart = grouped(rows, most_rows=20)
    together: Any = persons_apart.take(np.arange(3))
    assert together.x.shape == (3, width, 1)
    taken = rows_to_take(together)
    assert taken.tolist() == rows_to_take(persons_apart).tolist()
    for person, count in enumerate(counts):
        alone = grouped(rows.take(np.flatnonzero(persons == person)), most_rows=20)
        assert taken[person] == rows_to_take(alone)[0] >= min(count, 20)
        assert persons_apart.take(np.array([person])).x.shape == (1, taken[person], 1)
        kept = together.x[person, : min(count, 20), 0]
        # The first ones, as they stand in the table.
        assert kept.tolist() == np.flatnonzero(persons == person)[:20].tolist()
    nobody = persons_apart.take(np.zeros(0, np.int64))
    assert rows_to_take(nobody).tolist() == [], "a Poisson draw may hold nobody"


def test_no_person_decides_how_much_memory_the_others_take(tmp_path):
    """Rows take what they take, in the check before a charge as in the round that follows it."""
    (tmp_path / "columns.yaml").write_text(DECLARATION)
    own, taken = OwnData(tmp_path / "data.csv"), []
    form = ExampleForm((2,), "float32", 2, own_columns(own.path).digest, by_person=True)
    for rows_of_one in (1, 5000):
        lines = "".join(f"east,no,30,90,{max(0, row - 5000)}\n" for row in range(5001 - rows_of_one, 5400))
        own.path.write_text(f"clinic,ill,age,pressure,patient\n{lines}")
        split = own_split(own.path, form)
        assert len(split) == 400
        assert split.take(np.arange(1, 400)).x.shape == (399, 1, 2)
        taken.append(split.x.nbytes + split.y.nbytes)
    assert taken[1] - taken[0] == 63 * (2 * 4 + 8)
    with patch("gdpfed.learning.data.own.grouped", side_effect=MemoryError), pytest.raises(MemoryError):
        check_own(own)


def test_a_person_with_very_many_rows_changes_no_gradient_of_another(settings):
    """A person with 5,000 rows adds to a sum of clipped gradients exactly what that person adds alone."""
    task = task_of(load([*settings, "method=dp_sum", "dataset.model=mlp"]))
    gradients, generator = gradients_of(task, torch.device("cpu")), np.random.default_rng(0)
    steps = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=1.0, noise_multiplier=0.0)
    persons = np.repeat(np.arange(6), [5000, 1, 1, 3, 1, 1])
    x = generator.normal(size=(len(persons), 2)).astype(np.float32)
    rows = Split(x, generator.integers(2, size=len(persons)), persons=persons)

    def summed(chosen, of=lambda persons: persons):
        data = of(grouped(rows.take(np.flatnonzero(chosen))))
        batches = PoissonBatches((1.0,), np.zeros(len(data), np.int64))
        holder = RecordHolder(
            *(np.arange(len(data)), steps, batches, generator.bytes),
            rows_to_take(data),
        )
        take = taken_from(data, torch.device("cpu"))
        return exact_sums(
            gradients, flatten(task.build_model()), [holder], take, bounds=[1.0], unit=2.0**-45
        )[0]

    alone = summed(persons == 0)
    assert alone.any()
    np.testing.assert_array_equal(summed(persons >= 0), summed(persons > 0) + alone)
    in_one_array = summed(persons >= 0, lambda every: every.take(np.arange(len(every))))
    np.testing.assert_array_equal(in_one_array, summed(persons >= 0))


def test_a_plan_counts_persons_and_none_is_in_both_splits(settings):
    config = load([*settings, "method=dp_sum"])
    task = task_of(config)
    data: Any = task.load()
    assert task.by_person
    assert record_counts(config).tolist() == [len(task.client_indices(client)) for client in range(3)]
    assert sum(record_counts(config)) < 36
    assert data.train.x.shape[1:] == (4, 2)
    assert data.input_shape == (2,)
    method = make_method(config)
    assert method.plan.record_is == "person"
    assert method.plan.to_dict()["record_is"] == "person"
    assert not task_of(load(settings[:3])).by_person


def test_gradients_are_clipped_by_person_and_not_by_row(settings):
    task = task_of(load(settings)).described()
    gradients, theta = gradients_of(task, torch.device("cpu")), flatten(task.build_model())
    data = task.client_data(0)
    x, y = (torch.from_numpy(each)[None] for each in (data.x, data.y))
    present = torch.ones(1, len(data), dtype=torch.bool)
    thetas = torch.from_numpy(theta)[None]
    # By person: the sum over rows, whose gradients come from the model of rows, then the norm.
    model, loss, expected = task.build_model(), task.make_loss(), torch.zeros(len(theta))
    for person in range(len(data)):
        there = data.y[person] >= 0
        outputs = model(torch.from_numpy(data.x[person][there]))
        total = loss(outputs, torch.from_numpy(data.y[person][there])).sum()
        parts = torch.autograd.grad(total, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        expected += gradient * min(1.0, 0.3 / float(gradient.norm()))
    found = gradients.clipped_sums(thetas, x, y, present, torch.tensor([0.3]))[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_all_that_a_person_has_moves_a_sum_by_the_norm_at_most(settings):
    config = load(settings)
    task = task_of(config).described()
    steps = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=0.5, noise_multiplier=0.0)
    order = replace(order_of(config, task), work="gradient_sum", records=steps)
    theta, data = flatten(task.build_model()), task.client_data(0)
    encoding = SumParameters(
        label="one", num_clients=3, threshold=2, dropout_tolerance=0, corrupt_tolerance=0,
        dimension=len(theta), clipping_norm=20.0, noise_multiplier=0.1,
    ).encoding(3)  # fmt: skip
    whole = update_steps(Job(order, theta, encoding, 0, own_data=data))
    places = np.arange(len(data))
    without = [data.take(np.delete(places, left_out)) for left_out in places]
    sums = [update_steps(Job(order, theta, encoding, 0, own_data=rest)) for rest in without]
    moves = [encoding.grid * np.linalg.norm(whole - each) for each in sums]
    assert 0.45 < max(moves) <= 0.5
    engine = BatchedEngine(task, torch.device("cpu"))
    cohort = Cohort([0], encoding, {0: ClientPart(records=steps)})
    assert (engine.sum_updates(order, theta, cohort).total == whole).all()
    rows_alone = Split(data.x[:, 0], data.y[:, 0], persons=places)
    with pytest.raises(OrderError, match="the columns declare persons"):
        update_steps(Job(order, theta, encoding, 0, own_data=rows_alone))


def test_a_run_of_persons_says_so_in_its_card_and_passes_its_audit(settings, tmp_path):
    told = ["method=dp_sum", "run.num_rounds=2", "run.evaluation=nodes", f"run.directory={tmp_path / 'run'}"]
    path = simulate(load([*settings, *told]), make_observers=lambda run, announce: [ModelCard(run)])
    audit = audit_run(path)
    assert audit.passed
    assert audit.record_is == "person"
    card = (path / "model_card.md").read_text()
    assert "Take any one person of any client" in card
    assert "a patient with several records" not in card


def test_a_run_that_declares_rows_of_a_person_alone_passes_its_audit(settings, tmp_path):
    """A run's columns.yaml leaves out `parties` where it is 1, and the audit reads it so."""
    declared = DECLARATION.replace("patient", "{column: patient, parties: 1, rows: 3}")
    (tmp_path / "columns.yaml").write_text(declared)
    told = ["method=dp_sum", "run.num_rounds=1", f"run.directory={tmp_path / 'run'}"]
    path = simulate(load([*settings, *told]), make_observers=lambda run, announce: [ModelCard(run)])
    assert "parties" not in (path / "model" / "columns.yaml").read_text()
    assert RunFiles.read(path).declared_parties == 1
    assert audit_run(path).passed


def test_held_out_persons_count_as_one_each():
    outputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    counts = held_out_counts(outputs, np.array([0, 0, 1]), np.array([5, 5, 9]))
    assert counts[:4].tolist() == [0.5, 0.5, 1.0, 0.0]


def test_what_does_not_keep_persons_together_is_refused(settings, tmp_path):
    with pytest.raises(ConfigError, match="does not clip by person"):
        make_method(load([*settings, "method=fedavg"]))
    with pytest.raises(LearningError, match="use dataset.partition=natural or iid"):
        make_method(load([*settings, "method=dp_sum", "dataset.partition=labels"]))
    declared = DECLARATION.replace("age: [0, 100], ", "") + "test: {column: age, values: [30]}\n"
    other = tmp_path / "other"
    other.mkdir()
    (other / "columns.yaml").write_text(declared)
    lines = ["clinic,ill,age,pressure,patient", "east,no,30,90,one", "east,no,31,90,one", "west,no,3,90,two"]
    (other / "data.csv").write_text("\n".join([*lines, "south,no,3,90,three", ""]))
    with pytest.raises(LearningError, match="1 persons have rows to train on and rows for testing"):
        load_dataset(DataSource("csv", str(other / "data.csv")))


def returning(data):
    return lambda source: data


def test_a_loader_of_a_package_declares_no_persons(settings, monkeypatch):
    table = load_dataset(source_of(load(settings)))
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))
    plain = Split(table.train.take(np.arange(9)).x, table.train.y[:9])
    for name, data in (
        ("registry", replace(table, train=plain, owners=None)),
        ("rows", replace(table, columns=None)),
    ):
        register(name, returning(data))
        with pytest.raises(LearningError, match=f"^dataset={name}: .* persons .*dataset=csv"):
            load_dataset(DataSource(name))


def test_a_column_of_persons_that_repeat_and_is_not_declared_is_a_warning(settings, tmp_path):
    (warned,) = [line for line in data_warnings(undeclared(tmp_path, settings)) if "person" in line]
    assert "column 'patient' repeats" in warned
    assert not [line for line in data_warnings(task_of(load(settings))) if "column" in line]


SEVERAL = DECLARATION.replace("person: patient", "person: {column: patient, parties: 2}")


def at_two_clinics(folder):
    """Change the table so that the patients of the clinics east and west are the same persons."""
    (folder / "columns.yaml").write_text(SEVERAL)
    table = folder / "data.csv"
    table.write_text(table.read_text().replace("west-", "east-"))


def test_a_person_at_two_clinics_moves_the_sum_of_both_by_the_norm_at_most(settings, tmp_path):
    at_two_clinics(tmp_path)
    method = make_method(load([*settings, "method=dp_sum", "privacy.clipping_norm=0.5"]))
    (records,) = records_of(method.plan)
    assert (records.clipping_norm, records.parties) == (0.25, 2)
    steps: Any = method
    asked = [each.clipping_norm for each in steps.requests(np.zeros(6), 0, [np.arange(3)])[0].records]
    assert asked == [0.25] * 3
    # Who is at both is held out at both, or at neither.
    data: Any = load_dataset(DataSource("csv", str(tmp_path / "data.csv")))
    assert not np.intersect1d(data.train.persons, data.test.persons).size
    assert len(data.test)


@pytest.mark.parametrize("method", ["dp_sum", "dp_sgd", "ali_dpfl"])
def test_a_run_pays_for_all_clinics_of_a_person_and_its_audit_finds_where_it_did_not(
    method, settings, tmp_path
):
    at_two_clinics(tmp_path)
    told = [f"method={method}", "run.num_rounds=2", f"run.directory={tmp_path / 'run'}"]
    path = simulate(load([*settings, *told]), make_observers=lambda run, announce: [ModelCard(run)])
    audit = audit_run(path)
    assert audit.passed
    (group,) = audit.groups
    assert group.records is not None
    assert group.records.steps <= group.records.steps_allowed
    assert "A person may be at up to 2 clients" in (path / "model_card.md").read_text()
    columns = path / "model" / "columns.yaml"
    columns.write_text(columns.read_text().replace("parties: 2", "parties: 3"))
    found = [line for line in audit_run(path).findings if "columns.yaml says" in line]
    assert found == [
        "group 0 is charged for persons at 2 clients, and columns.yaml says that one may be at 3"
    ]


def test_persons_at_more_parties_than_are_declared_are_a_warning(settings, tmp_path):
    at_two_clinics(tmp_path)
    assert not [line for line in data_warnings(task_of(load(settings))) if "more parties" in line]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "columns.yaml").write_text(DECLARATION)
    (tmp_path / "one" / "data.csv").write_text((tmp_path / "data.csv").read_text())
    told = [*settings, f"dataset.path={tmp_path / 'one' / 'data.csv'}"]
    (warned,) = [line for line in data_warnings(task_of(load(told))) if "more parties" in line]
    assert "one of them at 2" in warned
    assert "person: {column: patient, parties: 2}" in warned


def test_the_check_notes_persons_at_more_parties_than_are_declared(settings, tmp_path, capsys):
    """`gdpfed check` warns of persons at more parties than the declaration allows, in a table or a folder."""
    said = "12 persons have rows at more parties than are declared, one of them at 2: epsilon"
    assert main(["check", str(tmp_path / "data.csv")]) == 0
    assert "more parties" not in capsys.readouterr().out
    at_two_clinics(tmp_path)
    assert main(["check", str(tmp_path / "data.csv")]) == 0
    assert "more parties" not in capsys.readouterr().out
    (tmp_path / "columns.yaml").write_text(DECLARATION)
    assert main(["check", str(tmp_path / "data.csv")]) == 0
    assert f"  note: {said}" in capsys.readouterr().out
    header, *lines = (tmp_path / "data.csv").read_text().splitlines()
    folder = tmp_path / "clinics"
    folder.mkdir()
    without_party = [line for line in DECLARATION.splitlines() if not line.startswith("party")]
    (folder / "columns.yaml").write_text("\n".join(without_party))
    for clinic in ("east", "west", "south"):
        own = [line for line in lines if line.startswith(clinic)]
        (folder / f"{clinic}.csv").write_text("\n".join([header, *own, ""]))
    assert main(["check", str(folder)]) == 0
    assert f"{folder}: note: {said}" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["parties", "rows"])
@pytest.mark.parametrize("number", ["0", "1.5", "many"])
def test_the_limits_of_a_person_must_be_numbers(key, number, settings, tmp_path):
    (tmp_path / "columns.yaml").write_text(SEVERAL.replace("parties: 2", f"{key}: {number}"))
    with pytest.raises(LearningError, match=f"person.{key} is '{number}'; it must be"):
        task_of(load(settings))


def test_a_declaration_of_parties_is_written_as_it_was_read(settings, tmp_path):
    at_two_clinics(tmp_path)
    columns = read_columns(tmp_path / "columns.yaml")
    (tmp_path / "again.yaml").write_text(to_yaml(columns))
    assert read_columns(tmp_path / "again.yaml") == columns
    assert columns.digest != replace(columns, person_parties=1).digest
    fewer = replace(columns, person_rows=10)
    (tmp_path / "again.yaml").write_text(to_yaml(fewer))
    assert read_columns(tmp_path / "again.yaml") == fewer
    assert columns.digest != fewer.digest


@pytest.mark.parametrize("text", ["", "NA", "NaN", "nan", "?", "-", "NULL", "n/a", "Null", "none"])
def test_rows_without_a_person_are_not_those_of_one(text, settings, tmp_path):
    table = tmp_path / "data.csv"
    table.write_text(table.read_text().replace("east-0\n", f"{text}\n"))
    held = f"holds '{text}'" if text else "is empty"
    words = re.escape(f"column 'patient' {held} in row 1, so the row's person is not known: fill it in")
    with pytest.raises(LearningError, match=words):
        task_of(load(settings)).load()
    _, found = check_table(table, read_columns(tmp_path / "columns.yaml"))
    assert [each.words for each in found if each.is_fault] == [
        f"column 'patient' {held}, so the row's person is not known: fill it in"
    ]
    assert not [each.words for each in found if "beyond the first" in each.words]


@pytest.mark.parametrize("by_site", [False, True])
def test_a_text_that_is_declared_as_missing_names_no_person(by_site, settings, tmp_path):
    table = tmp_path / "data.csv"
    table.write_text(table.read_text().replace("east-0\n", "-9\n"))
    if by_site:
        (tmp_path / "files.yaml").write_text("data: {missing: ['-9']}\n")
    else:
        declared = (tmp_path / "columns.yaml").read_text()
        (tmp_path / "columns.yaml").write_text(f"{declared}\nmissing: ['-9']\n")
    with pytest.raises(LearningError, match="column 'patient' is empty in row 1"):
        task_of(load(settings)).load()


def test_rows_beyond_those_that_are_kept_of_a_person_are_counted_where_they_are(settings, tmp_path):
    """`gdpfed check`, training and nodes count the rows that exceed the declared maximum for one person."""
    declared = DECLARATION.replace("patient", "{column: patient, rows: 2}")
    (tmp_path / "columns.yaml").write_text(declared)
    columns = read_columns(tmp_path / "columns.yaml")
    said = "rows are beyond the first that are kept of one person (person.rows=2 of columns.yaml)"
    _, found = check_table(tmp_path / "data.csv", columns)
    assert [each.words for each in found if said in each.words and each.words.startswith("24 rows")]
    task = task_of(load(settings))
    data, every = task.load(), load_dataset(task.source)
    trained, tested = every.train, every.test
    assert isinstance(trained, Split)
    assert isinstance(tested, Split)
    assert trained.persons is not None
    _, counts = np.unique(trained.persons, return_counts=True)
    assert Cut.of(data).rows_beyond_person == 2 * (counts == 4).sum() > 0
    assert [line for line in data_warnings(task) if said in line]
    records, _ = persons_held_out(tested, every.test_owners, columns)
    assert records.y.shape[1] == 2
    (tmp_path / "columns.yaml").write_text(declared.replace("rows: 2", "rows: 3"))
    own = tmp_path / "data.csv"
    assert Cut.of_own(own, own_columns(own)).rows_beyond_person == 12
    assert Cut.of_own(own, own_columns(own), held_out=True).rows_beyond_person == 0
    assert beyond_person_words(1, 64) == (
        "1 row is beyond the first that are kept of one person (64, or person.rows of columns.yaml), and is "
        "left out where persons are protected"
    )


def undeclared(folder, settings):
    """Copy the table, with a columns.yaml that names no column of persons, and return the copy's task."""
    other = folder / "other"
    other.mkdir()
    (other / "columns.yaml").write_text(DECLARATION.replace("person: patient\n", ""))
    (other / "data.csv").write_text((folder / "data.csv").read_text())
    return task_of(load([*settings[:1], f"dataset.path={other / 'data.csv'}", *settings[2:]]))
