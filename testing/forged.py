"""Edits a run's files as a forger would: changes values, and recomputes all hashes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdpfed.audit.run_files import RunFiles
from gdpfed.runs.file_formats import DESCRIPTION_FILE, LEDGER_FILE, MANIFEST_FILE, MODEL_FILE, SEAL_FILE


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON or JSON lines file in place."""
    text = path.read_text()
    lines = path.suffix == ".jsonl"
    data = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    change(data)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in data) if lines else json.dumps(data))


def renew(directory: Path) -> None:
    """Recompute the hashes of a run after an edit: of plan, model and seal (file of hashes)."""
    fingerprint = RunFiles.read(directory).fingerprint()
    edit_json(directory / LEDGER_FILE, lambda ledger: ledger.update(plan=fingerprint))
    model = {Path(name).name: _sha256(directory / name) for name in (DESCRIPTION_FILE, MODEL_FILE)}
    edit_json(directory / MANIFEST_FILE, lambda manifest: manifest.update(sha256=model))
    reseal(directory)


def reseal(directory: Path) -> None:
    """Recompute the hashes of all files that a run's seal (file of hashes) names."""
    edit_json(
        directory / SEAL_FILE,
        lambda seal: seal.update(sha256={name: _sha256(directory / name) for name in seal["sha256"]}),
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
