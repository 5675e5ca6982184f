"""Folders of this checkout, and the shared folder that may lie beside it."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
SHARED_DATA = PROJECT.parent / "shared" / "data"
