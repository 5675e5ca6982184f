"""The checkpoint: the state from which a run resumes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from gdpfed.errors import RunError
from gdpfed.files import save_whole
from gdpfed.runs.file_formats import CHECKPOINT_FILE, FORMAT_VERSION, MODEL_FILE, VERSION_KEY, check_version

STATE_PREFIX, DIGEST_KEY = "method.", "digest"
_HEADER_LENGTH_BYTES = 8


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a completed round, from which it resumes.

    Attributes:
        theta: the model from which training goes on, shape (d,); not the released model.
        completed_rounds: how many rounds are complete, also those without a sum.
        sampling_key: the key that draws the cohorts of all rounds; secret, since amplification relies on it.
        method_state: arrays that the method and the run's extensions keep between rounds.
    """

    theta: npt.NDArray[np.float32]
    completed_rounds: int
    sampling_key: bytes
    method_state: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Write the checkpoint to the run directory, readable by its owner only."""
        metadata = {
            VERSION_KEY: str(FORMAT_VERSION),
            "completed_rounds": str(self.completed_rounds),
            "sampling_key": self.sampling_key.hex(),
        }
        tensors = {f"{STATE_PREFIX}{name}": array for name, array in self.method_state.items()}
        tensors |= {"theta": self.theta}
        data = save_tensors(tensors, metadata | {DIGEST_KEY: _digest(tensors, metadata)})
        save_whole(directory / CHECKPOINT_FILE, data)

    @classmethod
    def load(cls, directory: Path) -> "Checkpoint":
        """Read the checkpoint from the run directory.

        Raises RunError if the file is missing, damaged or of another format.
        """
        path = directory / CHECKPOINT_FILE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if (directory / MODEL_FILE).is_file():
                raise RunError(f"run.resume={directory} has ended: there is nothing to resume") from None
            raise RunError(
                f"run.resume={directory} has no {path.name}: restore it from a copy, or start a new run"
            ) from None
        except OSError as error:
            raise RunError(f"run.resume={directory}: {path.name} cannot be read ({error.strerror})") from None
        try:
            tensors = load_tensors(data)
            # The text entries in the header of safetensors data.
            length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
            header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
            metadata: dict[str, Any] = header["__metadata__"]
            named = metadata.get(VERSION_KEY)
            check_version(path, None if named is None else int(named))
            if metadata.pop(DIGEST_KEY) != _digest(tensors, metadata):
                raise ValueError("it is not what was written: its digest differs")
            return cls(
                theta=tensors.pop("theta"),
                completed_rounds=int(metadata["completed_rounds"]),
                sampling_key=bytes.fromhex(metadata["sampling_key"]),
                method_state={name.removeprefix(STATE_PREFIX): array for name, array in tensors.items()},
            )
        except (SafetensorError, KeyError, ValueError) as error:
            raise RunError(
                f"run.resume={directory}: {path.name} is damaged ({error}); "
                "restore it from a copy or start a new run"
            ) from None


def _digest(tensors: Mapping[str, npt.NDArray[np.generic]], metadata: Mapping[str, str]) -> str:
    """Return a SHA-256 of a checkpoint's content, with which damage is detected."""
    digest = sha256(json.dumps(dict(sorted(metadata.items()))).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
