"""Uses a finished model: reads its folder, and predicts for tables, data frames and arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.errors import LearningError
from gdpfed.learning.data.arrays import as_numbers
from gdpfed.learning.data.cells import Table, arrow_table, table_of
from gdpfed.learning.data.columns import DROP, Columns
from gdpfed.learning.data.dataset import scaled
from gdpfed.learning.data.faults import Fault, Where, shortened, uneven_words
from gdpfed.learning.data.features import transform_of
from gdpfed.learning.data.table_file import TableFile, listed
from gdpfed.learning.data.table_rows import inputs_of, num_rows, open_declared
from gdpfed.learning.data.text_cells import Texts, texts_of
from gdpfed.learning.labels.kind import LabelKind, Names
from gdpfed.learning.model_folder import ModelDescription, read_model
from gdpfed.learning.models import said
from gdpfed.learning.unfamiliar import Unfamiliar

CHUNK = 4096
INCOMPLETE = (
    "and the model learnt of complete rows alone (incomplete_rows: drop): fill it in, or take the row out"
)
LAST_PIXEL = 255
MOST_LINES, MOST_SKIPPED = 5, 20
"""Of rows that are not as declared, that are named in one line, and that have a line each."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts for N records.

    Attributes:
        labels: names of classes, or numbers in the unit of the label, shape (N,); of sets 1 where a record
            has a label and else 0, shape (N, labels); of pictures the class at every place, by its number; of
            times to an event the median time, shape (N,), NaN where that lies beyond the horizon.
        probabilities: of every class or label, shape (N, classes, ...), float32; of times to an event the
            survival at the ends of the intervals, shape (N, intervals); None of numbers.
        classes: what classes or labels are called, or the ends of the intervals, in this order.
        notes: what of the records was not read, or is not as the model knows it, one line each.
        shown_as: what labels and probabilities are called in a table.
    """

    labels: Names | npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float32] | None
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    shown_as: tuple[str, str] = LabelKind.shown_as

    def to_table(self) -> dict[str, list[object]]:
        """Return the predictions as columns of a table, with the probability of every class or label.

        A number that is not known is None.
        """
        table: dict[str, list[object]] = {}
        label, probability = self.shown_as
        if self.labels.ndim == 1:
            table[label] = [None if each != each else each for each in self.labels.tolist()]
        else:
            columns = self.labels.T.tolist()
            table |= {f"{label}_{name}": each for name, each in zip(self.classes, columns, strict=True)}
        if self.probabilities is not None:
            columns = self.probabilities.T.tolist()
            table |= {f"{probability}_{name}": each for name, each in zip(self.classes, columns, strict=True)}
        return table


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A finished run's model that is ready to predict.

    `description`: what it takes and says. `columns`: how a table is read; None where it takes none. `module`:
    from inputs as training took them to scores.
    """

    description: ModelDescription
    columns: Columns | None
    module: nn.Module

    def predict(self, data: Any) -> Predictions:
        """Predict for records; their labels need not be known.

        `data`: of a model of tables a data frame, arrays by column, or one array of shape (N, columns) in the
        declared order, in the units of the declaration; columns that are not declared are not read, and
        ``notes`` of the predictions name them. Of a model of pictures their bytes, whole numbers from 0 to
        255 of shape (N, channels, height, width), which are scaled as in training. Of any other model an
        array of shape (N, ...), scaled as for training.

        Raises LearningError: columns or values that do not fit, named.
        """
        if self.columns is None:
            return self.of_inputs(self._array(data))
        import pyarrow as pa

        names = self.columns.inputs
        cells: dict[str, Any] = {}
        if not isinstance(data, np.ndarray):
            table = arrow_table(data, "the data")
            for name in table.column_names:
                cells[name] = pa.concat_arrays(table.column(name).chunks or [pa.nulls(0)])
            # The cells are a copy.
            del table
        elif data.ndim != 2 or data.shape[1] != len(names):
            raise LearningError(
                f"the data have shape {data.shape}, and the model takes the columns {_listed(names)}: "
                "give one column for each"
            )
        else:
            for place, name in enumerate(names):
                values = data[:, place]
                if values.dtype.kind in "OSU":
                    # Values of several types become texts.
                    texts = [None if value is None else str(value) for value in values.tolist()]
                    cells[name] = pa.array(texts, pa.string())
                else:
                    cells[name] = pa.array(np.ascontiguousarray(values))

        _check_columns([*cells], self.columns, "the data")
        notes = _not_read([*cells], self.columns, ())
        cells = {name: cells[name] for name in self.columns.inputs}
        found = self.of_table(table_of(cells, self.columns, "the data"), "the data")
        return replace(found, notes=(*notes, *found.notes))

    def predict_file(
        self,
        path: Path,
        keep: Sequence[str] = (),
        *,
        say: Callable[[str], None] | None = None,
        skip: bool = False,
    ) -> tuple[dict[str, Texts], Predictions]:
        """Predict for the rows of a table file; return the columns named in `keep`, and the predictions.

        `say`: told of columns that are not read, of values that the model does not know, and of rows that are
        left out, one line each. `skip`: whether rows that are not as declared are left out, if there are
        others; else the file is refused for them, with their lines.

        Raises LearningError: as in `predict`, or a model that takes no tables, or a file that cannot be read.
        """
        columns, file = self._opened(path, keep)
        notes = _not_read(file.names, columns, keep)
        kept: dict[str, list[Texts]] = {name: [] for name in keep}
        inputs, unfamiliar, faults = [], Unfamiliar(columns), dict[int, str]()

        def fault(found: Fault) -> None:
            faults.setdefault(found.row, found.of_value)

        def uneven(line: int, values: int) -> None:
            faults[line] = uneven_words(values, len(file.names))

        for batch in file.batches([*dict.fromkeys([*columns.inputs, *keep])], uneven):
            cells = {name: batch.cells[name] for name in columns.inputs}
            table = table_of(cells, columns, str(path), own=file.own, found=file.found)
            # Faults of a batch are named by their lines, and not by the numbers of rows.
            made = self._inputs(table, Where(str(path), batch.lines, fault))
            fits = np.flatnonzero(~np.isin(batch.lines, [*faults]))
            unfamiliar.note({name: each.taken(fits) for name, each in table.items()})
            inputs.append(made[fits])
            # Numbers of patients stay as they are written, for whoever looks them up.
            for name in keep:
                texts = texts_of(batch.cells[name], name, str(path), exact=False).texts
                kept[name].append(texts[fits])
        fitting = sum(map(len, inputs))
        if faults and not (skip and fitting):
            first, *others = sorted(faults)
            if len(others) == 1:
                more = f"; so is 1 more row, in line {others[0]}"
            else:
                shown = listed([*map(str, others)], MOST_LINES)
                more = f"; so are {len(others)} more rows, in lines {shown}" if others else ""
            hint = " (--skip predicts the others)" if fitting else ": no row is left to predict"
            raise LearningError(f"{path}: line {first}: {faults[first]}{more}{hint}")
        left_out = [f"line {line} is left out: {faults[line]}" for line in sorted(faults)[:MOST_SKIPPED]]
        unnamed = len(faults) - len(left_out)
        notes += [*unfamiliar.words(), *left_out, *[f"{unnamed} more rows are left out"] * bool(unnamed)]
        if say is not None:
            for note in notes:
                say(f"{path}: {note}")
        nothing = np.zeros((0, columns.num_inputs), dtype=np.float32)
        found = replace(self.of_inputs(np.concatenate([nothing, *inputs])), notes=tuple(notes))
        return {name: np.concatenate([np.zeros(0, object), *parts]) for name, parts in kept.items()}, found

    def _opened(self, path: Path, keep: Sequence[str]) -> tuple[Columns, TableFile]:
        """Open a table after checking that it has the columns that the model needs."""
        if self.columns is None:
            shape = _listed(self.description.form.own_shape)
            raise LearningError(
                f"the model takes no tables but arrays of shape (N, {shape}): use "
                "gdpfed.load_model(path).predict(array)"
            )
        file = open_declared(path, self.columns, str(path))
        absent = [name for name in keep if name not in file.names]
        if absent:
            parts = absent[0].split(",")
            remedy = f"it has {_listed(file.names)}"
            if {*parts} <= {*file.names}:
                remedy = f"name each by itself, as in --keep {' --keep '.join(parts)}"
            raise LearningError(f"{path} has no column '{absent[0]}' to keep; {remedy}")
        _check_columns(file.names, self.columns, str(path))
        return self.columns, file

    def of_table(self, table: Table, place: str) -> Predictions:
        """Predict for every row of a table whose cells were converted to numbers and texts.

        `place`: what errors call it.

        Raises LearningError: columns or values that do not fit, named.
        """
        if self.columns is None:
            raise LearningError(f"{place} is a table, and the model takes no tables: give an array")
        _check_columns([*table], self.columns, place)
        inputs, unfamiliar = (
            self._inputs(table, Where(place, np.arange(num_rows(table)) + 1)),
            Unfamiliar(self.columns),
        )
        unfamiliar.note(table)
        return replace(self.of_inputs(inputs), notes=tuple(unfamiliar.words()))

    def _inputs(self, table: Table, where: Where) -> npt.NDArray[np.float32]:
        columns = self.columns
        if columns is None:
            raise LearningError(f"{where.place} is a table, and the model takes no tables: give an array")
        for name in columns.inputs if columns.incomplete_rows == DROP else ():
            where.refuse(name, table[name], table[name].missing, INCOMPLETE)
        return inputs_of(table, columns, where)

    def of_inputs(self, x: npt.NDArray[np.generic]) -> Predictions:
        """Predict for inputs that already have the form of training inputs, shape (N, ...)."""
        with torch.inference_mode():
            chunks = [torch.from_numpy(x[i : i + CHUNK]) for i in range(0, max(1, len(x)), CHUNK)]
            outputs = torch.cat([said(self.module, chunk) for chunk in chunks])
        labels, classes = self.description.form.labels, self.description.classes
        probabilities = labels.probabilities(outputs)
        if probabilities is None:
            low, high = (self.columns and self.columns.label_range) or (-1.0, 1.0)
            scaled = outputs.reshape(len(x)).double().numpy()
            return Predictions((scaled + 1) / 2 * (high - low) + low, None, ())
        shares = probabilities.numpy()
        answers = labels.answers(shares, np.array(classes, dtype=object))
        return Predictions(answers, shares, classes, shown_as=labels.shown_as)

    def _array(self, data: Any) -> npt.NDArray[np.generic]:
        form, given = self.description.form, np.asarray(data)
        if given.shape[1:] != form.own_shape:
            raise LearningError(
                f"the data have shape {given.shape}, and the model takes (N, {_listed(form.own_shape)}): "
                "reshape the data"
            )
        pixels = self.description.pixels and given.dtype.kind in "iu"
        x = as_numbers(given, np.dtype(form.own_dtype), "the data")
        if pixels:
            if given.size and not 0 <= given.min() <= given.max() <= LAST_PIXEL:
                raise LearningError(
                    f"the data hold whole numbers from {given.min()} to {given.max()}: bytes of pictures are "
                    f"from 0 to {LAST_PIXEL}"
                )
            pixels_of = given.astype(np.uint8)
            scale = self.description.scale
            x = scaled(pixels_of) if scale is None else scale.of(pixels_of)
        elif self.description.scale is not None:
            raise LearningError(
                "the data are not whole numbers, and the model normalizes the bytes of pictures as declared: "
                f"give them, from 0 to {LAST_PIXEL}"
            )
        elif self.description.pixels and np.abs(x).max(initial=0) > 1:
            raise LearningError(
                "the data hold numbers beyond -1 and 1, and the model learnt of pictures in this range: give "
                f"their bytes as whole numbers from 0 to {LAST_PIXEL}, which are scaled as in training"
            )
        return x if form.features is None else transform_of(form.features, form.encoder)(x)


def load_model(path: str | Path) -> LoadedModel:
    """Load the model of a finished run, to predict with it.

    `path`: of its folder ``model``, or of the run.

    Raises LearningError: there is none, or a damaged one.
    """
    return LoadedModel(*read_model(Path(path).expanduser()))


def _check_columns(table: Sequence[str], columns: Columns, place: str) -> None:
    """Raise LearningError if a table lacks a column that the model uses.

    Raises LearningError: one line that names all of them, and what may have been meant by others.
    """
    missing = [name for name in columns.inputs if name not in table]
    if not missing:
        return
    extra = [name for name in table if name not in columns.names()]
    faults = [f"lacks {_listed(missing)}"] + [f"has {_listed(extra)} too much"] * bool(extra)
    near = [(name, match) for name in extra for match in get_close_matches(name, missing, n=1)]
    hint = "".join(f"; is '{name}' the column '{match}'?" for name, match in near)
    raise LearningError(f"{place} {' and '.join(faults)}: the model takes {_listed(columns.inputs)}{hint}")


def _not_read(table: Sequence[str], columns: Columns, keep: Sequence[str]) -> list[str]:
    """Return a note that names the undeclared columns of a table; return no note if there are none."""
    others = [name or "one without a name" for name in table if name not in (*columns.names(), *keep)]
    return [f"not declared, and not read: {_listed(others)}"] * bool(others)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(shortened(str(value)) for value in values)
