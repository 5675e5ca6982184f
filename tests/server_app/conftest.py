"""A fixture for these tests: the server waits only 0.1 seconds for further nodes to join a run."""

import pytest


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.1)
