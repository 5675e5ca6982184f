"""Writes and reads the folder of a finished model: weights, description, and declaration of columns."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from gdpfed.errors import LearningError, not_known, words_of
from gdpfed.files import save_whole
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.declaration import COLUMNS_FILE, read_columns, to_yaml
from gdpfed.learning.data.own_files import INPUT_DTYPES
from gdpfed.learning.data.picture_transforms import NormalizedPictures, Scale, scale_from
from gdpfed.learning.models import Given, Options, build_model, count_numbers, predicts_nothing, state_dict_of
from gdpfed.learning.task import Task
from gdpfed.learning.weights_file import keep_own

FOLDER = "model"
WEIGHTS_FILE, DESCRIPTION_FILE = "weights.safetensors", "model.json"
MANIFEST_FILE = "manifest.json"
"""The hashes of both: weights say nothing without what an output is called, which names the declaration."""
ENCODER_FILE = "encoder.safetensors"
"""A copy of what examples go through; nobody writes it but who takes the folder to where its file is not."""
FORMAT_VERSION, SCALED_VERSION = 2, 3
"""The second where a scale of pictures is declared, of which an earlier reader would not know."""
MOST_INPUTS = 2**26
"""Numbers of one example."""
DAMAGED = (OSError, *WRONG_FORM, RuntimeError, MemoryError, SafetensorError)


@dataclass(frozen=True)
class ModelDescription:
    """What a program must know besides weights to build a model and read its outputs.

    Attributes:
        model, options: as ``dataset.model`` and ``dataset.model_options``.
        form: of an example; its ``columns`` is the digest of the declaration.
        classes: what classes or labels are called, in the order of the outputs; empty of numbers.
        inputs: what each number of an input is, in order; empty where the data are not tables.
        pixels: whether an example is a picture, of whose bytes numbers are made.
        scale: how; None for numbers in [-1, 1].
    """

    model: str
    options: Options
    form: ExampleForm
    classes: tuple[str, ...]
    inputs: tuple[str, ...]
    pixels: bool = False
    scale: Scale | None = None

    @classmethod
    def of(cls, task: Task) -> Self:
        """Describe the model that a task trains."""
        data = task.load()
        form, columns = ExampleForm.of(data), data.columns
        return cls(
            task.model,
            task.model_options,
            form,
            data.named_classes,
            () if columns is None else tuple(columns.input_names),
            data.takes_pixels,
            data.train.scale if isinstance(data.train, NormalizedPictures) else None,
        )

    def to_json(self) -> str:
        """Return the description as JSON, which :meth:`from_json` reads."""
        said = {"version": FORMAT_VERSION, **asdict(self)}
        said |= {} if self.scale is None else {"version": SCALED_VERSION}
        return json.dumps(said, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the description that :meth:`to_json` wrote.

        Raises ValueError, TypeError, KeyError: the text is none, or of another version.
        """
        values: dict[str, Any] = read_json(text)
        if (version := values.pop("version")) not in (FORMAT_VERSION, SCALED_VERSION):
            raise ValueError(
                f"the model has format version {version}, and this gdpfed reads {SCALED_VERSION}: use "
                "the gdpfed that wrote it"
            )
        options = tuple((str(key), value) for key, value in values["options"])
        return cls(
            values["model"],
            options,
            ExampleForm.from_values(values["form"]),
            tuple(values["classes"]),
            tuple(values["inputs"]),
            bool(values.get("pixels", False)),
            scale_from(values.get("scale")),
        )

    def build(self, weights: Mapping[str, Any]) -> nn.Module:
        """Build the model with these weights, ready to predict.

        Raises:
            LearningError: no model of that name here.
            RuntimeError: the weights are not those of the model.
        """
        form = self.form
        model = build_model(
            self.model,
            form.input_shape,
            form.num_classes,
            seed=0,
            input_dtype=np.dtype(form.input_dtype),
            options=self.options,
            given=Given(form.vocabulary),
        )
        model.load_state_dict(weights)
        return model.eval()


def save_declaration(run: Path, columns: Columns) -> None:
    """Write the declaration of table columns into a run's model folder, before the model is written."""
    (run / FOLDER).mkdir(exist_ok=True)
    save_whole(run / FOLDER / COLUMNS_FILE, to_yaml(columns).encode())


def save_model(run: Path, task: Task, theta: npt.NDArray[np.float32]) -> None:
    """Write a run's model; the weights come last, since they mark the run as finished.

    Raises RunError: the file system refuses.
    """
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    save_whole(folder / DESCRIPTION_FILE, ModelDescription.of(task).to_json().encode())
    save_weights(folder, save_tensors(state_dict_of(task.build_model(), theta)))


def save_weights(folder: Path, weights: bytes) -> None:
    """Write weights into a model folder, with hashes that bind them to the description in the same folder.

    Raises RunError: the file system refuses.
    """
    files = {DESCRIPTION_FILE: (folder / DESCRIPTION_FILE).read_bytes(), WEIGHTS_FILE: weights}
    hashes = {name: sha256(data).hexdigest() for name, data in files.items()}
    manifest = json.dumps({"version": FORMAT_VERSION, "sha256": hashes}, indent=2) + "\n"
    save_whole(folder / MANIFEST_FILE, manifest.encode())
    save_whole(folder / WEIGHTS_FILE, weights)


def _bound_weights(folder: Path, description: str) -> bytes:
    """Read the weights, after checking by hashes that they were saved together with this description.

    Raises:
        LearningError: one of them is another, or nothing says what belongs together.
        OSError, ValueError, TypeError, KeyError: a file cannot be read.
    """
    if not (folder / MANIFEST_FILE).is_file():
        raise LearningError(
            f"{folder} has no {MANIFEST_FILE}, which holds the hashes of its files: restore it from a copy"
        )
    hashes = read_json((folder / MANIFEST_FILE).read_text(encoding="utf-8"))["sha256"]
    weights = (folder / WEIGHTS_FILE).read_bytes()
    for name, data in ((DESCRIPTION_FILE, description.encode()), (WEIGHTS_FILE, weights)):
        if hashes[name] != sha256(data).hexdigest():
            raise LearningError(
                f"{folder / name} is not the file that was saved with this model ({MANIFEST_FILE} has "
                "another hash of it): restore it from a copy"
            )
    return weights


def _check_sizes(description: ModelDescription, weights: Mapping[str, Any]) -> None:
    """Raise ValueError if the weights do not have the described sizes, before memory is allocated.

    Raises ValueError: they do not belong together, or an example would be larger than any picture.
    """
    form = description.form
    if form.input_dtype not in INPUT_DTYPES:
        raise ValueError(not_known(f"its input_dtype={form.input_dtype}", INPUT_DTYPES))
    held = sum(tensor.numel() for tensor in weights.values())
    # Each unit, layer and class has a number at least, and no list of them is made before this is known.
    sizes = [value for _, value in description.options if isinstance(value, int)]
    if max([*sizes, form.num_classes]) > held or prod(form.input_shape) > MOST_INPUTS:
        raise ValueError(
            f"{DESCRIPTION_FILE} asks for more than the {held:,} numbers of {WEIGHTS_FILE}, or for examples "
            f"of more than {MOST_INPUTS:,}"
        )
    given = Given(form.vocabulary)
    asked = count_numbers(description.model, form.input_shape, form.num_classes, description.options, given)
    if asked != held:
        raise ValueError(
            f"{DESCRIPTION_FILE} describes a model of {asked:,} numbers, and {WEIGHTS_FILE} holds {held:,}"
        )


def _damaged(folder: Path, error: Exception) -> LearningError:
    return LearningError(f"{folder} is a damaged model: {words_of(error)}; restore it from a copy")


def read_model(path: Path) -> tuple[ModelDescription, Columns | None, nn.Module]:
    """Read a model with its description and the declaration of its table columns (None if it takes no table).

    `path`: the folder, or that of its run.

    Raises:
        LearningError: there is none, it predicts nothing, it is damaged or cannot be built here, or one of
            its files was changed or is of another model.
    """
    folder = path / FOLDER if (path / FOLDER / DESCRIPTION_FILE).is_file() else path
    try:
        text = (folder / DESCRIPTION_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise LearningError(
            f"{path} holds no model ({DESCRIPTION_FILE}: {error.strerror}): name the folder '{FOLDER}' of a "
            "finished run"
        ) from None
    try:
        description = ModelDescription.from_json(text)
        weights = load_tensors(_bound_weights(folder, text))
        _check_sizes(description, weights)
    except DAMAGED as error:
        raise _damaged(folder, error) from None
    try:
        model = description.build(weights)
    except LearningError as error:
        raise LearningError(f"{folder} cannot be used here: {error}") from None
    except DAMAGED as error:
        raise _damaged(folder, error) from None
    if predicts_nothing(model):
        raise LearningError(
            f"{folder} holds the counts of a run of statistics, which predict nothing: name the model of a "
            "run that has trained one"
        )
    if (encoder := description.form.encoder) is not None and (folder / ENCODER_FILE).is_file():
        keep_own(folder / ENCODER_FILE, encoder.weights.sha256)
    if description.form.columns is None:
        return description, None, model
    columns = read_columns(folder / COLUMNS_FILE)
    if columns.digest != description.form.columns:
        raise LearningError(
            f"{folder / COLUMNS_FILE} is not the declaration that the model was trained with: restore it "
            "from a copy"
        )
    return description, columns, model
