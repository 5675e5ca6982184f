"""Tests of run directories without a given name: each run has its own, even within one second."""

import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load
from gdpfed.errors import RunError
from gdpfed.runs import paths
from gdpfed.runs.paths import as_of_run, require_unused, reserved, run_path


class Noon(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, 12, tzinfo=UTC)


def test_runs_that_begin_in_one_second_have_a_directory_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "datetime", Noon)
    asked = [run_path(None, "digits", "fedavg") for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(reserved, asked))
    first = tmp_path / "runs" / "20260101-120000-digits-fedavg"
    assert sorted(made) == sorted([first, *(first.with_name(f"{first.name}-{k}") for k in range(2, 9))])
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert run_path(None, "digits", "fedavg").name == f"{first.name}-9"


def test_one_that_stays_empty_is_removed(tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr("atexit.register", lambda *call: ends.append(call))
    empty, used = reserved(tmp_path / "run"), reserved(tmp_path / "run")
    (used / "config.yaml").write_text("")
    for function, *arguments in ends:
        function(*arguments)
    assert (empty.exists(), used.exists()) == (False, True)


def test_a_place_where_none_can_be_made_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"run.directory=.*/runs/a cannot be made: "):
        reserved(tmp_path / "runs" / "a")


def test_a_disk_that_takes_no_file_is_named_with_the_systems_reason(tmp_path, monkeypatch):
    def refused(dir):
        raise OSError(errno.EROFS, "Read-only file system", dir)

    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    words = r"is not yours to write in \(Read-only file system\): name another directory$"
    with pytest.raises(RunError, match=words):
        require_unused(tmp_path / "run")


def test_a_draft_alone_does_not_make_a_directory_used(tmp_path):
    (tmp_path / ".config.yaml.tmp").write_text("dataset:")
    require_unused(tmp_path)
    (tmp_path / "notes").write_text("")
    with pytest.raises(RunError, match="is not empty: name another one, or continue with run.resume"):
        require_unused(tmp_path)


def test_relative_paths_of_a_run_begin_where_it_began(tmp_path, monkeypatch):
    """Relative paths of a run start from where the run began, wherever a later command is called."""
    run, tables = tmp_path / "work" / "runs" / "heart", tmp_path / "work" / "tables"
    run.mkdir(parents=True)
    tables.mkdir()
    (tmp_path / "elsewhere" / "tables").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["dataset.path=tables", "dataset.columns=/columns.yaml", "dataset.num_clients=2"]
    config = load(["dataset=csv", *words])
    found = as_of_run(config, run).dataset
    assert (found.path, found.columns, found.test_path) == (str(tables), "/columns.yaml", None)
    tables.rmdir()
    assert as_of_run(config, run).dataset.path == "tables"
