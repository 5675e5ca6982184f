"""A user's file of weights in safetensors format, identified by its SHA-256."""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import

if TYPE_CHECKING:
    import torch
    from torch import nn

_torch = late_import("torch")
# Not every program that builds a model has this package: those that are measured beside ours do not.
_safetensors, _safetensors_torch = late_import("safetensors"), late_import("safetensors.torch")

_HASH = re.compile(r"[0-9a-f]{64}")
_OLD_END = re.compile(r"\.(gamma|beta)$")
_NEW_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""Of normalisations in files of former times."""
SIZES = "set the sizes as the file has them, in dataset.model_options or dataset.encoder"
_own: dict[str, Path] = {}
"""Files of this process's own by their hash; they are read wherever a server says that the weights lie."""


@dataclass(frozen=True)
class WeightsFile:
    """The file of weights from which a run starts.

    `path`: where it lies, if this machine has none of its own with that hash. `sha256`: in hexadecimal.
    """

    path: str
    sha256: str

    @classmethod
    def of(cls, path: str | None, digest: str | None) -> "WeightsFile":
        """Make a `WeightsFile` from the settings for its path and its SHA-256.

        Raises LearningError: one without the other.
        """
        if path is None:
            raise LearningError(
                f"dataset.weights_sha256={digest} has no file beside it: set dataset.weights, or leave it out"
            )
        if digest is None or not _HASH.fullmatch(digest):
            raise LearningError(
                f"dataset.weights_sha256={digest} must be the SHA-256 of dataset.weights={path}, which is "
                f"{sha256(_read(Path(path).expanduser())).hexdigest()}: set it"
            )
        return cls(path, digest)

    def tensors(self) -> "dict[str, torch.Tensor]":
        """Read the tensors in the file, by name.

        Raises LearningError: it cannot be read, it is another file, or it holds no tensors.
        """
        return _tensors(_own.get(self.sha256, Path(self.path).expanduser()), self.sha256)

    def fill(self, model: "nn.Module", prefixes: tuple[str, ...] = (), ignored: str = "$^") -> None:
        """Copy the file's values into a model.

        Every parameter and kept buffer has to be there in its shape. What else is in the file is left out if
        it begins with another name than the model's, as a head does, or matches ``ignored``.

        `prefixes`: what may stand before the model's names in the file. `ignored`: a pattern of names without
        prefix that a file may hold and that a model does not have.

        Raises LearningError: as in `tensors`, or a file of another model; it names the first difference.
        """
        given, own = self.tensors(), model.state_dict()
        given = {_OLD_END.sub(lambda end: _NEW_ENDS[end[0]], name): each for name, each in given.items()}
        prefix = next((each for each in ("", *prefixes) if f"{each}{next(iter(own))}" in given), "")
        held = {name.removeprefix(prefix): each for name, each in given.items() if name.startswith(prefix)}
        roots = {name.partition(".")[0] for name in own}
        more = [
            name
            for name in held
            if name not in own and name.partition(".")[0] in roots and not re.search(ignored, name)
        ]
        where = f"dataset.weights={self.path}"
        for name, each in own.items():
            if name not in held:
                raise LearningError(f"{where} lacks {prefix}{name}: {SIZES}")
            if held[name].shape != each.shape:
                raise LearningError(
                    f"{where} has {prefix}{name} of shape {tuple(held[name].shape)}, and the model "
                    f"{tuple(each.shape)}: {SIZES}"
                )
        if more:
            raise LearningError(f"{where} has {prefix}{more[0]}, which the model lacks: {SIZES}")
        with _torch.no_grad():
            for name, each in own.items():
                each.copy_(held[name])


def keep_own(path: Path, digest: str) -> None:
    """Use the file at `path` for weights with this hash, in place of any path that a server names.

    Raises LearningError: as in `WeightsFile.tensors`.
    """
    try:
        _tensors(path, digest)
    except LearningError:
        if _own.get(digest) == path:
            del _own[digest]
        raise
    _own[digest] = path


def _tensors(path: Path, digest: str) -> "dict[str, torch.Tensor]":
    """Read the tensors of a file, after checking that it has this hash."""
    content = _read(path)
    if (found := sha256(content).hexdigest()) != digest:
        raise LearningError(
            f"dataset.weights={path} has SHA-256 {found}, and dataset.weights_sha256 is {digest}: take the "
            "file that the run was set up with"
        )
    try:
        tensors: dict[str, torch.Tensor] = _safetensors_torch.load(content)
    except (_safetensors.SafetensorError, ValueError) as error:
        raise LearningError(f"dataset.weights={path} is not a safetensors file: {words_of(error)}") from None
    return tensors


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LearningError(
            f"dataset.weights={path} cannot be read ({error.strerror}): name a safetensors file"
        ) from None
