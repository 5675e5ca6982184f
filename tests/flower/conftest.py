"""Nodes of these tests are there at once, or never."""

import pytest


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("gdpfed.federation.server.join.SETTLE_SECONDS", 0.1)
