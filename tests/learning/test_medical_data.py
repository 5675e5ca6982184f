"""Tests of patients' data: breast cancer (bundled), heart disease and eICU (if their files are there)."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.published_tables import HOSPITALS, RANGES
from gdpfed.learning.data.tabular import parties_of_person
from gdpfed.learning.training.evaluate import central_evaluation
from testing.project import SHARED_DATA
from testing.stays import HEADINGS, REGIONS, write_stays

HEART_DISEASE, EICU = SHARED_DATA / "heart-disease", SHARED_DATA / "eicu-demo" / "patient.csv"
FOUR = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n32,1,4,?,0,?,0,127,0,.7,1,?,?,3\n" * 4


def loaded(*words: Any, **settings: Any) -> Any:
    return load_dataset(DataSource(*words, **settings))


def test_ranges_are_those_that_the_documentation_publishes():
    table = re.findall(r"^[a-z ()]+:\s+([\d.]+)\s+([\d.]+)$", load_breast_cancer().DESCR, re.MULTILINE)
    assert [(float(low), float(high)) for low, high in table] == list(RANGES.values())


def test_breast_cancer_has_six_parties_and_a_test_split_of_each():
    data = loaded("breast_cancer")
    values, labels = load_breast_cancer(return_X_y=True)
    assert np.bincount(data.owners).tolist() == [76] * 5 + [75]
    assert np.bincount(data.test_owners).tolist() == [19] * 6
    low, high = np.array([*RANGES.values()]).T
    inputs, wanted = np.concatenate([data.train.x, data.test.x]), 2 * (values - low) / (high - low) - 1
    nearest = np.array([np.abs(wanted - row).max(axis=1).argmin() for row in inputs])
    # Every sample is there once; the published ranges are rounded, so some ends are cut by a little.
    assert sorted(nearest) == list(range(569))
    np.testing.assert_allclose(inputs, wanted[nearest], atol=0.06)
    assert np.concatenate([data.train.y, data.test.y]).tolist() == labels[nearest].tolist()
    assert np.abs(data.train.x).max() == 1


def hospitals(folder, **texts):
    for name in HOSPITALS:
        (folder / f"processed.{name}.data").write_text(texts.get(name, FOUR))
    return folder


def test_a_patient_of_heart_disease_becomes_fifteen_numbers(tmp_path):
    data = loaded("heart_disease", str(hospitals(tmp_path)), test_fraction=0.5)
    assert (data.owner_names, len(data.train), len(data.test)) == (HOSPITALS, 16, 16)
    first, second = (
        (43 / 60, 1, 65 / 120, 133 / 500, 1, 0.6, 0, 5.3 / 10),
        (12 / 60, 1, 40 / 120, 0, 0, 67 / 150, 0, 3.7 / 10),
    )
    expected = {
        0: (*(2 * share - 1 for share in first), 1, 0, 0, 0, 0, 0, 1),
        1: (*(2 * share - 1 for share in second), 0, 0, 0, 1, 1, 0, 0),
    }
    for inputs, label in zip(data.train.x, data.train.y, strict=True):
        np.testing.assert_allclose(inputs, expected[int(label)], atol=1e-6)
    whole = loaded("heart_disease", str(tmp_path), complete_rows=True)
    assert set(whole.train.y.tolist()) == {0}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"va": "1,2\n"}, r"processed.va.data: row 1 has 2 values; it must have 14"),
        ({"va": ""}, r"processed.va.data has no rows with data"),
        (
            {"hungarian": FOUR.replace(",3\n", ",5\n")},
            "column 'num' holds '5' in row 2, which is not one of 0, 1, 2",
        ),
        (
            {"cleveland": FOUR.replace("63.0", "old")},
            "column 'age' holds 'old' in row 1, which is not a number",
        ),
    ],
)
def test_files_with_something_else_are_named(tmp_path, texts, words):
    with pytest.raises(LearningError, match=words):
        loaded("heart_disease", str(hospitals(tmp_path, **texts)))


def test_files_that_are_not_there_are_named(tmp_path):
    hospitals(tmp_path)
    (tmp_path / "processed.switzerland.data").unlink()
    with pytest.raises(LearningError, match="lacks processed.switzerland.data: name the folder with UCI's"):
        loaded("heart_disease", str(tmp_path))


@pytest.mark.skipif(not HEART_DISEASE.is_dir(), reason=f"{HEART_DISEASE} is not there")
def test_the_four_hospitals_have_as_many_patients_as_uci_says():
    data = loaded("heart_disease", str(HEART_DISEASE))
    held = np.bincount(data.owners) + np.bincount(data.test_owners)
    assert held.tolist() == [303, 294, 123, 200]
    labels = np.concatenate([data.train.y, data.test.y])
    assert np.bincount(labels).tolist() == [164 + 188 + 8 + 51, 920 - 411]
    # As many as FLamby has, who leaves out the same columns and incomplete rows.
    complete = loaded("heart_disease", str(HEART_DISEASE), complete_rows=True)
    held = np.bincount(complete.owners) + np.bincount(complete.test_owners)
    assert held.tolist() == [303, 261, 46, 130]


def test_each_party_is_judged_on_its_own_patients():
    from conf.load import load

    config = load(["dataset=breast_cancer"])
    task = task_of(config)
    evaluation = central_evaluation(task, "cpu", ["accuracy", "auc"])
    theta = np.random.default_rng(0).normal(size=62).astype(np.float32)
    data: Any = task.load()
    parts = [np.flatnonzero(data.test_owners == party) for party in range(6)]
    found = evaluation.of_parts(theta, [*parts, np.zeros(0, dtype=np.int64)])
    weights, bias = theta[:60].reshape(2, 30), theta[60:]
    right = (data.test.x @ weights.T + bias).argmax(axis=1) == data.test.y
    accuracies = [each.metrics["accuracy"] for each in found[:6]]
    assert accuracies == pytest.approx([right[part].mean() for part in parts])
    assert found[6].metrics == {"accuracy": None, "auc": None}
    assert found[6].intervals == {"accuracy": None, "auc": None}
    for each in found[:6]:
        low, high = each.intervals["accuracy"] or (1.0, 0.0)
        assert low < (each.metrics["accuracy"] or 0.0) < high <= 1
    assert evaluation(theta).accuracy == pytest.approx(right.mean())


def stays(option: str, path: Path) -> Any:
    from conf.load import load

    return task_of(
        load([f"dataset={option}", f"dataset.path={path}", "privacy=record_level", "method=dp_sum"])
    )


def test_stays_in_intensive_care_are_of_regions_persons_or_hospitals(tmp_path):
    path = write_stays(tmp_path / "patient.csv")
    by_person, by_stay, by_hospital = (stays(name, path) for name in ("eicu", "eicu-stays", "eicu-hospitals"))
    assert (by_person.by_person, by_stay.by_person) == (True, False)
    assert parties_of_person(by_person.source) == 2
    assert by_person.client_names == by_stay.client_names == REGIONS
    assert (len(by_hospital.client_names), by_hospital.client_names[0]) == (174, "56")
    data = by_stay.load()
    whole = [*data.train.x.tolist(), *data.test.x.tolist()]
    assert data.columns.inputs == list(HEADINGS[2:5]) + list(HEADINGS[7:9]) + ["gender"]
    assert {round(row[3], 3) for row in whole} >= {round(2 * 40 / 200 - 1, 3)}
    assert not any(each.startswith("predicted") for each in data.columns.names())


def test_a_declaration_that_does_not_come_with_the_project_is_refused(tmp_path):
    path = write_stays(tmp_path / "patient.csv", hospitals=8)
    with pytest.raises(
        LearningError,
        match="the declaration published:icu is not known; did you mean published:eicu. Use published:eicu,",
    ):
        loaded("csv", str(path), columns="published:icu")


@pytest.mark.skipif(not EICU.is_file(), reason=f"{EICU} is not there")
def test_the_demo_of_eicu_has_as_many_stays_and_deaths_as_its_page_says():
    data = stays("eicu", EICU).load()
    rows = data.train.y[data.train.y >= 0].tolist() + data.test.y.tolist()
    assert np.bincount(rows).tolist() == [1572, 141]
    data = stays("eicu-hospitals", EICU).load()
    assert np.bincount([*data.train.y, *data.test.y]).tolist() == [1683, 155]
