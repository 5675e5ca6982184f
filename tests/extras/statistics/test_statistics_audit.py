"""Tests of the audit of statistics: it recomputes them by its own code, and finds edited values."""

import json
import shutil

import pytest

from gdpfed.audit.run_audit import audit_run
from tests.extras.statistics.counted_tables import audited_run, settings, write_table


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table"))


EDITS = {
    "a count": lambda found: found["columns"][0]["counts"].__setitem__(3, 77.0),
    "a mean": lambda found: found["columns"][0]["figures"]["mean"].update(value=12.0),
    "an end": lambda found: found["columns"][0]["figures"]["q0.5"].update(high=79.0),
    "the noise": lambda found: found.update(noise_stddev=0.1),
    "epsilon": lambda found: found.update(epsilon=0.5),
    "how far one moves": lambda found: found.update(moves=1.0),
    "the clients": lambda found: found.update(clients=3),
    "a hidden cell": lambda found: found["columns"][1]["counts"].__setitem__(0, None),
    "a column": lambda found: found["columns"].pop(),
}


@pytest.fixture(scope="module")
def audited(table, tmp_path_factory):
    directory = tmp_path_factory.mktemp("audited") / "run"
    return audited_run(directory, settings(table, "privacy.budgets=[3]"))


def test_the_audit_computes_the_same_statistics(audited):
    assert audit_run(audited).findings == ()


NUMBERS = """\
label: {column: age, range: [-50, 150]}
categorical: {ward: {values: [x, y, z], other: z}}
test: {column: part, values: [test]}
missing_labels: drop
"""
SETS = """\
label: {columns: {ill: ['no', 'yes'], part: [train, test]}}
numeric: {age: [-50, 150]}
"""


@pytest.mark.parametrize(
    ("declared", "unit", "model", "more"),
    [
        (None, "record", "statistics_crossed", ["method.by=ward", "method.crossed=[[ill,ward],[age,ill]]"]),
        (NUMBERS, "record", "statistics_by_group", ["method.by=ward", "method.spacing=decades"]),
        (SETS, "record", "statistics", ["method.spacing=decades", "secagg=off"]),
        (None, "record", "statistics_by_party", ["method.by_party=true", "method.columns=[age,ill]"]),
        (None, "client", "statistics", ["method.minimum_count=0", "method.columns=[ill,ward]"]),
    ],
    ids=["crossed", "a number as label", "a set of labels", "by party", "clients"],
)
def test_the_audit_computes_any_statistics(table, tmp_path, declared, unit, model, more):
    words = settings(table, "privacy.budgets=[3]", *more, unit=unit, model=model)
    if declared is not None:
        (tmp_path / "columns.yaml").write_text(declared)
        words += [f"dataset.columns={tmp_path / 'columns.yaml'}", "dataset.partition=iid"]
    directory = audited_run(tmp_path / "run", words)
    assert audit_run(directory).findings == ()
    (directory / "statistics.json").unlink()
    assert "the run has a sum, and statistics.json is missing" in audit_run(directory).findings


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_the_audit_finds_an_edited_statistic(audited, tmp_path, edit):
    copy = tmp_path / "run"
    shutil.copytree(audited, copy)
    path = copy / "statistics.json"
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))
    findings = audit_run(copy).findings
    assert any(each.startswith("statistics.json") and "hash" not in each for each in findings)
