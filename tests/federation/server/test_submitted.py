"""Tests of what a run's submitter may set: no references to variables, only files in allowed folders."""

import os

import pytest

from conf.load import load
from gdpfed.errors import ConfigError
from gdpfed.runs.paths import FOLDERS, check_paths


@pytest.mark.parametrize(
    "override",
    [
        "run.directory=${oc.env:SECRET_TOKEN}",
        "run.directory='${oc.env:SECRET_TOKEN}'",
        "dataset.path='${oc.decode:${oc.env:SECRET_TOKEN}}'",
        "run.mlflow='${oc.env:SECRET_TOKEN}'",
        "privacy.budgets='${oc.env:SECRET_TOKEN}'",
        "dataset.model_options={a: '${oc.env:SECRET_TOKEN}'}",
        "privacy.clipping_norm=${dataset.clipping_norm}",
    ],
)
def test_a_value_refers_to_nothing(monkeypatch, override):
    """A submitted override that refers to another value or to an environment variable is refused."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="refers to another value: write what it stands for") as error:
        load([override])
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("run.directory={runs}/one", True),
        ("run.directory={runs}", True),
        ("run.directory={runs}/../data", False),
        ("run.directory=/etc/one", False),
        ("run.directory={runs}/link/one", False),
        ("run.resume={root}/other", False),
        ("run.resume='{runs}/one'", True),
        ("dataset.path=/etc/passwd", False),
        ("dataset.columns={root}/columns.yaml", False),
        ("dataset.test_path=~/x.npz", False),
        ("run.mailbox={root}", False),
        ("run.mlflow=file:///etc", False),
        ("run.mlflow=https://mlflow.example.org", True),
        ("secagg.roster_file={root}/roster.json", True),
        ("secagg.consortium_key={root}/roster.json.key", False),
        ("dataset.partition_options={{path: '{root}/owners.txt'}}", False),
        ("dataset.partition_options={{path: '{runs}/owners.txt'}}", True),
        ("dataset.partition_options={{classes: 2}}", True),
        ("method=gdpfed", True),
    ],
)
def test_files_lie_below_what_the_operator_gives(tmp_path, monkeypatch, override, allowed):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "link").symlink_to(tmp_path)
    monkeypatch.setenv(FOLDERS, os.pathsep.join([str(runs), str(tmp_path / "roster.json")]))
    words = [override.format(runs=runs, root=tmp_path)]
    if allowed:
        check_paths(words)
    else:
        with pytest.raises(ConfigError, match=r"lies outside of .*GDPFED_FOLDERS.*choose a place below"):
            check_paths(words)
    monkeypatch.delenv(FOLDERS)
    check_paths(words)
