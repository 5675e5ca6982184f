"""The SuperLink waits for its turn to write as long as whoever asks waits for an answer."""

import sys

import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from deploy import superlink
from deploy.superlink import WAIT_MILLISECONDS, main


@pytest.fixture
def started(monkeypatch):
    """What Flower's SuperLink is started with; it ends at once."""
    words = []
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)
    monkeypatch.setattr(sys, "argv", ["deploy/superlink.py"])
    monkeypatch.setattr(superlink, "flower_superlink", lambda: words.extend(sys.argv))
    return words


@pytest.mark.filterwarnings("ignore:No path_separator found in configuration:DeprecationWarning")
def test_its_database_waits(started, tmp_path):
    def settings():
        state = SqlLinkState(
            str(tmp_path / "superlink.db"), NoOpFederationManager(), ObjectStoreFactory().store()
        )
        state.initialize()
        names = ("busy_timeout", "journal_mode", "foreign_keys")
        return [value for name in names for value in state.query(f"PRAGMA {name}")[0].values()]

    assert settings() == [5000, "wal", 1]
    assert main(["--isolation", "process"]) == 0
    assert started == ["flower-superlink", "--isolation", "process"]
    assert settings() == [WAIT_MILLISECONDS, "wal", 1]


def test_a_flower_without_the_setting_is_not_started(started, monkeypatch, capsys):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", (("journal_mode", "WAL"),))
    assert main([]) == 2
    assert "has no SQLITE_PRAGMAS with busy_timeout: install the Flower" in capsys.readouterr().err
    assert started == []
