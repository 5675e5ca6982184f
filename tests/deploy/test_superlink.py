"""Tests of the SuperLink's start: it waits for a locked database, and works with any path to Flower."""

import shutil
import sys

import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.state.alembic import utils
from flwr.superlink.federation import NoOpFederationManager

from deploy import superlink
from deploy.superlink import WAIT_MILLISECONDS, find_tables_under_any_path, main


@pytest.fixture
def started(monkeypatch):
    """Replace Flower's SuperLink by a function that records its command line; return the recorded words."""
    words = []
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)
    monkeypatch.setattr(utils, "build_alembic_config", utils.build_alembic_config)
    monkeypatch.setattr(sys, "argv", ["deploy/superlink.py"])
    monkeypatch.setattr(superlink, "flower_superlink", lambda: words.extend(sys.argv))
    return words


def opened(database):
    state = SqlLinkState(str(database), NoOpFederationManager(), ObjectStoreFactory().store())
    state.initialize()
    return state


def test_its_database_waits(started, tmp_path):
    def settings():
        state = opened(tmp_path / "superlink.db")
        names = ("busy_timeout", "journal_mode", "foreign_keys")
        return [value for name in names for value in state.query(f"PRAGMA {name}")[0].values()]

    find_tables_under_any_path()
    assert settings() == [5000, "wal", 1]
    assert main(["--isolation", "process"]) == 0
    assert started == ["flower-superlink", "--isolation", "process"]
    assert settings() == [WAIT_MILLISECONDS, "wal", 1]


def test_its_tables_are_made_under_any_path(started, tmp_path, monkeypatch):
    """The SuperLink creates its database tables even if the path to Flower's files has spaces and commas."""
    folder = tmp_path / "a study, für alle" / "alembic"
    shutil.copytree(utils.ALEMBIC_DIR, folder)
    monkeypatch.setattr(utils, "ALEMBIC_DIR", folder)
    assert main([]) == 0
    tables = opened(tmp_path / "superlink.db").query("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {"run", "node", "fab"} <= {table["name"] for table in tables}


def test_a_flower_without_the_setting_is_not_started(started, monkeypatch, capsys):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", (("journal_mode", "WAL"),))
    assert main([]) == 2
    assert "has no SQLITE_PRAGMAS with busy_timeout: install the Flower" in capsys.readouterr().err
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)
    monkeypatch.delattr(utils, "build_alembic_config")
    assert main([]) == 2
    assert "has no build_alembic_config: install the Flower of uv.lock" in capsys.readouterr().err
    assert started == []
