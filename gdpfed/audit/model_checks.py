"""Check the description of a finished model (model.json) against settings, declared columns and weights.

Of the weights only the header is read, which names each tensor with its shape. It tells how many outputs a
model of this project has. Models of others are not known here.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpfed.audit.run_files import RunFiles
from gdpfed.json_files import read_json
from gdpfed.runs.file_formats import DESCRIPTION_FILE, MODEL_FILE

VERSIONS = {False: 2, True: 3}
"""The version of a description, by whether it has a scale of pictures."""
ENTRIES = frozenset({"version", "model", "options", "form", "classes", "inputs", "pixels", "scale"})
OUTPUTS = {
    **dict.fromkeys(("linear", "softmax"), ("linear.weight", 0)),
    **dict.fromkeys(("mlp", "cnn2", "cnn3", "fcn", "lstm"), ("output.weight", 0)),
    "ngram": ("scores.weight", 1),
    "resnet18": ("fc.weight", 0),
    "trees": ("values.weight", 0),
}
"""The tensor that has the outputs of a model of this project, and on which of its axes."""
INPUTS = {"linear": ("linear.weight", 0), "softmax": ("linear.weight", 1), "mlp": ("hidden.weight", 0)}
"""The tensor with an entry for each input on its second axis, and how many entries it has besides."""
HEADER_LENGTH = 8
LONGEST_HEADER = 100_000_000


def check_model(directory: Path, files: RunFiles) -> Iterator[str]:
    """Yield one line for each contradiction between a model's description and the other files of its run.

    A run that has not ended has no description yet; that one is missing is found by the seal.
    """
    path = directory / DESCRIPTION_FILE
    if not path.is_file():
        return
    try:
        said = read_json(path.read_text(encoding="utf-8"))
        shapes = _shapes(directory / MODEL_FILE) if (directory / MODEL_FILE).is_file() else {}
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict) or said.keys() != ENTRIES:
        yield f"{DESCRIPTION_FILE} or the header of {MODEL_FILE} does not describe a model"
        return
    yield from _check_settings(said, files.config["dataset"])
    yield from _check_names(said, files.columns)
    yield from _check_shapes(said, shapes)


def _check_settings(said: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[str]:
    """Check that a description has the configured model and options, and the version that goes with both."""
    if said["model"] != data["model"]:
        yield f"{DESCRIPTION_FILE} has the model {said['model']}, the configuration {data['model']}"
    options = data.get("model_options") or {}
    if dict(map(tuple, said["options"])) != dict(options):
        yield f"{DESCRIPTION_FILE} has the model options {said['options']}, the configuration {options}"
    if said["version"] != (version := VERSIONS[said["scale"] is not None]):
        yield f"{DESCRIPTION_FILE} has format version {said['version']}, where {version} follows"


def _check_names(said: Mapping[str, Any], columns: Mapping[str, Any] | None) -> Iterator[str]:
    """Check that outputs have as many names as there are, and those that declared columns give them."""
    names, number = said["classes"], said["form"]["num_classes"]
    if names and len(names) != number:
        yield f"{DESCRIPTION_FILE} names {len(names)} classes of {number}"
    label = {} if columns is None else columns["label"]
    declared = label.get("classes", label.get("columns"))
    if declared is not None and [*map(str, declared)] != names:
        yield f"{DESCRIPTION_FILE} names the classes {names}, the declared columns {[*map(str, declared)]}"


def _check_shapes(said: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Check that the weights have an output for each class, and as many inputs as an example has numbers."""
    form, model = said["form"], said["model"]
    tensor, axis = OUTPUTS.get(model, ("", 0))
    if tensor in shapes and shapes[tensor][axis] != form["num_classes"]:
        yield (
            f"{DESCRIPTION_FILE} has {form['num_classes']} classes, and the weights {shapes[tensor][axis]} "
            "outputs"
        )
    tensor, besides = INPUTS.get(model, ("", 0))
    if tensor in shapes and shapes[tensor][1] != (numbers := math.prod(form["input_shape"])) + besides:
        inputs = shapes[tensor][1] - besides
        yield f"{DESCRIPTION_FILE} has examples of {numbers} numbers, and the weights {inputs} inputs"


def _shapes(path: Path) -> dict[str, list[int]]:
    """Read the shapes of all tensors from the header of a file of weights.

    Raises OSError, ValueError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_LENGTH), "little")
        if length > LONGEST_HEADER:
            raise ValueError("the header is longer than any")
        header = json.loads(file.read(length))
    return {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
