"""Features of examples, computed by a frozen network whose weights are in a user's file.

An example is turned into numbers by itself, by weights that are fixed before the run: so they are a part of
the record and cost no budget, provided that the file was not trained on the clients' data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import
from gdpfed.learning.weights_file import WeightsFile

torch = late_import("torch")
functional = late_import("torch.nn.functional")
transformer = late_import("gdpfed.learning.models.transformer")
vision = late_import("torchvision.models")

Numbers = npt.NDArray[np.float32]
Values = tuple[tuple[str, int | float | str], ...]

FILE = "file"
PICTURES = "resnet18"
CHUNK = 256
NORM = 4.0
"""Of the numbers of every example: clipping and learning rates do not depend on the file's scale."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours from 0 to 1, which published weights for pictures were trained with."""
SIZES = ("layers", "heads", "width", "inner", "positions")


@dataclass(frozen=True)
class Encoder:
    """A frozen network, described by settings, that computes features of examples.

    `values`: the architecture and its sizes, by name. `weights`: its file. `vocabulary`: of texts; None for
    pictures.
    """

    values: Values
    weights: WeightsFile
    vocabulary: int | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Encoder":
        """Make an encoder from a dictionary that was read from JSON."""
        pairs = tuple((str(key), value) for key, value in values["values"])
        return cls(pairs, WeightsFile(**values["weights"]), values["vocabulary"])

    @property
    def architecture(self) -> str:
        """The name of the network's architecture; empty if the settings name none."""
        return str(dict(self.values).get("architecture", ""))

    def of(self, x: npt.NDArray[np.generic]) -> Numbers:
        """Compute features of shape (N, k) from examples of shape (N, ...).

        Raises LearningError: the examples are of another kind, or the file is not that of the settings.
        """
        apply = _loaded(self, x.shape[1:])
        if not len(x):
            return apply(np.zeros((1, *x.shape[1:]), x.dtype))[:0]
        numbers = np.concatenate([apply(x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)])
        # An example whose numbers overflow is all zeros, and moves no other.
        numbers = np.where(np.isfinite(numbers).all(axis=1, keepdims=True), numbers.astype(np.float64), 0)
        norms = np.linalg.norm(numbers, axis=1, keepdims=True)
        return np.asarray(NORM * numbers / np.maximum(norms, np.finfo(np.float32).tiny), dtype=np.float32)


@lru_cache(maxsize=2)
def _loaded(encoder: Encoder, shape: tuple[int, ...]) -> Callable[[npt.NDArray[np.generic]], Numbers]:
    """Load a frozen network with its weights; return the function that applies it to examples."""
    if encoder.architecture == PICTURES:
        return _encoder_of_pictures(encoder, shape)
    if encoder.architecture in transformer.ARCHITECTURES:
        return _encoder_of_texts(encoder, shape)
    known = ", ".join([PICTURES, *transformer.ARCHITECTURES])
    raise LearningError(
        f"dataset.encoder has architecture={encoder.architecture}: name one of {known}, as in "
        "'dataset.encoder={architecture:resnet18}'"
    )


def _encoder_of_pictures(
    encoder: Encoder, shape: tuple[int, ...]
) -> Callable[[npt.NDArray[np.generic]], Numbers]:
    """Return a function that turns pictures into 512 numbers by torchvision's ResNet-18."""
    size = _own_values(encoder, {"size": 0})["size"]
    if len(shape) != 3 or encoder.vocabulary is not None:
        raise LearningError(
            f"dataset.encoder={PICTURES} takes pictures, and the examples have shape {shape}: name another"
        )
    model = vision.resnet18(weights=None)
    model.fc = torch.nn.Identity()
    encoder.weights.fill(model)
    model.eval()
    mean, deviation = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, DEVIATION))

    def apply(x: npt.NDArray[np.generic]) -> Numbers:
        with torch.no_grad():
            colours = (torch.from_numpy(x.astype(np.float32)) + 1) / 2
            pictures = (colours.expand(-1, 3, -1, -1) - mean) / deviation
            if size:
                pictures = functional.interpolate(
                    pictures, size=(size, size), mode="bilinear", align_corners=False
                )
            return np.asarray(model(pictures).numpy(), dtype=np.float32)

    return apply


def _encoder_of_texts(
    encoder: Encoder, shape: tuple[int, ...]
) -> Callable[[npt.NDArray[np.generic]], Numbers]:
    """Return a function that encodes each text as the mean of a transformer's last hidden states."""
    from gdpfed.learning.models import Given

    defaults = {each.name: each.default for each in fields(transformer.EncoderSizes)}
    sizes = transformer.EncoderSizes(**_own_values(encoder, {name: defaults[name] for name in SIZES}))
    sizes = transformer.EncoderSizes(**{**vars(sizes), "architecture": encoder.architecture})
    if encoder.vocabulary is None:
        raise LearningError(
            f"dataset.encoder={encoder.architecture} needs texts, and dataset=npz has numbers: set "
            "dataset.vocabulary to the file that says which token each number is"
        )
    given = Given(encoder.vocabulary, encoder.weights)
    try:
        model = transformer.build_encoder(sizes, given, shape, 1, setting="features=file").eval()
    except LearningError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise LearningError(f"dataset.encoder={dict(encoder.values)}: {words_of(error)}") from None
    causal = transformer.ARCHITECTURES[encoder.architecture].causal

    def apply(x: npt.NDArray[np.generic]) -> Numbers:
        with torch.no_grad():
            tokens = torch.from_numpy(x.astype(np.int64))
            return np.asarray(transformer.mean_states(model, tokens, causal=causal).numpy(), np.float32)

    return apply


def _own_values(encoder: Encoder, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a frozen network: those that are configured, and defaults for the others.

    Raises LearningError: a size that the architecture does not have, or that is not a positive whole number.
    """
    said = {key: value for key, value in encoder.values if key != "architecture"}
    for key, value in said.items():
        if key not in defaults or type(value) is not int or value < 1:
            raise LearningError(
                f"dataset.encoder.{key}={value}: {encoder.architecture} has {', '.join(defaults)}, positive "
                "whole numbers"
            )
    return defaults | said
