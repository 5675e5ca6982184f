"""Measures the accuracy of a text model fine-tuned with privacy: low-rank adapters against all parameters.

python -m benchmarks.adapters dataset.path=data/tinyshakespeare.txt [--seeds 10]
"""

import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.harness import CONSOLE, PROJECT, over_seeds, publish, read_options
from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.learning.data.text import VOCABULARY_SIZE, encode
from gdpfed.learning.models import flatten
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.report.console import Table
from gdpfed.report.metric_display import Spread
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.in_process_fleet import simulate_prepared

LENGTH = 24
SIZES = "layers:2,heads:2,width:32"
COMMON = ("dataset.model=transformer", "dataset.loss=next_token", "secagg=off", "dataset.momentum=0")
PUBLIC = (
    *("dataset=npz", f"dataset.vocabulary={VOCABULARY_SIZE}", "dataset.num_clients=3"),
    *("method=fedavg", "privacy.sampling_rate=1", "privacy.budgets=[1]"),
    f"dataset.model_options={{{SIZES},trained:all}}",
    *("training.optimizer=adam", "dataset.learning_rate=0.003", "dataset.learning_rate_decay=0.9"),
    *("dataset.batch_size=64", "dataset.local_steps=25", "run.num_rounds=25"),
)
PRIVATE = (
    *("dataset=shakespeare", "dataset.num_clients=247", f"dataset.sequence_length={LENGTH}"),
    *(f"dataset.train_stride={LENGTH + 1}", "dataset.test_stride=120", "dataset.batch_size=8"),
    *("dataset.local_steps=5", "run.num_rounds=20", "privacy.sampling_rate=0.5", "privacy.against=everyone"),
    *("training.optimizer=adam", "dataset.clipping_norm=1"),
)
ADAPTERS, ALL = (f"dataset.model_options={{{SIZES},{told}}}" for told in ("rank:4", "trained:all"))
CELLS = (
    ("adapters", "[2,6,12]", (ADAPTERS, "dataset.learning_rate=0.01")),
    ("all parameters", "[2,6,12]", (ALL, "dataset.learning_rate=0.003")),
    ("adapters", "none", (ADAPTERS, "dataset.learning_rate=0.01", "method=fedavg")),
    ("all parameters", "none", (ALL, "dataset.learning_rate=0.003", "method=fedavg")),
)


def trained(overrides: Sequence[str], directory: Path) -> float:
    """Train a model once with these settings; return its accuracy after the last round, in percent."""
    records: list[RoundLogEntry] = []
    run = PreparedRun.of(load([*COMMON, *overrides, f"run.directory={directory}"]))
    simulate_prepared(run, observe=records.append, make_observers=lambda prepared, announce: [])
    return 100 * (records[-1].accuracy or 0.0)


def public_model(folder: Path) -> tuple[str, ...]:
    """Train a text model on the pages of docs/, without privacy; return settings that load its weights."""
    texts = [path.read_text("utf-8") for path in sorted((PROJECT / "docs").glob("*.md"))]
    codes = encode("\n".join(texts))
    windows = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    np.savez(folder / "public.npz", x_train=windows, x_test=windows[::40])
    run = folder / "public"
    reached = trained([*PUBLIC, f"dataset.path={folder / 'public.npz'}"], run)
    CONSOLE.print(f"{len(codes):,} public characters, of which {reached:.1f} % are said rightly")
    file = run / MODEL_FILE
    return f"dataset.weights={file}", f"dataset.weights_sha256={sha256(file.read_bytes()).hexdigest()}"


def untrained(overrides: Sequence[str]) -> float:
    """Return the accuracy of a model before training, in percent."""
    task = task_of(load([*COMMON, *overrides]))
    return 100 * (central_evaluation(task, "cpu")(flatten(task.build_model())).accuracy or 0.0)


def main() -> None:
    """Train a public model once, fine-tune adapters or all parameters per budget, and show the accuracies."""
    options = read_options(__doc__, overrides=True, seeds=10)
    with tempfile.TemporaryDirectory() as place:
        common = [*PRIVATE, *public_model(Path(place)), *options.overrides]
        rows = [("nothing", "0", "", f"{untrained([*common, ADAPTERS]):.1f}")]
        for number, (what, budgets, words) in enumerate(track(CELLS, "models", console=CONSOLE)):
            told = [*common, *words] + ([] if budgets == "none" else [f"privacy.budgets={budgets}"])
            found = [
                trained([*told, f"run.seed={seed}"], Path(place) / f"{number}-{seed}")
                for seed in range(options.seeds)
            ]
            dimension = task_of(load([*COMMON, *told])).dimension
            rows.append((what, f"{dimension:,}", budgets, Spread.of(found).with_interval()))
            CONSOLE.print(rows[-1])
    title = f"A model of public text on the roles of tiny Shakespeare, {over_seeds(options.seeds)}"
    headings = ("trained", "parameters d", "budgets", "next characters said rightly (%)")
    publish([Table(title, headings, rows)], options.write)


if __name__ == "__main__":
    main()
