"""Exports a finished model to ONNX, for programs without Python.

A model of tables takes the numbers of a record as they are declared and scales them itself. torch writes the
file, with the packages of the extra ``onnx``.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.errors import LearningError
from gdpfed.files import NoRegularFileError
from gdpfed.installed import how_to_install
from gdpfed.learning.data.cells import Table
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.faults import Where
from gdpfed.learning.data.table_rows import as_texts, num_rows, numbers_in
from gdpfed.learning.data.text_cells import numbered
from gdpfed.learning.models import said
from gdpfed.learning.prediction import LoadedModel

INPUT = "inputs"
PACKAGES = ("onnx", "onnxscript")


class _WholeModel(nn.Module):
    """The exported module: from a table's numbers, float64[N,columns], or model inputs to outputs."""

    low: torch.Tensor
    high: torch.Tensor
    stand_in: torch.Tensor

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.module, self.columns = model.module, model.columns
        self.labels = model.description.form.labels
        numeric = () if self.columns is None else self.columns.numeric
        middles = [each.low / 2 + each.high / 2 if each.missing is None else each.missing for each in numeric]
        for name, values in (
            ("low", [each.low for each in numeric]),
            ("high", [each.high for each in numeric]),
            ("stand_in", middles),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = said(self.module, inputs if self.columns is None else self._scaled(inputs))
        probabilities = self.labels.probabilities(outputs)
        if probabilities is not None:
            return probabilities
        low, high = (self.columns and self.columns.label_range) or (-1.0, 1.0)
        return (outputs.double() + 1) / 2 * (high - low) + low

    def _scaled(self, inputs: torch.Tensor) -> torch.Tensor:
        low, high, count = self.low, self.high, len(self.low)
        numbers = torch.where(inputs[:, :count].isnan(), self.stand_in, inputs[:, :count])
        parts = [2 * (torch.minimum(torch.maximum(numbers, low), high) - low) / (high - low) - 1]
        for place, column in enumerate(self.columns.categorical if self.columns else (), start=count):
            present = inputs[:, place : place + 1]
            if column.missing is not None:
                present = torch.where(present.isnan(), float(column.values.index(column.missing)), present)
            parts.append((present == torch.arange(len(column.values), dtype=torch.float64)).double())
        return torch.cat(parts, dim=1).float()


def save_onnx(model: LoadedModel, path: Path) -> str:
    """Write a model as ONNX, and return a description of its inputs and outputs.

    Its input is called ``inputs``. Of tables it is float64[N,columns], see `table_numbers`; else it is what
    training took, shape (N, ...). Its output is ``probabilities``, float32[N,classes,...] in the order of
    ``model.json``, or ``value``, shape (N, 1), in the unit of the label. Its metadata have what both stand
    for, as :func:`onnx_metadata` says.

    Raises LearningError: the packages are not installed, or the file cannot be written.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise LearningError(f"ONNX files need the package {missing[0]}: {how_to_install('onnx')}")
    form = model.description.form
    if model.columns is None:
        example = torch.zeros(2, *form.input_shape, dtype=getattr(torch, form.input_dtype))
    else:
        example = torch.zeros(2, len(model.columns.inputs), dtype=torch.float64)
    output = "value" if form.labels.name == "numbers" else "probabilities"
    program = torch.onnx.export(
        _WholeModel(model).eval(),
        (example,),
        dynamo=True,
        input_names=[INPUT],
        output_names=[output],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        verbose=False,
    )
    if program is None:
        raise LearningError(
            f"torch has not written an ONNX file of the model {model.description.model}: use gdpfed "
            "predict with the model itself"
        )
    metadata = onnx_metadata(model)
    program.model.metadata_props.update(metadata)
    try:
        if path.is_symlink():
            raise NoRegularFileError(path)
        program.save(path)
    except OSError as error:
        raise LearningError(f"--onnx={path} cannot be written: {error.strerror}; name another file") from None
    return f"from '{INPUT}' to '{output}', with {', '.join(metadata)} as metadata"


def onnx_metadata(model: LoadedModel) -> dict[str, str]:
    """Return, as JSON texts by name, what a program must know to prepare inputs and to read outputs.

    ``columns`` lists the columns of ``inputs`` in order: of a number its ``name``, its ends ``low`` and
    ``high`` in its own unit, and of a date the day under ``age_on`` or ``days_since``; of a category its
    ``name``, its ``values`` in the order of their places, and ``other`` and ``missing`` where they are
    declared. ``classes`` are the names of the outputs, in order, and ``label_range`` the ends of a label that
    is a number. ``declaration`` is the digest of ``columns.yaml``. Of other data there are ``classes`` alone.
    """
    found: dict[str, Any] = {"classes": list(model.description.classes)}
    columns = model.columns
    if columns is not None:
        described = list[dict[str, Any]]()
        for number in columns.numeric:
            dated = {} if number.dated is None else {number.dated.unit: str(number.dated.day)}
            missing = {} if number.missing is None else {"missing": number.missing}
            ends = {"low": number.low, "high": number.high}
            described.append({"name": number.name, **ends, **missing, **dated})
        for category in columns.categorical:
            stand_ins = {"other": category.other, "missing": category.missing}
            declared = {key: value for key, value in stand_ins.items() if value is not None}
            described.append({"name": category.name, "values": [*category.values], **declared})
        found["columns"] = described
        found["declaration"] = columns.digest
        if columns.label_range is not None:
            found["label_range"] = [*columns.label_range]
    return {key: json.dumps(value, ensure_ascii=False) for key, value in found.items() if value}


def table_numbers(table: Table, columns: Columns, place: str) -> npt.NDArray[np.float64]:
    """Convert a table to the ONNX model's inputs, float64[N,columns]: numeric columns, then categorical.

    A number is as declared, of a date its age or days; a category is its place among the values, from 0. NaN
    is what is missing. Raises LearningError: a value that is not a number.
    """
    where = Where(place, np.arange(num_rows(table)) + 1)
    found = [numbers_in(table, each, where) for each in columns.numeric]
    for each in columns.categorical:
        cells = as_texts(table[each.name])
        places = numbered(cells, {value: number for number, value in enumerate(each.values)})
        other = np.nan if each.other is None else float(each.values.index(each.other))
        known = np.where(places < 0, other, places)
        found.append(np.where(cells.missing, np.nan, known))
    return np.stack(found, axis=1)
