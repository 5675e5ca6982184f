"""Nodes of these tests are there at once, or never."""

import pytest


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("server_app.join.SETTLE_SECONDS", 0.1)
