"""A finished model, fitted to one party's own rows."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save as save_tensors

from gdpfed.errors import LearningError
from gdpfed.files import save_whole
from gdpfed.learning.data import Split
from gdpfed.learning.data.table_rows import read_table, rows_of
from gdpfed.learning.model_folder import DESCRIPTION_FILE, FOLDER, WEIGHTS_FILE, read_model
from gdpfed.learning.models import names_of
from gdpfed.learning.training.near_fit import fit_near
from gdpfed.learning.training.record_losses import make_loss


def adapt(model_path: Path, table: Path, output: Path, patterns: Sequence[str], pull: float) -> int:
    """Write the model that minimises cross-entropy of own rows + pull / 2 times the squared way from it.

    Rows that the declaration says are for testing are left out. Returns how many rows were fitted to.

    Raises:
        LearningError: no model of tables with classes, rows that do not fit it, a pattern that no parameter
            matches, or an output that exists.
    """
    _, columns, model = read_model(model_path)
    if columns is None or len(columns.classes) < 2:
        raise LearningError(
            f"{model_path} takes no table with classes: only such a model is fitted to own rows"
        )
    if output.exists():
        raise LearningError(f"--output={output} exists: name a folder that does not")
    place = str(table)
    read = read_table(table, columns, place, columns.names(for_training=True))
    rows = rows_of(read, columns, place, shared_out=False)
    kept = slice(None) if rows.for_testing is None else ~rows.for_testing
    data = Split(rows.x[kept], rows.y[kept])
    fit_near(model, data, make_loss("cross_entropy"), names=names_of(model, patterns), pull=pull)
    folder = model_path / FOLDER if (model_path / FOLDER / DESCRIPTION_FILE).is_file() else model_path
    shutil.copytree(folder, output)
    save_whole(output / WEIGHTS_FILE, save_tensors(model.state_dict()))
    return len(data)
