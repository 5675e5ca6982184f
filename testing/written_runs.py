"""Writes run directories with known metrics and epsilons, as a training would leave them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from conf.load import load, to_yaml
from conf.schema import Config
from gdpfed.files import save_whole
from gdpfed.methods import make_method
from gdpfed.methods.base import Method
from gdpfed.report.comparison import computed_settings
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.file_formats import (
    ASSIGNMENT_FILE,
    CHECKPOINT_FILE,
    CONFIG_FILE,
    DESCRIPTION_FILE,
    LEDGER_FILE,
    MANIFEST_FILE,
    MODEL_CARD_FILE,
    MODEL_FILE,
    PLAN_FILE,
    ROUNDS_FILE,
    versioned,
)
from gdpfed.runs.round_log import RoundLogEntry

DIMENSION = 12
_METHODS: dict[str, Method] = {}


def write_run(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    accuracies: Sequence[float | None] = (0.25, 0.5),
    seconds: float = 2.0,
) -> Path:
    """Write a finished run with one round for each accuracy."""
    config = load([*overrides, f"run.num_rounds={len(accuracies)}", f"run.directory={directory}"])
    begin_run(config)
    for accuracy in accuracies:
        append_record(config, accuracy, seconds=seconds)
    return finish_run(config)


def begin_run(config: Config) -> None:
    """Write the configuration and plan of a run that has no round yet."""
    directory = Path(config.run.directory or "")
    directory.mkdir(parents=True, exist_ok=True)
    method = _method(config)
    save_whole(directory / CONFIG_FILE, to_yaml(config).encode())
    save_whole(directory / PLAN_FILE, json.dumps(versioned(method.describe())).encode())
    save_whole(directory / ROUNDS_FILE, b"")
    save_whole(directory / CHECKPOINT_FILE, b"")


def append_record(
    config: Config,
    accuracy: float | None,
    *,
    seconds: float = 2.0,
    observe: Callable[[RoundLogEntry], None] | None = None,
) -> None:
    """Add a round to a run's log: the spent epsilon of group m grows by (m + 1) / 4."""
    path = Path(config.run.resume or config.run.directory or "") / "rounds.jsonl"
    number = len(path.read_text(encoding="utf-8").splitlines()) + 1
    plan = _method(config).plan
    groups = len(plan.groups)
    spent: list[float | None] = [(index + 1) * number / 4 for index in range(groups)]
    record = RoundLogEntry(
        round=number,
        accuracy=accuracy,
        loss=1.0,
        cohort_sizes=[5] * groups,
        survivors=[5] * groups,
        failures={},
        spent_epsilon=spent if plan.private else [None] * groups,
        epsilon_against_server=spent if plan.private else [None] * groups,
        upload_bytes=[2.0] * groups,
        seconds={"total": seconds},
    )
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{record.to_json()}\n")
    if observe is not None:
        observe(record)


def finish_run(config: Config) -> Path:
    """Write the final model, of which the weights mark the run as finished, and a seal (file of hashes)."""
    directory = Path(config.run.resume or config.run.directory or "")
    tensors = {"weight": np.zeros((DIMENSION - 2, 1), np.float32), "bias": np.zeros(2, np.float32)}
    (directory / MODEL_FILE).parent.mkdir(exist_ok=True)
    (directory / ASSIGNMENT_FILE).write_text(json.dumps(versioned({"clients": []})), encoding="utf-8")
    for name in (LEDGER_FILE, DESCRIPTION_FILE, MODEL_CARD_FILE):
        (directory / name).write_text(json.dumps(versioned({})), encoding="utf-8")
    files = {DESCRIPTION_FILE: (directory / DESCRIPTION_FILE).read_bytes(), MODEL_FILE: save(tensors)}
    hashes = {Path(name).name: sha256(data).hexdigest() for name, data in files.items()}
    (directory / MANIFEST_FILE).write_text(json.dumps({"sha256": hashes}), encoding="utf-8")
    save_whole(directory / MODEL_FILE, files[MODEL_FILE])
    (directory / CHECKPOINT_FILE).unlink(missing_ok=True)
    RunDirectory(directory).seal()
    return directory


def _method(config: Config) -> Method:
    """Return the configured method with its plan, made once for all seeds and directories."""
    settings = computed_settings(asdict(config))
    key = json.dumps(settings, sort_keys=True)
    if key not in _METHODS:
        _METHODS[key] = make_method(config)
    return _METHODS[key]
