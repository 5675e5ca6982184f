"""Writes settings and objects of a run as a shell command, and data into files if a folder is given."""

import re
import shlex
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from conf.load import hydra_string
from gdpfed.errors import ConfigError, not_known
from gdpfed.files import save_output
from gdpfed.python_objects.objects import DATASET, Given, given
from gdpfed.registry import OF_PYTHON

SIMPLE = re.compile(r"[\w./-]+")
"""Matches paths that Hydra's grammar accepts without quotes."""
VERBS = ("plan", "simulate", "run")
DATA_FILE, OWNERS_FILE, TABLE_FILE, COLUMNS_FILE = "data.npz", "owners.txt", "table.parquet", "columns.yaml"


def shell_command(verb: str, settings: Sequence[str], objects: Mapping[str, Any], folder: Path | None) -> str:
    """Return a run's shell command, and ``#`` lines for Python objects that no command can express.

    Raises ConfigError, LearningError: what cannot be, or a folder that cannot be written into.
    """
    if verb not in VERBS:
        raise ConfigError(not_known(f"verb={verb}", VERBS))
    asked = given(settings, objects)
    words, notes = list(asked.words), list[str]()
    if asked.data is not None:
        words, notes = _with_files(asked, objects, folder)
    said = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "dataset.model_options" and value.startswith("{start:"):
            continue
        if OF_PYTHON in value and key in {"run.extensions", "dataset.metrics", *asked.chosen.of_clients}:
            notes.append(
                f"# {word} is an object of this program: a package names it for a shell (docs/extending.md)"
            )
            continue
        said.append(word)
    return "\n".join([*notes, " \\\n    ".join([f"gdpfed {verb}", *map(shlex.quote, said)])])


def _with_files(asked: Given, objects: Mapping[str, Any], folder: Path | None) -> tuple[list[str], list[str]]:
    """Return settings that name data files, and notes as ``#`` lines; write the files into `folder`."""
    data, place = asked.data, Path() if folder is None else folder
    if data is None:
        return asked.words, []
    words = [word for word in asked.words if word != f"dataset={DATASET}"]
    notes = [] if folder is not None else ["# with files=FOLDER this call writes the files that it names"]
    if data.columns is not None and "columns" in objects:
        if folder is not None:
            from pyarrow import parquet

            from gdpfed.learning.data.cells import arrow_table
            from gdpfed.learning.data.declaration import to_yaml

            _folder(folder)
            written = BytesIO()
            parquet.write_table(arrow_table(objects["data"], "data"), written)
            save_output(folder / TABLE_FILE, written.getvalue())
            save_output(folder / COLUMNS_FILE, to_yaml(data.columns).encode())
        return ["dataset=csv", f"dataset.path={place / TABLE_FILE}", *words], notes
    arrays = dict[str, Any]()
    for name, part in (("train", data.train), ("test", data.test)):
        if not (hasattr(part, "x") and isinstance(part.x, np.ndarray)):
            raise ConfigError(
                f"data holds a {type(part).__name__}, which is in no .npz file: a package brings such data "
                "(docs/extending.md)"
            )
        arrays |= {f"x_{name}": part.x, f"y_{name}": part.y}
    words = ["dataset=npz", f"dataset.path={place / DATA_FILE}", *words]
    if data.owners is not None and "dataset.partition=natural" in words:
        # In the order of the clients: names of files are texts, of which 10 comes before 2.
        digits = len(str(int(data.owners.max())))
        lines = "".join(f"{owner:0{digits}}\n" for owner in data.owners.tolist())
        at = words.index("dataset.partition=natural")
        path = str(place / OWNERS_FILE)
        plain = path if SIMPLE.fullmatch(path) else hydra_string(path)
        options = f"dataset.partition_options={{path: {plain}}}"
        words[at : at + 1] = ["dataset.partition=owners", options]
        if folder is not None:
            _folder(folder)
            save_output(folder / OWNERS_FILE, lines.encode())
    if folder is not None:
        _folder(folder)
        written = BytesIO()
        np.savez(written, **arrays)
        save_output(folder / DATA_FILE, written.getvalue())
    return words, notes


def _folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"files={folder} cannot be made: {error.strerror}; name another folder") from None
